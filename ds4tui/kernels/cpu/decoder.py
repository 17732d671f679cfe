"""The CPU twin of a whole decoder step: NumPy from the token ids to the logits.

MLX's small operations cost about 50 µs each on a CPU and a step has hundreds; NumPy's cost 1 to
5 µs. Matrices that read the same rows are laid side by side (q, k and v; gate and up), so a block
has four products. Written in place where the array was made here; never into what a caller holds.
"""

from collections.abc import Sequence
from typing import Protocol, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.kernels.block import BlockShape, BlockWeights
from ds4tui.kernels.cpu.attention import host_attend
from ds4tui.kernels.cpu.linear import HostLinear, host_view
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

    def __call__(self, x: Floats, layer: HostAppender, turn: Turn) -> Floats:
        epsilon = self._shape.norm_epsilon
        h = self._attention(rms_norm(x, self._attn_norm, epsilon), layer, turn)
        h += x
        y = self._feed_forward(rms_norm(h, self._ffn_norm, epsilon))
        y += h
        return y

    def _attention(self, n: Floats, layer: HostAppender, turn: Turn) -> Floats:
        shape, first, count = self._shape, layer.length, n.shape[0]
        ends = np.cumsum([shape.heads * shape.key_size, shape.kv_heads * shape.key_size])
        q, k, v = np.split(self._qkv.apply(n), ends, axis=1)
        heads = (count, shape.heads, shape.key_size)
        kv_heads = (count, shape.kv_heads, shape.key_size)
        keys, values = layer.append(
            _turned(k.reshape(kv_heads), turn).swapaxes(0, 1),
            v.reshape(count, shape.kv_heads, shape.value_size).swapaxes(0, 1),
        )
        turned = _turned(q.reshape(heads), turn).swapaxes(0, 1)
        mixed = host_attend(turned, keys, values, shape.scale, first)
        return self._output.apply(mixed.swapaxes(0, 1).reshape(count, -1))

    def _feed_forward(self, m: Floats) -> Floats:
        both = self._gate_up.apply(m)
        half = both.shape[1] // 2
        return self._down.apply(_silu(both[:, :half]) * both[:, half:])


class HostDecoder:
    """As `kernels.decoder.DenseDecoder`; the layers must keep their rows in NumPy."""

    def __init__(self, ends: Ends, blocks: Sequence[HostBlock]) -> None:
        self._embedding, self._output = _host(ends.embedding), _host(ends.output)
        self._norm, self._epsilon = host_view(ends.norm), ends.norm_epsilon
        self._blocks = blocks

    def __call__(
        self, source: Source, layers: Sequence[HostAppender], turn: Turn, logits: Logits
    ) -> mx.array | None:
        """As `DenseDecoder.__call__`."""
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
    """x / (1 + exp(-x)). Where exp overflows, the quotient is the right 0."""
    y = np.negative(x)
    with np.errstate(over="ignore"):
        np.exp(y, out=y)
    y += 1
    return cast(Floats, np.divide(x, y, out=y))


def _turned(x: Floats, turn: Turn) -> Floats:
    """x [T, H, D], whose first 2J values of a head are rotated: a product of complex numbers."""
    rotary = 2 * turn.factors.shape[1]
    if rotary == x.shape[-1]:
        turned = np.ascontiguousarray(x).view(np.complex64) * turn.factors[:, None]
        return turned.view(np.float32)
    out = np.array(x)
    out[..., :rotary] = _turned(x[..., :rotary], turn)
    return out


def _host(linear: Linear) -> HostLinear:
    if not isinstance(linear, HostLinear):
        raise TypeError(f"A matrix is held as {linear.form}, not in NumPy.")
    return linear
