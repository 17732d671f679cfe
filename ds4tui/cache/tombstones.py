"""What was evicted, remembered as digests, so that a later miss can say what it misses.

A few hundred bytes each, and of each kind only the newest are remembered.
"""

import itertools
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from ds4tui.cache.causes import Cause, Lost
from ds4tui.cache.timeline import Timeline

_REMEMBERED = 64
_POSITIONS = 8


@dataclass(frozen=True, slots=True)
class _Tombstone:
    cause: Cause
    number: int  # counts all of them
    digests: tuple[tuple[int, bytes], ...]  # (position, of the ids before it), ascending


class Tombstones:
    """Owned by the engine thread."""

    def __init__(self) -> None:
        self._by_cause: dict[Cause, deque[_Tombstone]] = {}
        self._count = 0

    def add(self, cause: Cause, timeline: Timeline, borders: Iterable[int] = ()) -> None:
        """Something of `timeline`, up to its end, is gone; a wanted timeline that shares it up
        to one of `borders` misses it too."""
        self._count += 1
        positions = sorted({b for b in borders if 0 < b < len(timeline)})
        step = max(1, -(-len(positions) // (_POSITIONS - 1)))
        chosen = [*positions[::-step][::-1], len(timeline)]
        digests = tuple((position, timeline.digest(position)) for position in chosen)
        self._by_cause.setdefault(cause, deque(maxlen=_REMEMBERED)).append(
            _Tombstone(cause, self._count, digests)
        )

    def lost(self, wanted: Timeline) -> tuple[Lost, ...]:
        """Of everything remembered that shares something with `wanted`: how much; newest first."""
        known: dict[int, bytes] = {}
        stones = itertools.chain.from_iterable(self._by_cause.values())
        newest_first = sorted(stones, key=lambda stone: -stone.number)
        found = ((stone.cause, _matched(stone, wanted, known)) for stone in newest_first)
        return tuple(Lost(cause, tokens) for cause, tokens in found if tokens)


def _matched(stone: _Tombstone, wanted: Timeline, known: dict[int, bytes]) -> int:
    """The last of its positions up to which both are the same (they are up to all before it)."""
    low, high = 0, len(stone.digests)
    while low < high:
        middle = (low + high) // 2
        position, digest = stone.digests[middle]
        if position > len(wanted) or _digest(wanted, position, known) != digest:
            high = middle
        else:
            low = middle + 1
    return stone.digests[low - 1][0] if low else 0


def _digest(wanted: Timeline, position: int, known: dict[int, bytes]) -> bytes:
    if position not in known:
        known[position] = wanted.digest(position)
    return known[position]
