"""Where a state that cannot be cut back is snapshotted: where people and agents fork. Pure.

Candidates are the borders of the turns, the places before and after each image, chunk ends, and
the place before a prompt's last token. A long prompt has hundreds of them and a snapshot may take
150 MiB, so they stand at growing distance: one at `p` of a prompt that ends at `end` is taken when
the one before is at least (end - p) / SPACING away. Who forks at distance d from the end has d
tokens to evaluate anyway, and replays at most about d / SPACING besides, while their number grows
with the logarithm of the length only: 107 over 100,000 tokens. What is always taken: the end of
the system prompt, which side requests share, and the last few borders. What stays of them in the
end is the memory tier's to say (cache/thinning.py), and how often decoding takes one, too.
"""

from dataclasses import dataclass
from typing import Literal

from ds4tui.cache.outline import Outline, fork_points
from ds4tui.cache.timeline import Timeline

Point = Literal["system", "turn", "image", "before last", "chunk", "decode"]

# A replay of at most a twentieth of what is needed anyway.
SPACING = 20
# People edit, regenerate and go back among their last messages: user and reply, twice.
LAST_BORDERS = 4
# Side requests and other agents share a part of a system prompt, or of the instructions that
# their only message begins with, and are short themselves: what they replay of it is not small
# beside what they need. So the first turn has places inside, too: this many, but none nearer than
# a chunk that still feeds a matrix product well.
FIRST_TURN_PLACES = 16
FIRST_TURN_SPACING_MIN = 128


@dataclass(frozen=True, slots=True)
class ForkPoint:
    position: int
    point: Point


def borders(outline: Outline, timeline: Timeline) -> tuple[ForkPoint, ...]:
    """The borders of turns and images in `timeline`, in order, one a position; where several
    meet it is the end of the system prompt before an image's, and that before a turn's."""
    system = {turn.end for turn in outline if turn.role == "system"}
    images = {border for span in timeline.spans for border in (span.start, span.end)}

    def point(position: int) -> Point:
        return "system" if position in system else "image" if position in images else "turn"

    return tuple(ForkPoint(p, point(p)) for p in fork_points(timeline, outline))


def is_far_enough(position: int, before: int, end: int) -> bool:
    """Whether a snapshot at `position` is worth its place when the last one is at `before` and
    the prompt ends at `end`."""
    return position - before >= max(1, (end - position) / SPACING)


def chosen_borders(
    outline: Outline, timeline: Timeline, start: int, end: int
) -> tuple[ForkPoint, ...]:
    """The places strictly between `start` and `end` where the chunks of a prefill of
    [start, end) of `timeline` shall end."""
    between = (*borders(outline, timeline), *_inside_first_turn(outline, timeline))
    inside = sorted((b for b in between if start < b.position < end), key=lambda b: b.position)
    always = {border.position for border in inside[-LAST_BORDERS:]}
    always |= {b.position for b in inside if b.point in ("system", "chunk")}
    chosen: list[ForkPoint] = []
    before = start
    for border in inside:
        if border.position in always or is_far_enough(border.position, before, end):
            chosen.append(border)
            before = border.position
    return tuple(chosen)


def _inside_first_turn(outline: Outline, timeline: Timeline) -> list[ForkPoint]:
    """Places inside of the first turn, evenly apart."""
    if not outline:
        return []
    turn = outline[0]
    spacing = max(FIRST_TURN_SPACING_MIN, (turn.end - turn.start) // FIRST_TURN_PLACES)
    found = range(turn.start + spacing, turn.end, spacing)
    return [ForkPoint(p, "chunk") for p in found if timeline.snapped(p) == p]
