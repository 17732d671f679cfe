"""Which experts see a row where all share one softmax, in plain MLX (DeepSeek V2).

Chosen are the likeliest; what they give is weighted by their probabilities among all experts,
scaled to a sum of 1 or not, and by a factor.
"""

from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True, slots=True)
class SoftmaxRouting:
    """As kernels.feed_forward.Route."""

    used: int
    factor: float = 1.0
    is_normed: bool = False

    def __call__(self, scores: mx.array) -> tuple[mx.array, mx.array]:
        shares = mx.softmax(scores, axis=-1)
        chosen = mx.argpartition(-shares, self.used - 1, axis=-1)[:, : self.used]
        shares = mx.take_along_axis(shares, chosen, axis=-1)
        if self.is_normed:
            shares = shares / shares.sum(axis=-1, keepdims=True)
        return chosen, shares * self.factor
