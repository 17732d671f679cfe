"""A reply's reasoning told from what it says, while it says it.

    <think>
    What the model tells itself.
    </think>

    What it tells the person.

Gemma 4 writes `<|channel>thought` and `<channel|>` around it. Reasoning stands at the beginning
or nowhere: a model may well write about `<think>` later on.
Blanks around both parts belong to neither. Where the template has written the opening mark, a
reply begins inside. The parts of a text, joined, do not depend on the pieces it comes in.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

OPENING, CLOSING = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class ThinkingMarks:
    """What stands around a family's reasoning."""

    opening: str = OPENING
    closing: str = CLOSING


THINK = ThinkingMarks()
_CHANNEL = ThinkingMarks("<|channel>thought", "<channel|>")


def marks_in(template: str) -> ThinkingMarks | None:
    """Those that a chat template has, None for a model that does not reason."""
    if OPENING in template or CLOSING in template:
        return THINK
    return _CHANNEL if _CHANNEL.closing in template else None


_BLANKS = " \t\r\n"
# Of longer blanks the rest is text, so that nothing waits for ever.
_MAX_BLANKS = 64


@dataclass(frozen=True, slots=True)
class ReasoningPiece:
    text: str


@dataclass(frozen=True, slots=True)
class ContentPiece:
    text: str


Piece = ReasoningPiece | ContentPiece


class _At(Enum):
    BEGINNING = auto()
    FIRST_THOUGHT = auto()  # nothing but blanks since the opening mark
    REASONING = auto()
    BETWEEN = auto()  # nothing but blanks since the closing mark
    CONTENT = auto()


class ThinkingParser:
    """Not for use by several threads at once. Without a closing mark all is reasoning."""

    def __init__(self, inside: bool = False, marks: ThinkingMarks = THINK) -> None:
        self._marks = marks
        self._at = _At.FIRST_THOUGHT if inside else _At.BEGINNING
        self._text = ""  # not decided yet

    @property
    def is_open(self) -> bool:
        """Whether what came last is reasoning that was not closed."""
        return self._at in (_At.FIRST_THOUGHT, _At.REASONING)

    def push(self, text: str) -> list[Piece]:
        self._text += text
        return list(self._pieces(last=False))

    def finish(self) -> list[Piece]:
        """What is left when nothing follows; the parser is used up."""
        return list(self._pieces(last=True))

    def _pieces(self, last: bool) -> Iterator[Piece]:
        before = None
        while before is not self._at:
            before = self._at
            if before is _At.BEGINNING:
                self._begin(last)
            elif before is _At.REASONING:
                yield from self._reasoning(last)
            elif before is _At.CONTENT:
                yield from [ContentPiece(self._text)] if self._text else []
                self._text = ""
            else:
                self._skip_blanks()

    def _begin(self, last: bool) -> None:
        rest = self._text.lstrip(_BLANKS)
        blanks = len(self._text) - len(rest)
        if rest.startswith(self._marks.opening) and blanks <= _MAX_BLANKS:
            self._text, self._at = rest[len(self._marks.opening) :], _At.FIRST_THOUGHT
        elif last or blanks > _MAX_BLANKS or not self._marks.opening.startswith(rest):
            self._at = _At.CONTENT

    def _skip_blanks(self) -> None:
        self._text = self._text.lstrip(_BLANKS)
        if self._text:
            first = self._at is _At.FIRST_THOUGHT
            self._at = _At.REASONING if first else _At.CONTENT

    def _reasoning(self, last: bool) -> Iterator[Piece]:
        at = self._text.find(self._marks.closing)
        end = at if at >= 0 else len(self._text) - (0 if last else self._begun_closing())
        told = self._text[:end].rstrip(_BLANKS)
        told = self._text[: max(len(told), end - _MAX_BLANKS)]
        if told:
            yield ReasoningPiece(told)
        self._text = "" if last and at < 0 else self._text[len(told) :]
        if at >= 0:
            self._text, self._at = self._text.partition(self._marks.closing)[2], _At.BETWEEN

    def _begun_closing(self) -> int:
        longest = min(len(self._text), len(self._marks.closing) - 1)
        return next(
            (n for n in range(longest, 0, -1) if self._text.endswith(self._marks.closing[:n])), 0
        )
