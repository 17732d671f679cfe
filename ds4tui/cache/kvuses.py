"""When records were used, and which are in use now: what is held stays, what is used is worth more.

The index learns of uses with the next record that is written. Any thread.
"""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable

from ds4tui.cache.kvbooks import Books, Entry
from ds4tui.cache.kvindex import GROWTH_BYTES, SteadyIndex
from ds4tui.cache.kvtally import Tally

# A record that was used later than now by more than this tells that the clock was set back.
_CLOCK_SLACK_S = 60.0


class Uses:
    """`lock` is that of the books; `clock` gives seconds since 1970."""

    def __init__(
        self,
        books: Books,
        lock: threading.RLock,
        tally: Tally,
        index: SteadyIndex,
        clock: Callable[[], float],
    ) -> None:
        self._books, self._lock, self._tally = books, lock, tally
        self._index, self._clock = index, clock
        self._new: dict[str, tuple[float, int]] = {}  # that the index does not know yet
        self._in_use: Counter[int] = Counter()

    @property
    def held(self) -> set[int]:
        return set(self._in_use)

    def is_held(self, entry_id: int) -> bool:
        return entry_id in self._in_use

    def touch(self, entries: Iterable[Entry], *, is_hit: bool = False) -> None:
        """They are in use now."""
        now = self._clock()
        with self._lock:
            for entry in entries:
                entry.used_at = now
                entry.hits += is_hit
                if entry.host is None:
                    self._new[entry.head.name] = (now, entry.hits)

    def hold(self, entry_ids: Collection[int], by: int) -> None:
        """They must not make way (by = 1), or may again (by = -1)."""
        with self._lock:
            for entry_id in entry_ids:
                self._in_use[entry_id] += by
            self._in_use += Counter()  # drops what is at 0

    def forget(self, entry: Entry) -> None:
        """The record has gone; the caller holds the lock."""
        self._new.pop(entry.head.name, None)

    def write_down(self, room_bytes: int = GROWTH_BYTES) -> None:
        """What was used since the last time; the index grows by `room_bytes` meanwhile."""
        with self._lock:
            uses = [(name, used_at, hits) for name, (used_at, hits) in self._new.items()]
            self._new.clear()
        self._index.used(uses, room_bytes)

    def now(self) -> float:
        """The time; records that seem to be of the future were used now."""
        now = self._clock()
        with self._lock:
            later = [e for e in self._books.entries.values() if e.used_at > now + _CLOCK_SLACK_S]
            for entry in later:
                entry.used_at = now
        if later:
            self._tally.fault("clock set back")
            self._tally.note("clock", f"{len(later)} records seemed to be of the future")
        return now
