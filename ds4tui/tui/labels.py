"""Pictures in a text area: where their labels lie, so that each is one unit there, and the @path
before the cursor.

Pure functions of locations, (row, column), and of the spans of labels in lines.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from textual.document._document import Location

# The [start, end) of each label in a line.
FindLabels = Callable[[str], Sequence[tuple[int, int]]]

# What stands before the cursor when a path is typed: an open quote, or a word with its escapes.
_MENTION = re.compile(r'(?<!\S)@(?:"([^"]*)|((?:[^\s\\"]|\\.)*))$')


@dataclass(frozen=True, slots=True)
class Mention:
    """The beginning of an @path before the cursor: how long it is, and the path as it is named."""

    length: int
    path: str


def mention_before(text: str) -> Mention | None:
    """The @path at whose end the cursor stands, behind `text` of its line."""
    match = _MENTION.search(text)
    if match is None:
        return None
    inside = match[1] if match[1] is not None else re.sub(r"\\(.)", r"\1", match[2])
    return Mention(len(match[0]), inside)


def no_labels(line: str) -> Sequence[tuple[int, int]]:
    """FindLabels where there are none."""
    return ()


def around(line: str, column: int, find: FindLabels) -> tuple[int, int] | None:
    """The label of `line` that has `column` inside, not at its edges."""
    return next(((s, e) for s, e in find(line) if s < column < e), None)


def widened(
    lines: Sequence[str], top: Location, bottom: Location, find: FindLabels
) -> tuple[Location, Location]:
    """`top` to `bottom`, with the whole of every label that it has a part of. An empty range
    inside a label moves behind it: what is typed there must not tear it."""
    first, last = (_label_at(lines, place, find) for place in (top, bottom))
    if top == bottom:
        place = top if first is None else (top[0], first[1])
        return place, place
    return (
        top if first is None else (top[0], first[0]),
        bottom if last is None else (bottom[0], last[1]),
    )


def beside(lines: Sequence[str], place: Location, before: Location, find: FindLabels) -> Location:
    """`place`, or the edge of the label that it is inside: the far one, seen from `before`."""
    label = _label_at(lines, place, find)
    if label is None:
        return place
    return place[0], label[1] if place > before else label[0]


def _label_at(lines: Sequence[str], place: Location, find: FindLabels) -> tuple[int, int] | None:
    row, column = place
    return around(lines[row], column, find) if 0 <= row < len(lines) else None
