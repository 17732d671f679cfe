"""What goes when room is needed. Pure.

The value of a thing is the time that it would take to compute it again, halved for each half-life
since its last use. Not the time per byte: all rows of a model cost about the same each, so age
alone would decide, and a side request of a minute ago would push out the long session beside it.

  (1) What goes makes enough room, or nothing goes.
  (2) Nothing that is to be kept goes, and nothing that is worth as much as what it makes way for.
  (3) A stem goes after all that leans on it.
  (4) Among leaves the least valuable goes first; to be worth more never makes a thing go.
"""

import heapq
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

# A long session of yesterday evening should give way to this morning's work, one left for lunch
# should not: after an hour a thing counts half.
HALF_LIFE_S = 3600.0


@dataclass(frozen=True, slots=True)
class Weighed:
    """`stems` are ids of what this one leans on."""

    entry_id: int
    value_ms: float
    nbytes: int
    stems: frozenset[int] = frozenset()


def value_ms(recompute_ms: float, age_s: float) -> float:
    """`age_s` is the time since its last use."""
    half_lives = max(0.0, age_s) / HALF_LIFE_S
    return recompute_ms * math.pow(0.5, half_lives)


def victims(
    weighed: Sequence[Weighed],
    excess_bytes: int,
    keep: Collection[int] = (),
    worth_ms: float = float("inf"),
    excess_count: int = 0,
) -> tuple[int, ...] | None:
    """Ids of what goes, in order, to free `excess_bytes` and `excess_count` places for something
    worth `worth_ms`; None if that cannot be."""
    by_id = {entry.entry_id: entry for entry in weighed}
    leaning = Counter(stem for entry in weighed for stem in entry.stems)
    leaves = [_order(entry) for entry in weighed if not leaning[entry.entry_id]]
    heapq.heapify(leaves)
    gone: list[int] = []
    while excess_bytes > 0 or excess_count > len(gone):
        if not leaves:
            return None
        value, _, entry_id = heapq.heappop(leaves)
        if entry_id in keep:
            continue
        if value >= worth_ms:
            return None
        entry = by_id[entry_id]
        gone.append(entry_id)
        excess_bytes -= entry.nbytes
        for stem in entry.stems & by_id.keys():
            leaning[stem] -= 1
            if not leaning[stem]:
                heapq.heappush(leaves, _order(by_id[stem]))
    return tuple(gone)


def _order(entry: Weighed) -> tuple[float, int, int]:
    # Of equal worth the larger goes: fewer have to.
    return (entry.value_ms, -entry.nbytes, entry.entry_id)
