"""A reply's events with its reasoning, its text and its tool calls told apart.

The engine says TokenText and knows nothing else. What is read here has the same tokens: each
event's ids and log-probabilities go out once, with the first text of it, or with an empty one
where all of it is held back. What was held back comes before the event that ends the job.
"""

import logging
from collections.abc import Iterator
from dataclasses import replace

from ds4tui.chat.messages import ToolCall
from ds4tui.chat.thinking import ReasoningPiece, ThinkingParser
from ds4tui.chat.toolcalls import (
    CallArguments,
    CallBegun,
    CallEnded,
    CallRejected,
    ContentText,
    ToolCallParser,
    ToolEvent,
)
from ds4tui.events import (
    Event,
    Failed,
    Finished,
    ReasoningText,
    TokenText,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallEnded,
    ToolCallRejected,
)

_log = logging.getLogger(__name__)


class ReplyReader:
    """Reads one reply, on one thread. `text`, `reasoning` and `calls` are what was told so far;
    without a parser all is text."""

    def __init__(self, thinking: ThinkingParser | None, calls: ToolCallParser | None) -> None:
        self._thinking = thinking
        self._call_parser = calls
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(self._calls)

    def read(self, event: Event) -> list[Event]:
        """What a front-end hears instead of `event`."""
        if isinstance(event, TokenText):
            return self._with_tokens(event, list(self._pieces(event.job_id, event.text)))
        if not isinstance(event, Finished | Failed):
            return [event]
        rest = list(self._rest(event.job_id))
        if isinstance(event, Finished) and event.stop_reason == "stop":
            rest += self._called_while_thinking(event.job_id)
            if self._calls:
                event = replace(event, stop_reason="tool_calls")
        return [*rest, event]

    def _with_tokens(self, event: TokenText, pieces: list[Event]) -> list[Event]:
        for number, piece in enumerate(pieces):
            if isinstance(piece, TokenText | ReasoningText):
                pieces[number] = replace(piece, token_ids=event.token_ids, tokens=event.tokens)
                return pieces
        return [replace(event, text=""), *pieces]

    def _pieces(self, job_id: str, text: str) -> Iterator[Event]:
        if self._thinking is None:
            yield from self._content(job_id, text)
            return
        for piece in self._thinking.push(text):
            if isinstance(piece, ReasoningPiece):
                yield self._thought(job_id, piece.text)
            else:
                yield from self._content(job_id, piece.text)

    def _content(self, job_id: str, text: str) -> Iterator[Event]:
        parser = self._call_parser
        found: list[ToolEvent] = [ContentText(text)] if parser is None else parser.push(text)
        yield from self._told(job_id, found)

    def _rest(self, job_id: str) -> Iterator[Event]:
        for piece in self._thinking.finish() if self._thinking else []:
            if isinstance(piece, ReasoningPiece):
                yield self._thought(job_id, piece.text)
            else:
                yield from self._content(job_id, piece.text)
        if self._call_parser is not None:
            yield from self._told(job_id, self._call_parser.finish())

    def _called_while_thinking(self, job_id: str) -> Iterator[Event]:
        """Calls with which a reply ended whose reasoning was never closed: models forget that
        mark, and wait for the result."""
        thinking, parser = self._thinking, self._call_parser
        if parser is None or thinking is None or not thinking.is_open:
            return
        for index, call in enumerate(parser.calls_ending(self.reasoning)):
            _log.info("%s: a call of %r ended reasoning that was not closed", job_id, call.name)
            yield ToolCallBegun(job_id, index, call.id, call.name)
            yield ToolCallArguments(job_id, index, call.arguments)
            self._calls.append(call)
            yield ToolCallEnded(job_id, index, call.id, call.name, call.arguments)

    def _thought(self, job_id: str, text: str) -> ReasoningText:
        self._reasoning.append(text)
        return ReasoningText(job_id, text, ())

    def _told(self, job_id: str, found: list[ToolEvent]) -> Iterator[Event]:
        for event in found:
            match event:
                case ContentText(text=text):
                    if text:
                        self._texts.append(text)
                        yield TokenText(job_id, text, ())
                case CallBegun(index=index, id=call_id, name=name):
                    yield ToolCallBegun(job_id, index, call_id, name)
                case CallArguments(index=index, text=text):
                    yield ToolCallArguments(job_id, index, text)
                case CallEnded(index=index, call=call):
                    self._calls.append(call)
                    yield ToolCallEnded(job_id, index, call.id, call.name, call.arguments)
                case CallRejected(reason=reason, index=index):
                    _log.info("%s: something like a tool call is text: %s", job_id, reason)
                    if index is not None:
                        yield ToolCallRejected(job_id, index, reason)
