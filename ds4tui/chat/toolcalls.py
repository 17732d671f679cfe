"""Tool calls in what a model says, while it says it.

    <tool_call>
    {"name": "read", "arguments": {"path": "a.txt"}}
    </tool_call>

So write Hermes and Qwen; syntaxes.py has how others do. Models confuse what they were taught, so
behind `<tool_call>` JSON is read in every syntax. Small ones leave the markers away, or write a
fence of Markdown instead, and Llama 3 is taught bare JSON: at the beginning of a reply that is a
call, too, if it names a tool that was offered (bare_calls.py).

A parser takes text that is final, in any pieces, and tells content from calls. What turns out
to be no call, by its first wrong character, by its length or by the end of the reply, is content
from its marker on, so that nothing is swallowed and nothing waits for ever: a model may well
write about `<tool_call>`. In the middle of code (code_fences.py) a marker is text at once. The
events of a text, deltas joined, do not depend on its pieces.
"""

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Protocol

from ds4tui.chat.bare_calls import Bare, BareCalls
from ds4tui.chat.call_text import MAX_BLANKS, CallText
from ds4tui.chat.code_fences import CodeFences
from ds4tui.chat.json_follower import NotJson
from ds4tui.chat.literal_calls import PYTHON, LiteralCall
from ds4tui.chat.messages import ToolCall
from ds4tui.chat.syntaxes import HERMES, SYNTAXES, CallReader, Opening, Syntax
from ds4tui.errors import RequestError

_BLANKS = " \t\r\n"


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
    def calls_ending(self, text: str) -> list[ToolCall]:
        """The calls behind markers with which another text ends; this one is not touched."""

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


def marks(syntax: str | None) -> tuple[str, ...]:
    """The texts that open calls, and those that stand in nothing else."""
    return SYNTAXES.get(syntax or "", HERMES).marks


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
        self._schemas = offered if isinstance(offered, Mapping) else dict.fromkeys(offered, "")
        self._syntax = syntax
        self._text = ""  # not decided yet; of a call all after its lead
        self._call: CallReader | None = None
        self._calls = 0  # that have ended or were taken back, which is how the next is numbered
        self._lead = ""  # what stood before the call that is being read, its marker included
        self._bare = BareCalls(self._offered)
        self._may_be_bare = bool(offered)  # nothing but calls without markers yet
        self._closings: tuple[str, ...] = ()  # of which one may follow the call
        self._around: list[str] = []  # what closes that in which calls without markers stand
        self._after_literal = False  # nothing but blanks since a marker that is text
        self._fences = CodeFences()  # of the content so far
        self._just_ended = False  # a call, and what may close it was not looked for
        self._after_call = False  # nothing but blanks since the last call

    def push(self, text: str) -> list[ToolEvent]:
        self._text += text
        return list(self._events(last=False))

    def finish(self) -> list[ToolEvent]:
        return list(self._events(last=True))

    def calls_ending(self, text: str) -> list[ToolCall]:
        parser = CallParser(self._new_id, self._schemas, self._syntax)
        parser._may_be_bare = False
        calls: list[ToolCall] = []
        for event in [*parser.push(text), *parser.finish()]:
            if isinstance(event, CallEnded):
                calls.append(event.call)
            elif isinstance(event, ContentText) and event.text.strip():
                calls.clear()
        return calls

    def _events(self, last: bool) -> Iterator[ToolEvent]:
        while True:
            before = self._call, self._may_be_bare
            if self._call is not None:
                yield from self._in_call(self._call, last)
            elif self._just_ended and not self._skip_closings(last):
                return
            elif self._may_be_bare:
                self._look_for_bare(last)
            else:
                yield from self._in_content(last)
            if before == (self._call, self._may_be_bare):
                return  # more text is needed for more

    def _look_for_bare(self, last: bool) -> None:
        found = self._bare.begin_of(self._text, self._after_call)
        if isinstance(found, Bare):
            self._around = [*found.around, *self._around]
            is_json = found.kind == "json"
            names = self._offered
            call = CallText(names) if is_json else LiteralCall(PYTHON, self._schemas, "", names)
            self._begin(call, found.end, self._syntax.closings)
        elif last or not found:
            self._may_be_bare = False

    def _begin(self, call: CallReader, at: int, closings: tuple[str, ...]) -> None:
        self._call, self._lead, self._text = call, self._text[:at], self._text[at:]
        self._closings = closings

    def _in_content(self, last: bool) -> Iterator[ToolEvent]:
        while True:
            text = self._text
            at, opening = self._syntax.first_in(text)
            if opening is None:
                at = len(text) - (0 if last else self._syntax.begun_in(text))
            blanks = min(MAX_BLANKS, at - len(text[:at].rstrip(_BLANKS)))
            content, held = text[: at - blanks], text[at - blanks : at]
            if content:
                is_blank = not content.strip(_BLANKS)
                self._after_call = self._after_call and is_blank
                self._after_literal = self._after_literal and is_blank
                yield self._said(content)
            self._text = text[at - blanks :]
            if opening is None:
                break
            lead = len(held) + len(opening.text)
            if not self._after_literal and not self._is_code_behind(held):
                call = self._call_behind(opening, self._text[lead:], last)
                if call is not None:
                    self._begin(call, lead, opening.closings)
                return
            yield self._said(self._text[:lead])
            self._text, self._after_call = self._text[lead:], False
            self._after_literal = True
        if last and held and not self._after_call:
            yield self._said(held)
        self._text = "" if last else self._text

    def _is_code_behind(self, blanks: str) -> bool:
        fences = copy(self._fences)
        fences.feed(blanks)
        return fences.is_code

    def _said(self, text: str) -> ContentText:
        self._fences.feed(text)
        return ContentText(text)

    def _call_behind(self, opening: Opening, rest: str, last: bool) -> CallReader | None:
        """None as long as it is not known which it is."""
        if opening.style is None:
            return CallText()
        if opening.part_of_head:
            names = None if self._after_call else self._offered
            return opening.style(self._schemas, opening.text, names)
        first = rest.lstrip(_BLANKS)[:1]
        if not first and not last and len(rest) <= MAX_BLANKS:
            return None
        return CallText() if first == "{" else opening.style(self._schemas)

    def _skip_closings(self, last: bool) -> bool:
        """Whether it is known which of the closing marks are there; those that are are taken."""
        while candidates := (*self._closings, *self._around[:1]):
            rest = self._text.lstrip(_BLANKS)
            if len(self._text) - len(rest) > MAX_BLANKS:
                break
            found = next(filter(rest.startswith, candidates), None)
            if found is None:
                if not last and any(each.startswith(rest) for each in candidates):
                    return False
                if rest and any(each.startswith(rest) for each in self._closings):
                    self._text = ""  # cut by the end of the reply
                break
            self._text = rest[len(found) :]
            if found in self._closings:
                self._closings = tuple(each for each in self._closings if each != found)
            else:
                del self._around[0]
        self._closings, self._just_ended = (), False
        return True

    def _in_call(self, call: CallReader, last: bool) -> Iterator[ToolEvent]:
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
            self._call, self._after_call, self._just_ended = None, True, True

    def _progress(self, call: CallReader) -> Iterator[ToolEvent]:
        if not call.id and call.is_known:
            call.id = self._new_id()
            yield CallBegun(self._calls, call.id, call.name or "")
        if call.id and (text := call.take_arguments()):
            yield CallArguments(self._calls, text)

    def _reject(self, call: CallReader, problem: str) -> Iterator[ToolEvent]:
        """What stood before it becomes content; what followed that is looked at anew."""
        if call.id or (call.is_object and not self._may_be_bare):
            yield CallRejected(problem, self._calls if call.id else None)
            self._calls += 1 if call.id else 0
        if self._lead:
            yield self._said(self._lead)
        self._call, self._lead, self._after_call = None, "", False
        self._may_be_bare = False
        self._around.clear()
