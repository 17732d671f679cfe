"""The CPU twin of a whole decoder step: NumPy from the token ids to the logits.

MLX's small operations cost about 50 µs each on a CPU and a step has hundreds; NumPy's cost 1 to
5 µs. Matrices that read the same rows lie side by side (q, k and v; gate and up), so a block has
four products. What is written in place was made here; what a caller holds is only read.
"""

from collections.abc import Sequence
from typing import Protocol, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.kernels.block import BlockShape, BlockWeights
from ds4tui.kernels.cpu.attention import host_attend
from ds4tui.kernels.cpu.linear import HostLinear, host_view
from ds4tui.kernels.cpu.threads import workers
from ds4tui.kernels.decoder import Ends, Logits, Source
from ds4tui.kernels.linear import Linear
from ds4tui.kernels.rope import Turn

Floats = npt.NDArray[np.float32]


class HostAppender(Protocol):
    """Where a block keeps its keys and values (engine/state.py)."""

    @property
    def length(self) -> int: ...
    def append(self, keys: Floats, values: Floats) -> tuple[Floats, Floats]: ...


class HostBlock:
    """As `kernels.block.Block`, over float32 NumPy rows [T, width]."""

    def __init__(self, weights: BlockWeights, shape: BlockShape) -> None:
        """Copies the matrices of `weights`, which must be HostLinears, to where it wants them."""
        self._shape = shape
        self._attn_norm = host_view(weights.attn_norm)
        self._ffn_norm = host_view(weights.ffn_norm)
        self._qkv = HostLinear.side_by_side(_host(weights.q), _host(weights.k), _host(weights.v))
        self._output = _host(weights.output)
        self._gate_up = HostLinear.side_by_side(_host(weights.gate), _host(weights.up))
        self._down = _host(weights.down)
        self._workers = workers()

    def __call__(self, x: Floats, layer: HostAppender, turn: Turn) -> Floats:
        """Tiles of rows are independent but for this: all keys are there before one attends."""
        first, tiles = layer.length, self._workers.tiles(len(x))
        qkv, y = np.empty((len(x), self._qkv.shape[0]), np.float32), np.empty_like(x)

        def project(tile: slice) -> None:
            qkv[tile] = self._projected(x[tile], turn.part(tile))

        self._workers.each(tiles, project)
        q, k, v = self._split(qkv)
        keys, values = layer.append(k, v)

        def finish(tile: slice) -> None:
            past, scale = first + tile.start, self._shape.scale
            attended = host_attend(q[:, tile], keys, values, scale, past)
            y[tile] = self._fed_forward(x[tile] + self._output.apply(_joined(attended)))

        self._workers.each(tiles, finish)
        return y

    def _projected(self, x: Floats, turn: Turn) -> Floats:
        """[q | k | v] of rows, with q and k turned."""
        shape = self._shape
        qkv = self._qkv.apply(rms_norm(x, self._attn_norm, shape.norm_epsilon))
        heads = shape.heads + shape.kv_heads  # q's and k's are of one size and lie side by side
        _turn(qkv[:, : heads * shape.key_size].reshape(len(x), heads, shape.key_size), turn)
        return qkv

    def _split(self, qkv: Floats) -> tuple[Floats, Floats, Floats]:
        """[T, ..] to q [H, T, D], k [Hkv, T, D] and v [Hkv, T, Dv]: views."""
        shape, count = self._shape, len(qkv)
        keys_at = shape.heads * shape.key_size
        values_at = keys_at + shape.kv_heads * shape.key_size
        q = qkv[:, :keys_at].reshape(count, shape.heads, shape.key_size)
        k = qkv[:, keys_at:values_at].reshape(count, shape.kv_heads, shape.key_size)
        v = qkv[:, values_at:].reshape(count, shape.kv_heads, shape.value_size)
        return q.swapaxes(0, 1), k.swapaxes(0, 1), v.swapaxes(0, 1)

    def _fed_forward(self, h: Floats) -> Floats:
        both = self._gate_up.apply(rms_norm(h, self._ffn_norm, self._shape.norm_epsilon))
        inner = both.shape[1] // 2
        gated = _silu(both[:, :inner])
        gated *= both[:, inner:]
        y = self._down.apply(gated)
        y += h
        return y


class HostDecoder:
    """As `kernels.decoder.DenseDecoder`; the layers must keep their rows in NumPy."""

    def __init__(self, ends: Ends, blocks: Sequence[HostBlock]) -> None:
        self._embedding, self._output = _host(ends.embedding), _host(ends.output)
        self._norm, self._epsilon = host_view(ends.norm), ends.norm_epsilon
        self._blocks = blocks

    def __call__(
        self, source: Source, layers: Sequence[HostAppender], turn: Turn, logits: Logits
    ) -> mx.array | None:
        """As `kernels.decoder.Decoder`."""
        x = self._rows(source)
        for block, layer in zip(self._blocks, layers, strict=True):
            x = block(x, layer, turn)
        if logits == "none":
            return None
        wanted = x[-1:] if logits == "last" else x
        return mx.array(self._output.apply(rms_norm(wanted, self._norm, self._epsilon)))

    def _rows(self, source: Source) -> Floats:
        if isinstance(source, mx.array):
            return host_view(source)
        return self._embedding.host_rows(source)


def rms_norm(x: Floats, weight: Floats, epsilon: float) -> Floats:
    squares = np.einsum("ti,ti->t", x, x)
    roots = np.sqrt(squares / np.float32(x.shape[1]) + np.float32(epsilon))
    y = x / roots[:, None]
    y *= weight
    return cast(Floats, y)


def _silu(x: Floats) -> Floats:
    """x / (1 + exp(-x)), a new array. Where exp overflows, the quotient is the right 0."""
    y = np.negative(x)
    with np.errstate(over="ignore"):
        np.exp(y, out=y)
    y += 1
    return cast(Floats, np.divide(x, y, out=y))


def _turn(x: Floats, turn: Turn) -> None:
    """Rotate the first 2J values of each head of x [T, H, D] in place, as complex numbers."""
    rotary = 2 * turn.factors.shape[1]
    x[..., :rotary].view(np.complex64)[...] *= turn.factors[:, None]


def _joined(x: Floats) -> Floats:
    """[H, T, Dv] to [T, H * Dv]."""
    return x.swapaxes(0, 1).reshape(x.shape[1], -1)


def _host(linear: Linear) -> HostLinear:
    if not isinstance(linear, HostLinear):
        raise TypeError(f"A matrix is held as {linear.form}, not in NumPy.")
    return linear
