"""Tool calls in what a model says, while it says it.

    <tool_call>
    {"name": "read", "arguments": {"path": "a.txt"}}
    </tool_call>

So write Hermes and Qwen; tag_calls.py has the families that write tags within. Models confuse what
they were taught, so behind `<tool_call>` JSON is read in every syntax. Small ones leave the markers
away, or write a fence of Markdown instead, and Llama 3 is taught bare JSON: at the beginning of a
reply that is a call, too, if it names a tool that was offered.

A parser takes text that is final, in any pieces, and tells content from calls. What turns out
to be no call, by its first wrong character, by its length or by the end of the reply, is content
from its marker on, so that nothing is swallowed and nothing waits for ever: a model may well
write about `<tool_call>`. In the middle of code (code_fences.py) a marker is text at once. The
events of a text, deltas joined, do not depend on its pieces.
"""

import re
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Protocol

from ds4tui.chat.call_text import MAX_BLANKS, CallText
from ds4tui.chat.code_fences import CodeFences
from ds4tui.chat.json_follower import NotJson
from ds4tui.chat.messages import ToolCall
from ds4tui.chat.tag_calls import DSML, GLM, QWEN, TagCall, Tags
from ds4tui.errors import RequestError

OPENING, CLOSING = "<tool_call>", "</tool_call>"

FENCE = "```"

_BLANKS = " \t\r\n"
# What may stand before a call that has no marker, and what may become that.
_BARE = re.compile(r"[ \t\r\n]*(?:```(?:json)?[ \t\r\n]*)?(?=\{)")
_SEPARATED_BARE = re.compile(r"[ \t\r\n]*;[ \t\r\n]*(?=\{)")
_MAYBE_SEPARATED = re.compile(r"[ \t\r\n]*(?:;[ \t\r\n]*)?")
_MAYBE_BARE = re.compile(r"[ \t\r\n]*(?:`{1,2}|```(?:j|js|jso|json)?|```(?:json)?[ \t\r\n]*)?")


@dataclass(frozen=True, slots=True)
class Syntax:
    """How a family writes calls: each behind one of `openings`, of which `part_of_head` belong to
    the call itself and then need the name of a tool that was offered; `closing` may follow.
    Without `tags` there is JSON."""

    openings: tuple[str, ...] = (OPENING,)
    part_of_head: frozenset[str] = frozenset()
    closing: str = CLOSING
    tags: Tags | None = None


HERMES = Syntax()
_DSML_OPENING, _DSML_CALL = "<｜DSML｜function_calls>", '<｜DSML｜invoke name="'
SYNTAXES: Mapping[str, Syntax] = {
    "hermes": HERMES,
    "llama3": Syntax(("<|python_tag|>", OPENING), closing="<|eom_id|>"),
    "qwen-xml": Syntax((OPENING, "<function="), frozenset(("<function=",)), tags=QWEN),
    "glm": Syntax(tags=GLM),
    "dsml": Syntax(
        (_DSML_OPENING, _DSML_CALL, OPENING),
        frozenset((_DSML_CALL,)),
        "</｜DSML｜function_calls>",
        DSML,
    ),
}


@dataclass(frozen=True, slots=True)
class ContentText:
    """Text that is no call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """The name of call `index` is known."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the arguments' JSON text, as the model writes it (but control characters in
    strings are escaped); all of them joined are JSON once the call has ended."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """Call `index` is complete; its arguments are canonical."""

    index: int
    call: ToolCall


@dataclass(frozen=True, slots=True)
class CallRejected:
    """Something began like a call and is none. Its text follows as content. `index` is of a
    call that had begun, which must be taken back; else None."""

    reason: str
    index: int | None


ToolEvent = ContentText | CallBegun | CallArguments | CallEnded | CallRejected


class ToolCallParser(Protocol):
    """Not for use by several threads at once."""

    def push(self, text: str) -> list[ToolEvent]: ...
    def finish(self) -> list[ToolEvent]:
        """What is left when nothing follows; the parser is used up."""


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def parser_of(
    syntax: str | None, offered: Collection[str] = (), new_id: Callable[[], str] = new_call_id
) -> ToolCallParser | None:
    """For a name of `probing.Abilities.tool_syntax` and the names of the tools that were offered,
    perhaps with the JSON Schemas of their parameters; None where calls are not read. Of a syntax
    that is not known the calls of Hermes are read."""
    if syntax not in SYNTAXES and not offered:
        return None
    return CallParser(new_id, offered, SYNTAXES.get(syntax or "", HERMES))


def openings(syntax: str | None) -> tuple[str, ...]:
    """The texts that open calls."""
    return SYNTAXES.get(syntax or "", HERMES).openings


class CallParser:
    """The syntax of Hermes and Qwen, if no other is given."""

    def __init__(
        self,
        new_id: Callable[[], str] = new_call_id,
        offered: Collection[str] = (),
        syntax: Syntax = HERMES,
    ) -> None:
        self._new_id = new_id
        self._offered = frozenset(offered)
        self._schemas = offered if isinstance(offered, Mapping) else {}
        self._syntax = syntax
        self._text = ""  # not decided yet; of a call all after its lead
        self._call: CallText | TagCall | None = None
        self._calls = 0  # that have ended or were taken back, which is how the next is numbered
        self._lead = ""  # what stood before the call that is being read, its marker included
        self._may_be_bare = bool(offered)  # nothing but calls without markers yet
        self._closing = ""  # what may follow the last call
        self._after_literal = False  # nothing but blanks since a marker that is text
        self._fences = CodeFences()  # of the content so far
        self._in_fence = False  # which the last call was the first in
        self._after_call = False  # nothing but blanks since the last call

    def push(self, text: str) -> list[ToolEvent]:
        self._text += text
        return list(self._events(last=False))

    def finish(self) -> list[ToolEvent]:
        return list(self._events(last=True))

    def _events(self, last: bool) -> Iterator[ToolEvent]:
        while True:
            before = self._call, self._may_be_bare
            if self._call is not None:
                yield from self._in_call(self._call, last)
            elif self._closing and not self._skip_closing(last):
                return
            elif self._may_be_bare:
                self._look_for_bare(last)
            else:
                yield from self._in_content(last)
            if before == (self._call, self._may_be_bare):
                return  # more text is needed for more

    def _look_for_bare(self, last: bool) -> None:
        bare, maybe = (_BARE, _MAYBE_BARE)
        if self._after_call and not bare.match(self._text):  # Llama 3 writes semicolons between
            bare, maybe = (_SEPARATED_BARE, _MAYBE_SEPARATED)
        found = bare.match(self._text)
        if found and found.end() <= MAX_BLANKS:
            self._begin(CallText(self._offered), found.end())
            return
        may_become = maybe.fullmatch(self._text) or _MAYBE_BARE.fullmatch(self._text)
        if last or len(self._text) > MAX_BLANKS or not may_become:
            self._may_be_bare = False

    def _begin(self, call: CallText | TagCall, at: int) -> None:
        self._call, self._lead, self._text = call, self._text[:at], self._text[at:]

    def _in_content(self, last: bool) -> Iterator[ToolEvent]:
        while True:
            text = self._text
            at, opening = self._next_opening()
            end = at if at >= 0 else len(text) - (0 if last else self._begun_opening())
            blanks = min(MAX_BLANKS, end - len(text[:end].rstrip(_BLANKS)))
            content, held = text[: end - blanks], text[end - blanks : end]
            if content:
                is_blank = not content.strip(_BLANKS)
                self._after_call = self._after_call and is_blank
                self._after_literal = self._after_literal and is_blank
                yield self._said(content)
            self._text = text[end - blanks :]
            if at < 0:
                break
            lead = len(held) + len(opening)
            if not self._after_literal and not self._is_code_behind(held):
                call = self._call_behind(opening, self._text[lead:], last)
                if call is not None:
                    self._begin(call, lead)
                return
            yield self._said(self._text[:lead])
            self._text, self._after_call = self._text[lead:], False
            self._after_literal = True
        if last and held and not self._after_call:
            yield self._said(held)
        self._text = "" if last else self._text

    def _next_opening(self) -> tuple[int, str]:
        """Where the first one is in the text, and which; -1 for none."""
        found = ((self._text.find(each), each) for each in self._syntax.openings)
        return min((each for each in found if each[0] >= 0), default=(-1, ""))

    def _begun_opening(self) -> int:
        return max(_begun(self._text, each) for each in self._syntax.openings)

    def _is_code_behind(self, blanks: str) -> bool:
        fences = copy(self._fences)
        fences.feed(blanks)
        return fences.is_code

    def _said(self, text: str) -> ContentText:
        self._fences.feed(text)
        return ContentText(text)

    def _call_behind(self, opening: str, rest: str, last: bool) -> CallText | TagCall | None:
        """None as long as it is not known which it is."""
        tags = self._syntax.tags
        if tags is None:
            return CallText()
        if opening in self._syntax.part_of_head:
            return TagCall(tags, self._schemas, opening, self._offered)
        first = rest.lstrip(_BLANKS)[:1]
        if not first and not last and len(rest) <= MAX_BLANKS:
            return None
        return CallText() if first == "{" else TagCall(tags, self._schemas)

    def _skip_closing(self, last: bool) -> bool:
        """Whether it is known if there is a closing marker; one that is there is taken."""
        rest = self._text.lstrip(_BLANKS)
        if len(self._text) - len(rest) <= MAX_BLANKS:
            if rest.startswith(self._closing):
                self._text, self._in_fence = rest[len(self._closing) :], False
            elif self._closing.startswith(rest) and not last:
                return False
        self._closing = ""
        return True

    def _in_call(self, call: CallText | TagCall, last: bool) -> Iterator[ToolEvent]:
        problem: str | None = None
        try:
            call.read(self._text)
            if call.is_done or (last and call.finish(self._text)):
                call.end()
            elif last:
                problem = "the reply ended inside it"
        except (NotJson, RequestError) as exc:
            problem = exc.message if isinstance(exc, RequestError) else str(exc)
        yield from self._progress(call)
        if problem is not None:
            yield from self._reject(call, problem)
        elif call.is_done:
            done = ToolCall(call.id, call.name or "", call.canonical)
            yield CallEnded(self._calls, done)
            self._calls += 1
            self._text = self._text[call.position :]
            self._in_fence = self._in_fence or FENCE in self._lead
            closing = CLOSING if OPENING in self._lead else self._syntax.closing
            self._closing = FENCE if self._in_fence else closing
            self._call, self._after_call = None, True

    def _progress(self, call: CallText | TagCall) -> Iterator[ToolEvent]:
        if not call.id and call.is_known:
            call.id = self._new_id()
            yield CallBegun(self._calls, call.id, call.name or "")
        if call.id and (text := call.take_arguments()):
            yield CallArguments(self._calls, text)

    def _reject(self, call: CallText | TagCall, problem: str) -> Iterator[ToolEvent]:
        """What stood before it becomes content; what followed that is looked at anew."""
        if call.id or (call.is_object and not self._may_be_bare):
            yield CallRejected(problem, self._calls if call.id else None)
            self._calls += 1 if call.id else 0
        if self._lead:
            yield self._said(self._lead)
        self._call, self._lead, self._after_call = None, "", False
        self._may_be_bare = False


def _begun(text: str, marker: str) -> int:
    """How long the longest end of `text` is with which `marker` begins."""
    longest = min(len(text), len(marker) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(marker[:n])), 0)
