"""Where the turns of a conversation lie in its timeline, and what each of them said.

A chat format writes it while it renders. It is what turns a position into words: why two
timelines part (`cache.causes`) and where a conversation is likely to fork again (`fork_points`).
Digests are compared, never texts: an outline of a long conversation takes a few kilobytes.
"""

from bisect import bisect_left
from dataclasses import dataclass

from ds4tui.cache.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Turn:
    """One message's share of a timeline: positions [start, end).

    `role` is "system", "user", "assistant", "tool" or "opening" (what the template writes
    before the reply that is asked for). `digest` is the xxh3_128 of the visible text without the
    white space at its ends, b"" where the text is not known (a reply while it is sampled);
    `calls_digest` of the tool calls as canonical JSON (keys sorted, arguments parsed), b"" if
    there are none; `tools_digest` (on a system turn) of the tools on offer.
    """

    start: int
    end: int
    role: str
    digest: bytes
    has_reasoning: bool = False
    calls_digest: bytes = b""
    tools_digest: bytes = b""


Outline = tuple[Turn, ...]


def turn_at(outline: Outline, position: int) -> Turn | None:
    """The turn that `position` lies in; None outside of all."""
    return next((turn for turn in outline if turn.start <= position < turn.end), None)


def fork_points(timeline: Timeline, outline: Outline) -> tuple[int, ...]:
    """Positions in (0, len(timeline)] where a conversation is likely to part from itself:
    borders of turns and of images, ascending. None cuts an image."""
    borders = {border for turn in outline for border in (turn.start, turn.end)}
    borders |= {border for span in timeline.spans for border in (span.start, span.end)}
    starts = [span.start for span in timeline.spans]

    def cuts_an_image(position: int) -> bool:
        i = bisect_left(starts, position) - 1
        return i >= 0 and position < timeline.spans[i].end

    inside = (p for p in borders if 0 < p <= len(timeline))
    return tuple(sorted(p for p in inside if not cuts_an_image(p)))
