"""How often snapshots are taken, and which old ones stay. Pure.

A snapshot of a recurrent or windowed state takes as much memory as hundreds or thousands of rows
(147 MB for a 27B model with 48 recurrent layers), so not every position can have one. Near the
end, where people and agents fork most, they stand close; the farther back, the farther apart.
How far follows from how many the budget pays for; how often new ones are taken, from what one
costs beside the tokens it covers.

  (1) What stays is a part of what was there; the newest and the protected ones always stay.
  (2) While the budget (or the most that look-ups can bear) pays for all, all stay.
  (3) No more stay than it pays for, but for those of (1).
  (4) Thinning what was thinned changes nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ds4tui.cache.offers import Rates

# Places at which conversations fork; the others only shorten a replay.
FORK_POINTS = ("system", "turn", "image", "before last")

# A replay of so many tokens goes unnoticed beside the step that asks for it.
_LEAST_SPACING = 16

# Copying snapshots may take this part of the time that decoding takes.
_SHARE_OF_DECODING = 0.01

# Distance over gap: each is tried in turn until few enough stay.
_GROWTHS = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a snapshot stands. A protected one stays: another branch leans on it."""

    position: int
    point: str
    is_protected: bool = False


def spacing_tokens(snapshot_bytes: int, rates: Rates) -> int:
    """How many decoded tokens lie between two snapshots: a power of two, 16 or more, so that
    copying them takes at most 1 % of the decoding."""
    copy_s = snapshot_bytes / rates.copy_bytes_per_s
    least = copy_s * rates.decode_tokens_per_s / _SHARE_OF_DECODING
    return max(_LEAST_SPACING, 1 << math.ceil(math.log2(max(1.0, least))))


def staying(places: Sequence[Place], affordable: int, spacing: int) -> frozenset[int]:
    """Positions of the snapshots of one branch that stay, if `affordable` may. `places` have
    different positions; `spacing` is the smallest gap that is worth a snapshot."""
    if len(places) <= affordable:
        return frozenset(place.position for place in places)
    newest = max(place.position for place in places)
    always = {p.position for p in places if p.is_protected or p.point == "system"} | {newest}
    kept = always
    for growth in _GROWTHS:
        kept = always | _spread(places, newest, growth, spacing)
        if len(kept) <= affordable:
            return frozenset(kept)
    room = max(0, affordable - len(always))
    nearest = sorted(kept - always, reverse=True)
    return frozenset(always | set(nearest[:room]))


def _spread(places: Sequence[Place], newest: int, growth: float, spacing: int) -> set[int]:
    """From the newest back: the farthest within the gap that its distance allows, a fork point
    before others; the nearest one if none is within."""
    older = sorted((p for p in places if p.position < newest), key=lambda p: -p.position)
    kept, at, i = {newest}, newest, 0
    while i < len(older):
        gap = max(spacing, growth * (newest - at))
        within = i
        while within < len(older) and at - older[within].position <= gap:
            within += 1
        reachable = range(i, max(within, i + 1))
        i = max(reachable, key=lambda j: (older[j].point in FORK_POINTS, j))
        at = older[i].position
        kept.add(at)
        i += 1
    return kept
