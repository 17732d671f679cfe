"""Experts that are copied from the file when a row picks them, for models larger than the memory.

What was copied stays in a cache that all stacks of a model share (`expert_cache.py`). Those that
are missing are read and unpacked on threads, some ahead of the one whose product is made.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from typing import Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.kernels.cpu.threads import cpus
from ds4tui.kernels.expert_cache import ExpertCache
from ds4tui.kernels.linear import Linear
from ds4tui.kernels.stack import Stack

Runs = list[tuple[int, slice]]

# Unpacking is NumPy's, which lets go of the interpreter's lock: 190 to 1,600 MB/s a thread.
_READERS_MAX = 8


class ExpertSource(Protocol):
    """One expert in the file."""

    def unpack(self) -> None:
        """The part of reading it that needs no device; on any thread."""

    def linear(self) -> Linear:
        """Its product, evaluated; on the engine thread."""


class PagedStack(Stack):
    """`source` names an expert in the file. `nbytes` is what all would take."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        source: Callable[[int], ExpertSource],
        cache: ExpertCache[Linear],
    ) -> None:
        """Reads the first expert to see what one takes. ValueError if the cache cannot hold it."""
        first = source(0).linear()
        self.expert_bytes = first.nbytes
        if self.expert_bytes > cache.stats.budget_bytes:
            raise ValueError(f"An expert takes {first.nbytes} bytes: more than the cache has.")
        super().__init__(shape, shape[0] * self.expert_bytes)
        self.form = f"{first.form}, copied when they are picked"
        self._source, self._cache = source, cache

    def __call__(self, x: mx.array, experts: mx.array) -> mx.array:
        runs = _runs(np.asarray(experts))
        products: list[mx.array] = []
        missing = [e for e, _ in runs if not self._cache.holds((id(self), e))]
        ahead = _Ahead(missing, self._source)
        for expert, rows in runs:
            # A product that is not computed yet holds on to its expert: no memory would be freed.
            held = self._cache.get(
                (id(self), expert),
                self.expert_bytes,
                partial(ahead.linear, expert),
                partial(mx.eval, products),
            )
            products.append(held(x[rows]))
        y = mx.concatenate(products)
        if missing:
            mx.eval(y)
        return y


class _Ahead:
    """Reads `missing` experts in their order, some ahead of the one that is asked for."""

    def __init__(self, missing: list[int], source: Callable[[int], ExpertSource]) -> None:
        self._next = iter(missing)
        self._source = source
        self._begun: dict[int, tuple[ExpertSource, Future[None]]] = {}
        for _ in range(reader_count()):
            self._begin()

    def _begin(self) -> None:
        expert = next(self._next, None)
        if expert is not None:
            source = self._source(expert)
            self._begun[expert] = source, _readers().submit(source.unpack)

    def linear(self, expert: int) -> Linear:
        """One that is asked for though it was not missing was let go meanwhile."""
        begun = self._begun.pop(expert, None)
        if begun is None:
            return self._source(expert).linear()
        source, unpacking = begun
        unpacking.result()
        self._begin()
        return source.linear()


def reader_count() -> int:
    return min(_READERS_MAX, cpus())


@cache
def _readers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(reader_count(), thread_name_prefix="ds4tui-experts")


def _runs(chosen: npt.NDArray[np.integer]) -> Runs:
    """Each expert of ascending `chosen` [N], N >= 1, and its rows."""
    experts = chosen.astype(np.int64)
    begins = np.flatnonzero(np.diff(experts, prepend=experts[0] - 1)).tolist()
    ends = [*begins[1:], len(experts)]
    return [(int(experts[b]), slice(b, e)) for b, e in zip(begins, ends, strict=True)]
