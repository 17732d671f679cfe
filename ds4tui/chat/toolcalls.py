"""Tool calls in what a model says, while it says it (the syntax of Hermes and Qwen).

    <tool_call>
    {"name": "read", "arguments": {"path": "a.txt"}}
    </tool_call>

A parser takes text that is final, in any pieces, and tells content from calls. What turns out
to be no call, by its first wrong character, by its length or by the end of the reply, is content
from its marker on, so that nothing is swallowed and nothing waits for ever: a model may well
write about `<tool_call>`. The events of a text, deltas joined, do not depend on its pieces.
"""

import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from ds4tui.chat.json_follower import JsonFollower, NotJson
from ds4tui.chat.messages import ToolCall
from ds4tui.chat.tools import canonical_arguments
from ds4tui.errors import RequestError

OPENING, CLOSING = "<tool_call>", "</tool_call>"

# Until a call has its name nothing of it can be shown; longer than this it is taken for text.
_MAX_UNNAMED = 4096
# Blanks before a call are part of the syntax; of longer ones the rest is content.
_MAX_BLANKS = 64
_BLANKS = " \t\r\n"
_ARGUMENTS = ("arguments", "parameters")  # Llama's word for it is the second


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


def parser_of(syntax: str | None, new_id: Callable[[], str] = new_call_id) -> ToolCallParser | None:
    """For a name of `probing.Abilities.tool_syntax`; None where calls are not read."""
    return HermesParser(new_id) if syntax == "hermes" else None


class HermesParser:
    def __init__(self, new_id: Callable[[], str] = new_call_id) -> None:
        self._new_id = new_id
        self._text = ""  # not decided yet; of a call all after its marker
        self._call: _Call | None = None
        self._calls = 0  # that have ended or were taken back, which is how the next is numbered
        self._blanks = ""  # before the call that is being read
        self._may_close = False  # a closing marker may follow
        self._after_call = False  # nothing but blanks since the last call

    def push(self, text: str) -> list[ToolEvent]:
        self._text += text
        return list(self._events(last=False))

    def finish(self) -> list[ToolEvent]:
        return list(self._events(last=True))

    def _events(self, last: bool) -> Iterator[ToolEvent]:
        while True:
            call = self._call
            yield from self._in_content(last) if call is None else self._in_call(call, last)
            if self._call is call:
                return  # more text is needed for more

    def _in_content(self, last: bool) -> Iterator[ToolEvent]:
        if self._may_close and not self._skip_closing(last):
            return
        text = self._text
        at = text.find(OPENING)
        end = at if at >= 0 else len(text) - (0 if last else _begun(text, OPENING))
        blanks = min(_MAX_BLANKS, end - len(text[:end].rstrip(_BLANKS)))
        content, held = text[: end - blanks], text[end - blanks : end]
        if content:
            self._after_call = self._after_call and not content.strip(_BLANKS)
            yield ContentText(content)
        if at >= 0:
            self._call, self._blanks = _Call(), held
            self._text = text[at + len(OPENING) :]
            return
        if last and held and not self._after_call:
            yield ContentText(held)
        self._text = "" if last else text[end - blanks :]

    def _skip_closing(self, last: bool) -> bool:
        """Whether it is known if there is a closing marker; one that is there is taken."""
        rest = self._text.lstrip(_BLANKS)
        if len(self._text) - len(rest) <= _MAX_BLANKS:
            if rest.startswith(CLOSING):
                self._text = rest[len(CLOSING) :]
            elif CLOSING.startswith(rest) and not last:
                return False
        self._may_close = False
        return True

    def _in_call(self, call: "_Call", last: bool) -> Iterator[ToolEvent]:
        problem: str | None = None
        try:
            call.read(self._text)
            if call.is_done:
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
            self._call, self._may_close, self._after_call = None, True, True

    def _progress(self, call: "_Call") -> Iterator[ToolEvent]:
        if not call.id and call.name is not None and (call.has_object or call.canonical):
            call.id = self._new_id()
            yield CallBegun(self._calls, call.id, call.name)
        if call.id and (text := call.take_arguments()):
            yield CallArguments(self._calls, text)

    def _reject(self, call: "_Call", problem: str) -> Iterator[ToolEvent]:
        """The marker becomes content; what followed it is looked at anew."""
        if call.is_object:
            yield CallRejected(problem, self._calls if call.id else None)
            self._calls += 1 if call.id else 0
        yield ContentText(self._blanks + OPENING)
        self._call, self._blanks, self._after_call = None, "", False


class _Call:
    """A call that is being read. `position` is up to where its text was."""

    def __init__(self) -> None:
        self.id = ""  # given when it is told of
        self.name: str | None = None
        self.canonical = ""  # the arguments, once they are complete
        self.position = 0
        self.is_object = False  # its first character was that of an object
        self._follower = JsonFollower()
        self._values: dict[str, list[str]] = {}  # text of "name" and "arguments"
        self._taken = 0  # pieces of the arguments that were told

    @property
    def is_done(self) -> bool:
        return self._follower.is_done

    @property
    def has_object(self) -> bool:
        """Whether the arguments have begun as an object, and so can be told as they come."""
        return self._values.get("arguments", [""])[0] == "{"

    def read(self, text: str) -> None:
        """`text` is all of the call's, as far as it is known. Raises NotJson."""
        while self.position < len(text) and not self.is_done:
            character = text[self.position]
            if not self.is_object and self.position >= _MAX_BLANKS:
                raise NotJson("there are only blanks")
            self._feed(character)
            self.is_object = self.is_object or character == "{"
            self.position += 1
            if self.name is None and self.position > _MAX_UNNAMED:
                raise NotJson(f"it has no name in its first {_MAX_UNNAMED:,} characters")

    def _feed(self, character: str) -> None:
        follower = self._follower
        known = follower.in_value
        follower.feed(character)
        part = "arguments" if follower.key in _ARGUMENTS else follower.key
        if part not in ("name", "arguments"):
            return
        if follower.in_value:
            if not known and part in self._values:
                raise NotJson(f"it has two of {part!r}")
            # Control characters, which JSON forbids in strings, as JSON writes them.
            escape = follower.in_string and character < " "
            shown = json.dumps(character)[1:-1] if escape else character
            self._values.setdefault(part, []).append(shown)
        if follower.value_ended and part == "name":
            self.name = self._name()

    def _name(self) -> str:
        name = json.loads("".join(self._values["name"]))
        if not isinstance(name, str) or not name:
            raise NotJson("its name is no text")
        return name

    def take_arguments(self) -> str:
        """What is new of the arguments' text."""
        if not self.has_object:
            return self.canonical
        pieces = self._values.get("arguments", [])
        text, self._taken = "".join(pieces[self._taken :]), len(pieces)
        return text

    def end(self) -> None:
        """Complete the values. Raises NotJson and RequestError."""
        if self.name is None:
            raise NotJson("it has no name")
        arguments = json.loads("".join(self._values.get("arguments", ["null"])))
        self.canonical = canonical_arguments(arguments)


def _begun(text: str, marker: str) -> int:
    """How long the longest end of `text` is with which `marker` begins."""
    longest = min(len(text), len(marker) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(marker[:n])), 0)
