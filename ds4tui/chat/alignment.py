"""The same text in the tokens that are resident.

A reply that comes back as text may be spelt in other tokens than were sampled, and one that
differs costs all that comes after it. Where both timelines spell the same bytes, the resident
one's tokens are as good: they are taken up to the last place where both have a border between
tokens. Control tokens, and those that texts of people must not make, stand for themselves only,
never for their bytes; images likewise.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ds4tui.cache.outline import Outline
from ds4tui.cache.timeline import ImageSpan, Timeline

Ids = npt.NDArray[np.int64]

# The bytes of a token, None for one that stands for itself only.
Spelling = Callable[[int], bytes | None]


@dataclass(frozen=True, slots=True)
class Aligned:
    """`timeline` spells what was wanted. `runs` are (wanted, resident, n): from these positions
    on n ids are the same in both; between runs they spell the same bytes."""

    timeline: Timeline
    runs: tuple[tuple[int, int, int], ...]

    def moved(self, outline: Outline) -> Outline:
        """The wanted timeline's outline for this one."""
        return tuple(
            replace(turn, start=self._moved(turn.start), end=self._moved(turn.end))
            for turn in outline
        )

    def _moved(self, position: int) -> int:
        before = [run for run in self.runs if run[0] <= position]
        wanted, resident, count = before[-1] if before else (0, 0, 0)
        is_last = before and before[-1] == self.runs[-1]
        return resident + (position - wanted if is_last else min(position - wanted, count))


def aligned(wanted: Timeline, resident: Timeline, spelling: Spelling) -> Aligned:
    """`wanted` with the tokens of `resident` as far as those spell the same bytes. Pure; takes
    the time of what differs and of one comparison for each run of equal ids."""
    runs = _runs(wanted.ids, resident.ids, spelling)
    at, held, count = runs[-1]
    at, held = at + count, held + count
    if len(runs) == 1 or resident.snapped(held) != held or wanted.snapped(at) != at:
        return Aligned(wanted, ((0, 0, len(wanted)),))
    shift = held - at
    spans = tuple(_shifted(span, shift) for span in wanted.spans if span.start >= at)
    timeline = resident.prefix(held).extended(wanted.ids[at:], spans)
    return Aligned(timeline, runs)


def _shifted(span: ImageSpan, shift: int) -> ImageSpan:
    return replace(span, start=span.start + shift)


def _runs(wanted: Ids, resident: Ids, spelling: Spelling) -> tuple[tuple[int, int, int], ...]:
    """All places where both have a border and have spelt the same, each with how many ids are
    equal from there on."""
    runs: list[tuple[int, int, int]] = []
    at = held = 0
    while True:
        count = _equal(wanted[at:], resident[held:])
        runs.append((at, held, count))
        following = _next_border(wanted, resident, at + count, held + count, spelling)
        if following is None:
            return tuple(runs)
        at, held = following


def _equal(a: Ids, b: Ids) -> int:
    both = min(len(a), len(b))
    differs = a[:both] != b[:both]
    first = int(differs.argmax()) if both else 0
    return first if both and differs[first] else both


def _next_border(
    wanted: Ids, resident: Ids, at: int, held: int, spelling: Spelling
) -> tuple[int, int] | None:
    """The next place where both have a border, or None if they part before. What is spelt by one
    and not yet by the other is ahead."""
    sides, places = (wanted, resident), [at, held]
    ahead, who = b"", 0
    while True:
        behind = 1 - who
        if places[behind] == len(sides[behind]):
            return None
        token = spelling(int(sides[behind][places[behind]]))
        if not token:
            return None
        places[behind] += 1
        if token.startswith(ahead):
            ahead, who = token[len(ahead) :], behind
        elif ahead.startswith(token):
            ahead = ahead[len(token) :]
        else:
            return None
        if not ahead:
            return places[0], places[1]
