"""Which experts see a row in DeepSeek V4, in plain MLX.

An expert's weight is sqrt(softplus(score)). Chosen are those of the highest weight + bias, or, in
the first blocks, those that a table has for the row's token; their weights are scaled to a sum of
1, and by a factor.
"""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.kernels.sigmoid_routing import SUM_EPSILON


@dataclass(frozen=True, slots=True)
class SoftplusRouting:
    """As kernels.feed_forward.Route. bias float32 [experts]."""

    bias: mx.array
    used: int
    factor: float

    def __call__(self, scores: mx.array) -> tuple[mx.array, mx.array]:
        weights = _weights(scores)
        wanted = -(weights + self.bias)
        chosen = mx.argpartition(wanted, self.used - 1, axis=-1)[:, : self.used]
        return chosen, _shares(weights, chosen, self.factor)


class TokenRouting:
    """As kernels.feed_forward.Route, of rows whose `ids` int64 [T] are told before each step.
    table int [vocab, used]."""

    def __init__(self, table: npt.NDArray[np.integer], factor: float) -> None:
        self._table, self._factor = table, factor
        self.ids: npt.NDArray[np.int64] | None = None

    def __call__(self, scores: mx.array) -> tuple[mx.array, mx.array]:
        """ValueError for rows whose ids nobody told."""
        if self.ids is None or len(self.ids) != scores.shape[0]:
            raise ValueError("This model chooses experts by ids: rows need them.")
        chosen = mx.array(self._table[self.ids].astype(np.uint32))
        return chosen, _shares(_weights(scores), chosen, self._factor)


def _weights(scores: mx.array) -> mx.array:
    return mx.sqrt(mx.logaddexp(scores, mx.zeros_like(scores)))


def _shares(weights: mx.array, chosen: mx.array, factor: float) -> mx.array:
    shares = mx.take_along_axis(weights, chosen, axis=-1)
    return shares / (shares.sum(axis=-1, keepdims=True) + SUM_EPSILON) * factor
