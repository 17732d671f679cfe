"""Text from people, tools and files, made unable to forge a turn.

Before a template is rendered, every text gets private marks (characters that occur nowhere
else) at the places where a control token could begin or end: after each character that some
control token begins with, and before each that one ends with. So no control token's text stands
in what people wrote, none arises where it meets the template's own words or is cut and joined
by it, and what is found afterwards is the template's alone. Then the marks are taken out, and
the text is encoded as if it had never had any.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ds4tui.engine.tokenizer import literal_pattern
from ds4tui.errors import RequestError

_PRIVATE_USE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))


@dataclass(frozen=True, slots=True)
class Marks:
    """Private characters of one rendering: the joint that keeps tokens apart, the two around a
    reply's number and those around an image's, the one at the ends of texts, and one instead of
    each one-character token."""

    joint: str
    reply: str
    image: str
    edge: str
    stand_ins: tuple[str, ...]

    def reply_mark(self, index: int) -> str:
        """Stands for the reply that is message `index`."""
        return f"{self.reply}{index}{self.reply}"

    def image_mark(self, number: int) -> str:
        """Stands for an image, numbered among those of one rendering."""
        return f"{self.image}{number}{self.image}"

    def edged(self, text: str, start: bool = True, end: bool = True) -> str:
        """A marked text with an edge at its start and its end, or at one of them, blanks staying
        outside. Empty texts stay empty."""
        core = text.strip()
        first, last = self.edge * start, self.edge * end
        return text.replace(core, f"{first}{core}{last}", 1) if core else text

    def image_pattern(self) -> re.Pattern[str]:
        """Finds the marks of images; its group is the number."""
        return re.compile(f"{self.image}([0-9]+){self.image}")

    def reply_pattern(self) -> re.Pattern[str]:
        """Finds the marks of replies; its group is the index."""
        return re.compile(f"{self.reply}([0-9]+){self.reply}")


class Guard:
    """Knows which tokens must not come out of people's text.

    `protected` texts are broken up; texts of `kept` (user-defined tokens that people may well
    write) stay whole and are still recognised, but for those of which a protected text could be
    made.
    """

    def __init__(self, protected: Iterable[str], kept: Iterable[str] = ()) -> None:
        self.protected = _with_overlapping(set(protected) - {""}, set(kept) - {""})
        self._single = sorted(t for t in self.protected if len(t) == 1)
        longer = [t for t in self.protected if len(t) > 1]
        self._first = sorted({t[0] for t in longer})
        self._last = sorted({t[-1] for t in longer})
        fragile = [t for t in set(kept) - self.protected if self._would_break(t)]
        self._kept = literal_pattern(fragile) if fragile else None

    def _would_break(self, text: str) -> bool:
        inner_first = any(c in text[:-1] for c in self._first)
        return inner_first or any(c in text[1:] for c in (*self._last, *self._single))

    def choose_marks(self, texts: Sequence[str]) -> Marks:
        """Marks that occur in none of `texts` (the template and all messages)."""
        count = 4 + len(self._single)
        joint, reply, image, edge, *stand_ins = _unused_characters(count, [*texts, *self.protected])
        return Marks(joint, reply, image, edge, tuple(stand_ins))

    def protect(self, text: str, marks: Marks) -> str:
        """`text` with marks; blanks at its ends stay at its ends, for templates that trim."""
        marked = self._around_kept(text, marks) if self._kept else self._break(text, marks)
        core = marked.strip()
        if core and any(core in t for t in self.protected):  # the middle of one: "im_start"
            return marked.replace(core, marks.joint + core, 1)
        return marked

    def _around_kept(self, text: str, marks: Marks) -> str:
        pieces: list[str] = []
        end = 0
        for match in self._kept.finditer(text) if self._kept else ():
            pieces += [self._break(text[end : match.start()], marks), match[0]]
            end = match.end()
        pieces.append(self._break(text[end:], marks))
        return "".join(pieces)

    def _break(self, text: str, marks: Marks) -> str:
        for single, stand_in in zip(self._single, marks.stand_ins, strict=True):
            text = text.replace(single, stand_in)
        for first in self._first:
            text = text.replace(first, first + marks.joint)
        for last in self._last:
            text = text.replace(last, marks.joint + last)
        return text

    def reveal(self, text: str, marks: Marks) -> str:
        """`text` without marks."""
        text = text.replace(marks.joint, "")
        for single, stand_in in zip(self._single, marks.stand_ins, strict=True):
            text = text.replace(stand_in, single)
        return text


def _with_overlapping(protected: set[str], kept: set[str]) -> frozenset[str]:
    """`protected` and those of `kept` that could be a part of a protected text."""
    grown = set(protected)
    while True:
        beginnings = {t[:n] for t in grown for n in range(1, len(t))}
        endings = {t[n:] for t in grown for n in range(1, len(t))}
        more = {
            k
            for k in kept - grown
            if any(k in t or t in k for t in grown)
            or any(k[:n] in endings or k[n:] in beginnings for n in range(1, len(k)))
        }
        if not more:
            return frozenset(grown)
        grown |= more


def _unused_characters(count: int, texts: Sequence[str]) -> list[str]:
    first = [chr(code) for code in _PRIVATE_USE[0][:count]]
    if not any(c in text for c in first for text in texts):
        return first
    used = set().union(*texts)
    unused = (c for codes in _PRIVATE_USE for c in map(chr, codes) if c not in used)
    found = [c for c, _ in zip(unused, range(count), strict=False)]
    if len(found) < count:
        raise RequestError("The messages hold every private-use character.", param="messages")
    return found
