"""How families of models write calls: what opens them, who reads what follows, what may close them.

A syntax is found by what a template makes of a call (probing.py) and has its name from there.
DeepSeek's later models (DSML) changed the name of the outer tag: `function_calls` in V3.2,
`tool_calls` in V4, `calls` in V4.1, which also puts a blank before names. All are read in each,
and so are the marks that models mistake for theirs.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from ds4tui.chat.deepseek_calls import BEGIN, SEPARATOR, DeepSeekCall
from ds4tui.chat.literal_calls import GEMMA, LiteralCall
from ds4tui.chat.tag_calls import DSML_MARK, GLM, QWEN, TagCall, Tags, dsml_tags

OPENING, CLOSING = "<tool_call>", "</tool_call>"


class CallReader(Protocol):
    """Reads one call while it comes. `position` is up to where its text was; `is_object` says
    whether it began as a call does, `is_known` whether it can be told of."""

    id: str
    name: str | None
    canonical: str

    @property
    def is_done(self) -> bool: ...
    @property
    def is_object(self) -> bool: ...
    @property
    def is_known(self) -> bool: ...
    @property
    def position(self) -> int: ...
    def read(self, text: str) -> None:
        """`text` is all of the call's, as far as it is known. Raises NotJson."""

    def finish(self, text: str) -> bool:
        """Whether `text`, which nothing follows, is a call although its end is missing."""

    def take_arguments(self) -> str:
        """What is new of the arguments' JSON text."""

    def end(self) -> None:
        """Complete the arguments. Raises NotJson and RequestError."""


class Style(Protocol):
    """Makes readers. `begun` is what of the call stood in the marker before it; with `names` only
    a call of one of those is one."""

    def __call__(
        self, schemas: Mapping[str, str], begun: str = "", names: Collection[str] | None = None
    ) -> CallReader: ...


@dataclass(frozen=True, slots=True)
class TagStyle:
    tags: Tags

    def __call__(
        self, schemas: Mapping[str, str], begun: str = "", names: Collection[str] | None = None
    ) -> CallReader:
        return TagCall(self.tags, schemas, begun, names)


def _gemma(
    schemas: Mapping[str, str], begun: str = "", names: Collection[str] | None = None
) -> CallReader:
    return LiteralCall(GEMMA, schemas, begun, names)


@dataclass(frozen=True, slots=True)
class Opening:
    """A marker of calls: `style` reads what follows, JSON if there is none. One that is
    `part_of_head` belongs to the call itself, which then needs the name of a tool that was
    offered. One of `closings` may follow."""

    text: str
    style: Style | None = None
    closings: tuple[str, ...] = (CLOSING,)
    part_of_head: bool = False


class Syntax:
    """`openings` of which the longest at a place counts; one of `closings` may follow a call that
    had no marker before it. `mark` is a text, of one token, that stands in calls only."""

    def __init__(
        self, *openings: Opening, closings: tuple[str, ...] = (CLOSING,), mark: str = ""
    ) -> None:
        self.openings: Mapping[str, Opening] = {each.text: each for each in openings}
        self.closings = closings
        self.marks = (*self.openings, mark) if mark else tuple(self.openings)
        known = sorted(self.openings, key=len, reverse=True)
        self._any = re.compile("|".join(map(re.escape, known)))
        self._firsts = frozenset(text[0] for text in known)
        self._longest = max(map(len, known))

    def first_in(self, text: str) -> tuple[int, Opening | None]:
        """The first marker and where it is, (-1, None) if there is none."""
        found = self._any.search(text)
        return (found.start(), self.openings[found[0]]) if found else (-1, None)

    def begun_in(self, text: str) -> int:
        """How long the longest end of `text` is with which a marker begins, but is not over."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[start] in self._firsts:
                rest = text[start:]
                if any(each.startswith(rest) and each != rest for each in self.openings):
                    return len(rest)
        return 0


_HERMES = Opening(OPENING)


def _dsml() -> Iterator[Opening]:
    for mark in (DSML_MARK, f"{DSML_MARK} ", "DSML｜", "|DSML|", ""):
        blocks = [f"{mark}{name}>" for name in ("tool_calls", "function_calls", "calls")]
        if not mark:
            blocks.pop()  # a tag of that name may be anybody's
        closings = tuple(f"</{block}" for block in blocks)
        style = TagStyle(dsml_tags(mark, closings))
        yield from (Opening(f"<{block}", style, closings) for block in blocks)
        yield Opening(f'<{mark}invoke name="', style, closings, part_of_head=True)


def _deepseek() -> Iterator[Opening]:
    # As the models have it, and as distilled ones spell it.
    words = [("tool", "calls", "begin"), ("tool", "calls", "end")]
    begins, ends = ([f"<｜{b.join(w)}｜>" for b in ("▁", " ", "_", "\\_")] for w in words)
    for text in (*begins, "<｜tool▁calls｜>", BEGIN):
        yield Opening(text, DeepSeekCall, tuple(ends))
    yield Opening(f"function{SEPARATOR}", DeepSeekCall, tuple(ends), part_of_head=True)


_QWEN = Syntax(
    Opening(OPENING, TagStyle(QWEN)), Opening("<function=", TagStyle(QWEN), part_of_head=True)
)
_GLM = Syntax(Opening(OPENING, TagStyle(GLM)))
_DSML = Syntax(*_dsml(), _HERMES, mark=DSML_MARK)
_DEEPSEEK = Syntax(*_deepseek(), _HERMES)
HERMES = Syntax(_HERMES)

SYNTAXES: Mapping[str, Syntax] = {
    "hermes": HERMES,
    "llama3": Syntax(Opening("<|python_tag|>", None, ("<|eom_id|>",)), _HERMES),
    "qwen-xml": _QWEN,
    "glm": _GLM,
    "glm-5": _GLM,
    "dsml": _DSML,
    "dsml-v4": _DSML,
    "deepseek-v3": _DEEPSEEK,
    "deepseek-v3.1": _DEEPSEEK,
    "gemma": Syntax(Opening("<|tool_call>", _gemma, ("<tool_call|>", "<|tool_response>")), _HERMES),
}
