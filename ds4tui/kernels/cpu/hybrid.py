"""The CPU twin of a step of a hybrid: blocks of several kinds, NumPy around its products.

Matrices are in NumPy or in blocks of the file, which C++ multiplies (`products.py`); a product
shares its work among threads, so a block goes from product to product on the engine's thread and
shares what lies between. What is written in place was made here.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.kernels.block import AttentionWeights, BlockShape, BlockWeights
from ds4tui.kernels.cpu.attention import host_attend
from ds4tui.kernels.cpu.decoder import HostAppender, head_norms, rms_norm, turn_heads
from ds4tui.kernels.cpu.delta import HostDelta, HostRule, sigmoid
from ds4tui.kernels.cpu.feed_forward import ACTIVATIONS, FeedForward, routed
from ds4tui.kernels.cpu.linear import host_view
from ds4tui.kernels.cpu.products import Product, product, stack_products
from ds4tui.kernels.cpu.threads import workers
from ds4tui.kernels.decoder import NO_IMAGES, Ends, ImageRows, Logits, Source
from ds4tui.kernels.delta import DeltaBlockWeights, DeltaShape
from ds4tui.kernels.feed_forward import (
    Activation,
    ExpertsWeights,
    FeedForwardWeights,
    GatedWeights,
    require_plain,
)
from ds4tui.kernels.rope import Turn

Floats = npt.NDArray[np.float32]


class HybridBlock(Protocol):
    shape: BlockShape | DeltaShape

    def __call__(self, x: Floats, layer: Any, turn: Turn) -> Floats: ...


class HostGatedBlock:
    """As `kernels.block.Block` for shapes that gate what attention gives."""

    def __init__(self, weights: BlockWeights, shape: BlockShape) -> None:
        self.shape = shape
        self._norms = _Norms(weights.attn_norm, weights.ffn_norm, shape.norm_epsilon)
        self._attention = _GatedAttention(weights.attention, shape)
        self._feed_forward = _feed_forward(weights.feed_forward)

    def __call__(self, x: Floats, layer: HostAppender, turn: Turn) -> Floats:
        h = self._attention(self._norms.first(x), layer, turn)
        h += x
        y = self._feed_forward(self._norms.second(h))
        y += h
        return y


class HostDeltaBlock:
    """As `kernels.delta.DeltaBlock`."""

    def __init__(self, weights: DeltaBlockWeights, shape: DeltaShape, rule: HostRule) -> None:
        self.shape = shape
        self._norms = _Norms(weights.attn_norm, weights.ffn_norm, shape.norm_epsilon)
        self._delta = HostDelta(weights.delta, shape, rule)
        self._feed_forward = _feed_forward(weights.feed_forward)

    def __call__(self, x: Floats, layer: Any, turn: Turn) -> Floats:
        h = self._delta(self._norms.first(x), layer)
        h += x
        y = self._feed_forward(self._norms.second(h))
        y += h
        return y


class HybridDecoder:
    """As `kernels.decoder.DenseDecoder`; the layers must keep what they keep in NumPy."""

    def __init__(self, ends: Ends, blocks: Sequence[HybridBlock]) -> None:
        self._ends, self._blocks = ends, blocks
        self._norm, self._output = host_view(ends.norm), product(ends.output)

    def __call__(
        self,
        source: Source,
        layers: Sequence[Any],
        turns: Sequence[Turn],
        logits: Logits,
        images: ImageRows = NO_IMAGES,
    ) -> mx.array | None:
        """As `kernels.decoder.Decoder`. ValueError for images that bring more than embeddings:
        no hybrid has such."""
        if images.added or images.sight is not None:
            raise ValueError("Hybrids know images as embeddings only.")
        x = self._rows(source)
        for block, layer in zip(self._blocks, layers, strict=True):
            x = block(x, layer, turns[block.shape.turn])
        if logits == "none":
            return None
        wanted = x[-1:] if logits == "last" else x
        return mx.array(self._output(rms_norm(wanted, self._norm, self._ends.norm_epsilon)))

    def _rows(self, source: Source) -> Floats:
        if isinstance(source, mx.array):
            return host_view(source)
        scale = np.float32(self._ends.embedding_scale)
        return host_view(self._ends.embedding.rows(source)) * scale


class _Norms:
    """The two of a block."""

    def __init__(self, first: mx.array, second: mx.array, epsilon: float) -> None:
        self._first, self._second, self._epsilon = host_view(first), host_view(second), epsilon

    def first(self, x: Floats) -> Floats:
        return rms_norm(x, self._first, self._epsilon)

    def second(self, x: Floats) -> Floats:
        return rms_norm(x, self._second, self._epsilon)


class _GatedAttention:
    """Normalised rows [T, width] to [T, width]; q gives the heads' queries, then their gates."""

    def __init__(self, weights: AttentionWeights, shape: BlockShape) -> None:
        self._shape, self._workers = shape, workers()
        self._inputs = product(weights.q, weights.k, weights.v)
        self._output = product(weights.output)
        self._head_norms = head_norms(weights, shape)

    def __call__(self, n: Floats, layer: HostAppender, turn: Turn) -> Floats:
        shape = self._shape
        q, gate, k, v = self._split(self._inputs(n))
        if self._head_norms is not None:
            q[...] = rms_norm(q, self._head_norms[: shape.heads], shape.norm_epsilon)
            k[...] = rms_norm(k, self._head_norms[shape.heads :], shape.norm_epsilon)
        turn_heads(q, turn)
        turn_heads(k, turn)
        keys, values = layer.append(k.swapaxes(0, 1), v.swapaxes(0, 1))
        first = keys.shape[1] - len(n)  # of these rows, which may begin late in the sequence
        mixed = np.empty((len(n), shape.heads, shape.value_size), np.float32)

        def attend(tile: slice) -> None:
            past, own = first + tile.start, q[tile].swapaxes(0, 1)
            attended = host_attend(own, keys, values, shape.scale, past, shape.window)
            mixed[tile] = attended.swapaxes(0, 1)

        self._workers.each(self._workers.tiles(len(n)), attend)
        joined = mixed.reshape(len(n), -1)
        joined *= sigmoid(gate)
        return self._output(joined)

    def _split(self, rows: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """[T, ..] to q [T, H, D], gate [T, H * Dv], k [T, Hkv, D] and v [T, Hkv, Dv]: views."""
        shape, count = self._shape, len(rows)
        queries, gates = shape.heads * shape.key_size, shape.heads * shape.value_size
        keys_at = queries + gates
        values_at = keys_at + shape.kv_heads * shape.key_size
        return (
            rows[:, :queries].reshape(count, shape.heads, shape.key_size),
            rows[:, queries:keys_at],
            rows[:, keys_at:values_at].reshape(count, shape.kv_heads, shape.key_size),
            rows[:, values_at:].reshape(count, shape.kv_heads, shape.value_size),
        )


def _feed_forward(weights: FeedForwardWeights) -> FeedForward:
    require_plain(weights)
    return _gated(weights) if isinstance(weights, GatedWeights) else _Experts(weights)


def _gated(w: GatedWeights) -> FeedForward:
    return _Gated(product(w.gate, w.up), product(w.down), w.activation)


class _Gated:
    def __init__(self, gate_up: Product, down: Product, activation: Activation) -> None:
        self._gate_up, self._down, self._act = gate_up, down, ACTIVATIONS[activation]

    def __call__(self, m: Floats) -> Floats:
        both = self._gate_up(m)
        inner = both.shape[1] // 2
        gated = self._act(both[:, :inner])
        gated *= both[:, inner:]
        return self._down(gated)


class _Experts:
    """Each expert that was chosen sees all of its rows at once; a shared one sees all rows."""

    def __init__(self, weights: ExpertsWeights) -> None:
        self._router, self._used = product(weights.router), weights.used
        parts = stack_products(weights.gate, weights.up), stack_products(weights.down)
        self._experts = [_Gated(*pair, weights.activation) for pair in zip(*parts, strict=True)]
        shared, gate = weights.shared, weights.shared_gate
        self._shared = None if shared is None else _gated(shared)
        self._shared_gate = None if gate is None else host_view(gate)

    def __call__(self, m: Floats) -> Floats:
        chosen, shares = routed(self._router(m), self._used)
        y = np.zeros_like(m) if self._shared is None else self._shared(m)
        if self._shared_gate is not None:
            y *= sigmoid(m @ self._shared_gate)[:, None]
        for expert in np.unique(chosen):
            rows, place = np.nonzero(chosen == expert)
            y[rows] += self._experts[expert](m[rows]) * shares[rows, place, None]
        return y
