"""Residual streams that are mixed by gates of low rank, in plain MLX (Qwen3.8-Flash-Next).

Of n streams x_i, each of `width`, and N = [RMSNorm(x_1) * w_1 | .. | RMSNorm(x_n) * w_n]:
    input   = mean_i(g_i * N_i)                 g = sigmoid(Wup silu(Wdown N / n))
    x_i     = x_i + share_i * part(input)       share = 2 sigmoid(Winject N / n)
The last mixing of a model, before its output matrix, has no Winject.
"""

from dataclasses import dataclass

import mlx.core as mx

from ds4tui.kernels.feed_forward import silu
from ds4tui.kernels.linear import Linear


@dataclass(frozen=True, slots=True)
class LowRankWeights:
    """norm float32 [n, width]; the matrices [rank, n * width], [n * width, rank] and, but for the
    last mixing, [n, n * width]."""

    norm: mx.array
    down: Linear
    up: Linear
    inject: Linear | None = None


class LowRankMixing:
    """Streams float32 [T, n, width]. Products are made in `dtype`, but for the shares."""

    def __init__(self, weights: LowRankWeights, epsilon: float, dtype: mx.Dtype) -> None:
        self._w, self._epsilon, self._dtype = weights, epsilon, dtype

    def read(self, streams: mx.array) -> tuple[mx.array, mx.array | None]:
        """What a part of the model takes, float32 [T, width], and the shares [T, n] in which the
        streams take what it gives; None where there is no matrix for them."""
        w, count = self._w, streams.shape[1]
        normed = mx.fast.rms_norm(streams, None, self._epsilon) * w.norm
        flat = normed.reshape(streams.shape[0], -1)
        low = silu(w.down(flat.astype(self._dtype)).astype(mx.float32) / count)
        gates = mx.sigmoid(w.up(low.astype(self._dtype)).astype(mx.float32))
        mixed = (gates.reshape(normed.shape) * normed).mean(axis=1)
        if w.inject is None:
            return mixed, None
        return mixed, 2 * mx.sigmoid(w.inject(flat) / count)

    @staticmethod
    def written(streams: mx.array, shares: mx.array | None, given: mx.array) -> mx.array:
        """The streams after a part that gave [T, width]."""
        assert shares is not None
        return streams + shares[:, :, None] * given.astype(mx.float32)[:, None]
