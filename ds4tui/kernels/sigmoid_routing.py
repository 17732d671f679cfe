"""Which experts see a row where each has a probability of its own, in plain MLX.

An expert's probability is sigmoid(score). Chosen are those of the highest probability + bias,
within the groups (of neighbours) whose two highest add up to most; what they give is weighted by
their probabilities without the bias, scaled to a sum of 1 or not, and by a factor.
"""

from dataclasses import dataclass

import mlx.core as mx

SUM_EPSILON = 1e-20  # under the sum that shares are divided by


@dataclass(frozen=True, slots=True)
class SigmoidRouting:
    """As kernels.feed_forward.Route. bias float32 [experts]; `groups_used` of `groups`."""

    bias: mx.array
    used: int
    factor: float = 1.0
    is_normed: bool = True
    groups: int = 1
    groups_used: int = 1

    def __call__(self, scores: mx.array) -> tuple[mx.array, mx.array]:
        shares = mx.sigmoid(scores)
        wanted = self._within_groups(shares + self.bias)
        chosen = mx.argpartition(-wanted, self.used - 1, axis=-1)[:, : self.used]
        shares = mx.take_along_axis(shares, chosen, axis=-1)
        if self.is_normed:
            shares = shares / (shares.sum(axis=-1, keepdims=True) + SUM_EPSILON)
        return chosen, shares * self.factor

    def _within_groups(self, wanted: mx.array) -> mx.array:
        if self.groups_used >= self.groups:
            return wanted
        grouped = wanted.reshape(wanted.shape[0], self.groups, -1)
        best = mx.sort(grouped, axis=-1)[..., -2:].sum(axis=-1)
        left = mx.argpartition(-best, self.groups_used - 1, axis=-1)[:, : self.groups_used]
        is_left = (left[..., None] == mx.arange(self.groups)).any(axis=1)
        return mx.where(is_left[..., None], grouped, -mx.inf).reshape(wanted.shape)
