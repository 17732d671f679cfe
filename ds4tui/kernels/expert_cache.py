"""Experts that were copied from the file, within a budget: the least recently used goes first.

For mixtures of experts larger than the memory. MLX cannot map a file, so what a token picks has
to be copied; what is picked again is found here. Needs no mlx.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Held(Protocol):
    @property
    def nbytes(self) -> int: ...


H = TypeVar("H", bound=Held)


@dataclass(frozen=True, slots=True)
class ExpertStats:
    """Since the model was opened, but for the first three. A matrix of one expert counts as one;
    `read_bytes` are as it is held, `read_ms` the time of reading, unpacking and copying."""

    budget_bytes: int
    resident_bytes: int = 0
    resident: int = 0
    hits: int = 0
    misses: int = 0
    evicted: int = 0
    read_bytes: int = 0
    read_ms: float = 0.0


class ExpertCache(Generic[H]):
    """Owned by the engine thread; `stats` may be read by any."""

    def __init__(self, budget_bytes: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.stats = ExpertStats(budget_bytes)
        self._clock = clock
        self._held: OrderedDict[Hashable, H] = OrderedDict()

    @property
    def unfilled_bytes(self) -> int:
        """What it may yet take."""
        return max(0, self.stats.budget_bytes - self.stats.resident_bytes)

    def holds(self, key: Hashable) -> bool:
        return key in self._held

    def get(
        self, key: Hashable, nbytes: int, read: Callable[[], H], let_go: Callable[[], None]
    ) -> H:
        """What `key` names: held, or `read` now, when it takes about `nbytes`. `let_go` is called
        before others make room for it, for whoever still has work to do with them."""
        held = self._held.get(key)
        if held is not None:
            self._held.move_to_end(key)
            self._count(hits=1)
            return held
        if nbytes > self.unfilled_bytes:
            let_go()
            self._make_room(nbytes)
        began_s = self._clock()
        held = self._held[key] = read()
        took_ms = (self._clock() - began_s) * 1e3
        self._count(misses=1, read_bytes=held.nbytes, read_ms=took_ms, resident_bytes=held.nbytes)
        return held

    def _make_room(self, nbytes: int) -> None:
        while self._held and nbytes > self.unfilled_bytes:
            _, gone = self._held.popitem(last=False)
            self._count(evicted=1, resident_bytes=-gone.nbytes)

    def _count(
        self,
        hits: int = 0,
        misses: int = 0,
        evicted: int = 0,
        resident_bytes: int = 0,
        read_bytes: int = 0,
        read_ms: float = 0.0,
    ) -> None:
        was = self.stats
        self.stats = ExpertStats(
            was.budget_bytes,
            was.resident_bytes + resident_bytes,
            len(self._held),
            was.hits + hits,
            was.misses + misses,
            was.evicted + evicted,
            was.read_bytes + read_bytes,
            was.read_ms + read_ms,
        )
