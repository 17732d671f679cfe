"""What was evicted, remembered as digests, so that a later miss can say what it misses.

A few kilobytes each at most, and of each kind only so many: when there are more, what is least
of them goes, measured as evictions are (`cache.eviction`), in tokens. By age alone a minute of side
requests would wipe out what became of the long session beside them.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ds4tui.cache.causes import Cause, Lost
from ds4tui.cache.eviction import value_ms
from ds4tui.cache.timeline import Timeline

_REMEMBERED = 64
# A prompt has a hundred places for them, and each is one digest only.
_REMEMBERED_SNAPSHOTS = 128
_BORDERS = 7
# Nobody misses fewer rows than that, where no border says that they end there.
_FIRST_STEP = 16


@dataclass(frozen=True, slots=True)
class _Tombstone:
    cause: Cause
    number: int  # counts all of them
    tokens: int
    buried_at: float
    digests: tuple[tuple[int, bytes], ...]  # (position, of the ids before it), ascending


class Tombstones:
    """Owned by the engine thread. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # By the digest of all ids, the newest last: what goes again is remembered once.
        self._by_cause: dict[Cause, dict[bytes, _Tombstone]] = {}
        self._count = 0

    def __len__(self) -> int:
        return sum(map(len, self._by_cause.values()))

    def add_rows(
        self, cause: Cause, timeline: Timeline, start: int, borders: Iterable[int] = ()
    ) -> None:
        """Rows of `timeline` from `start` to its end are gone. A wanted timeline that shares it up
        to one of `borders` misses those before; without one, half of what it shares or more."""
        inside = sorted({b for b in borders if start < b < len(timeline)})
        step = max(1, -(-len(inside) // _BORDERS))
        places = (timeline.snapped(place) for place in _places(start, len(timeline)))
        positions = {*inside[::-step], *(p for p in places if p > start), len(timeline)}
        self._add(cause, timeline, len(timeline) - start, sorted(positions))

    def add_snapshot(self, timeline: Timeline, tokens: int) -> None:
        """The bounded part at the end of `timeline` is gone, or was never taken: without it
        `tokens` are to be evaluated again."""
        self._add(Cause.SNAPSHOT_EVICTED, timeline, tokens, (len(timeline),))

    def _add(self, cause: Cause, timeline: Timeline, tokens: int, positions: Iterable[int]) -> None:
        self._count += 1
        digests = tuple((position, timeline.digest(position)) for position in positions)
        stones = self._by_cause.setdefault(cause, {})
        name = digests[-1][1]
        stones.pop(name, None)
        most = _REMEMBERED_SNAPSHOTS if cause is Cause.SNAPSHOT_EVICTED else _REMEMBERED
        if len(stones) >= most:
            now = self._clock()
            del stones[min(stones, key=lambda n: _worth(stones[n], now))]
        stones[name] = _Tombstone(cause, self._count, tokens, self._clock(), digests)

    def lost(self, wanted: Timeline) -> tuple[Lost, ...]:
        """Of everything remembered that shares something with `wanted`: how much; newest first."""
        known: dict[int, bytes] = {}
        stones = itertools.chain.from_iterable(s.values() for s in self._by_cause.values())
        newest_first = sorted(stones, key=lambda stone: -stone.number)
        found = ((stone.cause, _matched(stone, wanted, known)) for stone in newest_first)
        return tuple(Lost(cause, tokens) for cause, tokens in found if tokens)


def _worth(stone: _Tombstone, now: float) -> tuple[float, int]:
    return value_ms(float(stone.tokens), now - stone.buried_at), stone.number


def _places(start: int, end: int) -> Iterator[int]:
    """Inside [start, end), at doubling distance from both ends: people edit the last messages,
    side requests share the first. Those near the end are multiples of their distance, so that
    the digests of many serve one look-up."""
    step = _FIRST_STEP
    while step < end - start:
        yield start + step
        yield (end - step) // step * step
        step *= 2


def _matched(stone: _Tombstone, wanted: Timeline, known: dict[int, bytes]) -> int:
    """The last of its positions up to which both are the same (they are up to all before it)."""
    if not _is_shared(stone.digests[0], wanted, known):
        return 0  # as most: the first is asked first
    low, high = 1, len(stone.digests)
    while low < high:
        middle = (low + high) // 2
        if _is_shared(stone.digests[middle], wanted, known):
            low = middle + 1
        else:
            high = middle
    return stone.digests[low - 1][0]


def _is_shared(place: tuple[int, bytes], wanted: Timeline, known: dict[int, bytes]) -> bool:
    position, digest = place
    if position > len(wanted):
        return False
    if position not in known:
        known[position] = wanted.digest(position)
    return known[position] == digest
