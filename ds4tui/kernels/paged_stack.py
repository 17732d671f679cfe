"""Experts that are copied from the file when a row picks them, for models larger than the memory.

What was copied stays in a cache that all stacks of a model share (`expert_cache.py`).
"""

from collections.abc import Callable, Iterator
from functools import partial

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.kernels.expert_cache import ExpertCache
from ds4tui.kernels.linear import Linear
from ds4tui.kernels.stack import Stack

Runs = Iterator[tuple[int, slice]]


class PagedStack(Stack):
    """`read` makes the product with one expert, evaluated. `nbytes` is what all would take."""

    def __init__(
        self, shape: tuple[int, int, int], read: Callable[[int], Linear], cache: ExpertCache[Linear]
    ) -> None:
        """Reads the first expert to see what one takes. ValueError if the cache cannot hold it."""
        first = read(0)
        self.expert_bytes = first.nbytes
        if self.expert_bytes > cache.stats.budget_bytes:
            raise ValueError(f"An expert takes {first.nbytes} bytes: more than the cache has.")
        super().__init__(shape, shape[0] * self.expert_bytes)
        self.form = f"{first.form}, copied when they are picked"
        self._read, self._cache = read, cache

    def __call__(self, x: mx.array, experts: mx.array) -> mx.array:
        products: list[mx.array] = []
        for expert, rows in _runs(np.asarray(experts)):
            # A product that is not computed yet holds on to its expert: no memory would be freed.
            held = self._cache.get(
                (id(self), expert),
                self.expert_bytes,
                partial(self._read, expert),
                partial(mx.eval, products),
            )
            products.append(held(x[rows]))
        y = mx.concatenate(products)
        mx.eval(y)
        return y


def _runs(chosen: npt.NDArray[np.integer]) -> Runs:
    """Each expert of ascending `chosen` [N], N >= 1, and its rows."""
    experts = chosen.astype(np.int64)
    begins = np.flatnonzero(np.diff(experts, prepend=experts[0] - 1))
    ends = [*begins[1:].tolist(), len(experts)]
    for begin, end in zip(begins.tolist(), ends, strict=True):
        yield int(experts[begin]), slice(begin, end)
