"""Where a call begins that has no marker before it.

{"name": "read", ..}         also in a fence of Markdown; Llama 3 puts semicolons between
[read(path="a.txt")]         as Gemma 3 is told to, and Llama 3
```tool_code                 as Gemma 3 does
print(read(path="a.txt"))
```
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

from ds4tui.chat.call_text import MAX_BLANKS

FENCE = "```"

_LONGEST = 256  # up to where it must show what a text begins with

_BLANKS = " \t\r\n"
_LANGUAGES = ("json", "tool_call", "tool_code")
_PRINT = "print("
_WORD = re.compile(r"[A-Za-z_][\w.-]*")


@dataclass(frozen=True, slots=True)
class Bare:
    """A call begins at `end`, of JSON or Python's, as the character at `shown` tells; `around`
    closes what stands around it."""

    end: int
    shown: int
    kind: Literal["json", "python"]
    around: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BareCalls:
    """Of tools called `offered`."""

    offered: Collection[str]

    def begin_of(self, text: str, behind_another: bool) -> Bare | bool:
        """The call that `text` begins with; else whether it may still become one. Between two
        there may be a separator."""
        at = _skip(text, 0)
        if behind_another and text[at : at + 1] in (";", ","):
            at = _skip(text, at + 1)
        found = self._in_fence(text, at) or self._at(text, at, is_python=behind_another)
        if isinstance(found, Bare):
            return found if found.end <= MAX_BLANKS and found.shown < _LONGEST else False
        return found and len(text) < _LONGEST

    def _in_fence(self, text: str, at: int) -> Bare | bool:
        if not text.startswith(FENCE, at):
            return FENCE.startswith(text[at:])
        at += len(FENCE)
        language = next(filter(lambda each: text.startswith(each, at), _LANGUAGES), "")
        if not language and any(each.startswith(text[at:]) for each in _LANGUAGES):
            return True
        at = _skip(text, at + len(language))
        found = self._at(text, at, is_python=language == "tool_code")
        if isinstance(found, Bare):
            return replace(found, around=(*found.around, FENCE))
        return found

    def _at(self, text: str, at: int, is_python: bool) -> Bare | bool:
        if text.startswith("{", at):
            return Bare(at, at, "json")
        around: list[str] = []
        if text.startswith("[", at):
            at, is_python = _skip(text, at + 1), True
            around.append("]")
        if text.startswith(_PRINT, at) and is_python:
            at += len(_PRINT)
            around.insert(0, ")")
        rest = text[at:]
        if not rest or not is_python:
            return not rest
        word = _WORD.match(rest)
        name = word[0] if word else ""
        if name in self.offered and rest.startswith("(", len(name)):
            return Bare(at, at + len(name), "python", tuple(around))
        known = [f"{each}(" for each in self.offered] + [_PRINT] * (")" not in around)
        return any(each.startswith(rest) for each in known)


def _skip(text: str, at: int) -> int:
    return at + len(text[at:]) - len(text[at:].lstrip(_BLANKS))
