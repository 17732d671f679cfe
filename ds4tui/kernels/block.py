"""One dense transformer block, in plain MLX: the reference of its twins.

h = x + Wo · attention(rope(Wq n), rope(Wk n), Wv n)   with n = RMSNorm(x)
y = h + Wdown · (silu(Wgate m) * (Wup m))              with m = RMSNorm(h)
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from ds4tui.kernels.linear import Linear
from ds4tui.kernels.rope import turned

Attend = Callable[[mx.array, mx.array, mx.array, float, int], mx.array]
Cosines = tuple[mx.array, mx.array]  # of Turn.device


class KVAppender(Protocol):
    """Where a block keeps its keys and values (engine/state.py)."""

    @property
    def length(self) -> int: ...
    def append(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]: ...
    def buffers(self) -> list[mx.array]: ...


@dataclass(frozen=True, slots=True)
class BlockShape:
    heads: int
    kv_heads: int
    key_size: int  # of one head
    value_size: int
    norm_epsilon: float
    scale: float  # of the scores


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """Vectors float32; matrices in whatever form their Linear holds them."""

    attn_norm: mx.array
    q: Linear
    k: Linear
    v: Linear
    output: Linear
    ffn_norm: mx.array
    gate: Linear
    up: Linear
    down: Linear

    @property
    def matrices(self) -> tuple[Linear, ...]:
        return self.q, self.k, self.v, self.output, self.gate, self.up, self.down


class Block:
    """x [T, width] to [T, width] in the dtype of x; appends T rows to the layer's KV."""

    def __init__(self, weights: BlockWeights, shape: BlockShape, attend: Attend) -> None:
        self._w, self._shape, self._attend = weights, shape, attend

    def __call__(self, x: mx.array, layer: KVAppender, turn: Cosines) -> mx.array:
        w, epsilon = self._w, self._shape.norm_epsilon
        h = x + self._attention(rms_norm(x, w.attn_norm, epsilon), layer, turn)
        m = rms_norm(h, w.ffn_norm, epsilon)
        return h + w.down(silu(w.gate(m)) * w.up(m))

    def _attention(self, n: mx.array, layer: KVAppender, turn: Cosines) -> mx.array:
        w, shape, first = self._w, self._shape, layer.length
        q = turned(_heads(w.q(n), shape.heads), *turn)
        k = turned(_heads(w.k(n), shape.kv_heads), *turn)
        keys, values = layer.append(k, _heads(w.v(n), shape.kv_heads))
        mixed = self._attend(q, keys, values, shape.scale, first)  # [H, T, Dv]
        return w.output(mixed.swapaxes(0, 1).reshape(n.shape[0], -1))


def rms_norm(x: mx.array, weight: mx.array, epsilon: float) -> mx.array:
    """x / sqrt(mean(x²) + epsilon) * weight over the last axis, in the dtype of x."""
    return mx.fast.rms_norm(x, weight.astype(x.dtype), epsilon)


def silu(x: mx.array) -> mx.array:
    return x * mx.sigmoid(x)


def _heads(x: mx.array, heads: int) -> mx.array:
    """[T, H * D] to [H, T, D]."""
    return x.reshape(x.shape[0], heads, -1).swapaxes(0, 1)
