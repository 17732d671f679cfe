"""Residual streams mixed by doubly stochastic matrices, in plain MLX (manifold-constrained
hyper-connections: Xie et al. 2025, arXiv 2512.24880; as GLM-5.3-Flash has them).

Of n streams x_i, each of `width`, and m = Wfn RMSNorm([x_1 | .. | x_n]), 2n + n² numbers that
are scaled (one factor for each of three kinds) and shifted:
    pre     = sigmoid(m_pre) + ε,  post = 2 sigmoid(m_post)              n numbers each
    comb    = softmax over rows of m_comb, + ε; columns, then in turn rows and columns, are
              divided by their sums + ε                                  n x n
    input   = RMSNorm(Σ_i pre_i x_i) * w
    x_k     = post_k part(input) + Σ_j comb_jk x_j
All of this is float32.
"""

from dataclasses import dataclass

import mlx.core as mx

from ds4tui.kernels.block import rms_norm
from ds4tui.kernels.linear import Linear


@dataclass(frozen=True, slots=True)
class HyperShape:
    """`rounds` of dividing columns by their sums; `sum_epsilon` is the ε above."""

    streams: int
    rounds: int
    sum_epsilon: float
    norm_epsilon: float


@dataclass(frozen=True, slots=True)
class HyperWeights:
    """function [2n + n², n * width], held in float32; scale [3]; base [2n + n²]; norm [width], of
    what the part takes."""

    function: Linear
    scale: mx.array
    base: mx.array
    norm: mx.array


class HyperConnection:
    """Streams float32 [T, n, width]."""

    def __init__(self, weights: HyperWeights, shape: HyperShape) -> None:
        self._w, self._shape, n = weights, shape, shape.streams
        sizes = (n, n, n * n)
        scales = [mx.broadcast_to(weights.scale[i], (size,)) for i, size in enumerate(sizes)]
        self._scale = mx.concatenate(scales)

    def read(self, streams: mx.array) -> tuple[mx.array, tuple[mx.array, mx.array]]:
        """What a part of the model takes, [T, width]; post [T, n] and comb [T, n, n]."""
        w, shape, n = self._w, self._shape, self._shape.streams
        flat = streams.reshape(streams.shape[0], -1)
        normed = mx.fast.rms_norm(flat, None, shape.norm_epsilon)
        mixes = w.function(normed) * self._scale + w.base
        pre, post, comb = mx.split(mixes, [n, 2 * n], axis=-1)
        pre = mx.sigmoid(pre) + shape.sum_epsilon
        taken = (pre[:, :, None] * streams).sum(axis=1)
        comb = mx.softmax(comb.reshape(-1, n, n), axis=-1) + shape.sum_epsilon
        known = 2 * mx.sigmoid(post), self._balanced(comb)
        return rms_norm(taken, w.norm, shape.norm_epsilon), known

    def written(
        self, streams: mx.array, known: tuple[mx.array, mx.array], given: mx.array
    ) -> mx.array:
        """The streams after a part that gave [T, width]."""
        post, comb = known
        new = post[:, :, None] * given.astype(mx.float32)[:, None]
        return new + mixed(comb, streams)

    def _balanced(self, comb: mx.array) -> mx.array:
        """Sinkhorn and Knopp's way to rows and columns of sum 1."""
        epsilon = self._shape.sum_epsilon
        comb = comb / (comb.sum(axis=-2, keepdims=True) + epsilon)
        for _ in range(self._shape.rounds - 1):
            comb = comb / (comb.sum(axis=-1, keepdims=True) + epsilon)
            comb = comb / (comb.sum(axis=-2, keepdims=True) + epsilon)
        return comb


@dataclass(frozen=True, slots=True)
class HyperHead:
    """What stands behind the last part of DeepSeek V4: Σ_i pre_i x_i, and a norm. function
    [n, n * width], held in float32; scale [1]; base [n]; norm [width]."""

    function: Linear
    scale: mx.array
    base: mx.array
    norm: mx.array

    def __call__(self, streams: mx.array, shape: HyperShape) -> mx.array:
        flat = streams.reshape(streams.shape[0], -1)
        mixes = self.function(mx.fast.rms_norm(flat, None, shape.norm_epsilon))
        pre = mx.sigmoid(mixes * self.scale + self.base) + shape.sum_epsilon
        return rms_norm((pre[:, :, None] * streams).sum(axis=1), self.norm, shape.norm_epsilon)


def mixed(comb: mx.array, streams: mx.array) -> mx.array:
    """Σ_j comb_jk x_j of each row, as sums: MLX's products on CUDA keep 10 bits."""
    return (comb[..., None] * streams[:, :, None]).sum(axis=1)
