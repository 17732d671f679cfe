"""One transformer block, in plain MLX: the reference of its twins.

h = x + Wo · attention(rope(Wq n), rope(Wk n), Wv n)   with n = RMSNorm(x)
y = h + feed_forward(m)                                with m = RMSNorm(h)

Some families also normalise each head of Wq n and Wk n before they are turned, and each of the
two sums' second terms; some look at no more than the last `window` rows; some multiply what
attention gives by sigmoid(Wg n).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.kernels.attention import attend_images
from ds4tui.kernels.feed_forward import FeedForwardWeights, feed_forward
from ds4tui.kernels.linear import Linear
from ds4tui.kernels.rope import turned

Attend = Callable[[mx.array, mx.array, mx.array, float, int, int | None], mx.array]
Cosines = tuple[mx.array, mx.array]  # of Turn.device
Sight = npt.NDArray[np.int32]


class KVAppender(Protocol):
    """Where a block keeps its keys and values (engine/state/)."""

    @property
    def length(self) -> int: ...
    def append(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Add rows; those up to the last one, with all that the new rows' queries see."""

    def buffers(self) -> list[mx.array]: ...


@dataclass(frozen=True, slots=True)
class BlockShape:
    heads: int
    kv_heads: int
    key_size: int  # of one head
    value_size: int
    norm_epsilon: float
    scale: float  # of the scores
    window: int | None = None  # rows that a query sees, itself among them; None: all before it
    turn: int = 0  # which of the step's rotations turns this block's heads
    gated: bool = False  # q gives the queries of all heads, then the gates of what they mix

    @property
    def row_values(self) -> int:
        """Of the keys and values of one row."""
        return self.kv_heads * (self.key_size + self.value_size)


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """The norms, where a family has them, are of each head: [key_size]."""

    q: Linear
    k: Linear
    v: Linear
    output: Linear
    q_norm: mx.array | None = None
    k_norm: mx.array | None = None


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """Vectors float32; matrices in whatever form their Linear holds them. The post norms, where
    a family has them, are of what attention and feed-forward return."""

    attn_norm: mx.array
    attention: AttentionWeights
    ffn_norm: mx.array
    feed_forward: FeedForwardWeights
    attn_post_norm: mx.array | None = None
    ffn_post_norm: mx.array | None = None


class Block:
    """x [T, width] to [T, width], float32; appends T rows to the layer's KV.

    Attention and feed-forward work in `dtype`, their sum is kept in float32: in some families
    (Gemma) it grows beyond float16.
    """

    def __init__(
        self,
        weights: BlockWeights,
        shape: BlockShape,
        attend: Attend,
        dtype: mx.Dtype = mx.float32,
    ) -> None:
        self.shape = shape
        self._w, self._attend, self._dtype = weights, attend, dtype
        self._feed_forward = feed_forward(weights.feed_forward)

    def __call__(
        self, x: mx.array, layer: KVAppender, turn: Cosines, sight: Sight | None = None
    ) -> mx.array:
        """`sight` is that of `kernels.decoder.ImageRows`."""
        w = self._w
        mixed = self._attention(self._norm(x, w.attn_norm).astype(self._dtype), layer, turn, sight)
        h = x + self._norm(mixed.astype(mx.float32), w.attn_post_norm)
        fed = self._feed_forward(self._norm(h, w.ffn_norm).astype(self._dtype))
        return h + self._norm(fed.astype(mx.float32), w.ffn_post_norm)

    def _attention(
        self, n: mx.array, layer: KVAppender, turn: Cosines, sight: Sight | None
    ) -> mx.array:
        w, shape = self._w.attention, self.shape
        queries, gates = w.q(n), None
        if shape.gated:
            queries, gates = mx.split(queries, [shape.heads * shape.key_size], axis=-1)
        q = self._norm(_heads(queries, shape.heads), w.q_norm)
        k = self._norm(_heads(w.k(n), shape.kv_heads), w.k_norm)
        keys, values = layer.append(turned(k, *turn), _heads(w.v(n), shape.kv_heads))
        first = keys.shape[1] - n.shape[0]  # of these rows, which may begin late in the sequence
        heads = turned(q, *turn), keys, values, shape.scale, first, shape.window
        mixed = self._attend(*heads) if sight is None else attend_images(*heads, sight)
        mixed = mixed.swapaxes(0, 1).reshape(n.shape[0], -1)
        return w.output(mixed if gates is None else mixed * mx.sigmoid(gates))

    def _norm(self, x: mx.array, weight: mx.array | None) -> mx.array:
        return x if weight is None else rms_norm(x, weight, self.shape.norm_epsilon)


def rms_norm(x: mx.array, weight: mx.array, epsilon: float) -> mx.array:
    """x / sqrt(mean(x²) + epsilon) * weight over the last axis, in the dtype of x."""
    return mx.fast.rms_norm(x, weight.astype(x.dtype), epsilon)


def _heads(x: mx.array, heads: int) -> mx.array:
    """[T, H * D] to [H, T, D]."""
    return x.reshape(x.shape[0], heads, -1).swapaxes(0, 1)
