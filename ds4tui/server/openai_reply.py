"""A job's events as OpenAI's chat completion, whole or in chunks.

Besides OpenAI's fields an answer has `kv`: what was kept of the KV state, what was evaluated
and why. An incomplete reply never looks like a complete one: it ends with an error.
"""

import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ds4tui.errors import Ds4Error, EngineClosed
from ds4tui.events import (
    Decision,
    Event,
    Failed,
    Finished,
    ReasoningText,
    SampledToken,
    TokenLogprob,
    TokenText,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallEnded,
)
from ds4tui.server.cache_json import kv_json
from ds4tui.server.errors import as_ds4_error, error_object
from ds4tui.server.jobs import JobEvents
from ds4tui.server.service import usage_json
from ds4tui.server.sse import EventWriter

# What OpenAI documents for "very unlikely"; JSON cannot hold the -inf of a masked token.
LEAST_LOGPROB = -9999.0


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """What every object of one answer repeats, and what the client wanted in it."""

    model: str
    with_logprobs: bool = False
    include_usage: bool = False
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, reply: "WholeReply", end: "Ending") -> dict[str, Any]:
        choice = {
            "index": 0,
            "message": reply.message(),
            "logprobs": _logprobs(reply.tokens) if self.with_logprobs else None,
            "finish_reason": end.finished.stop_reason,
        }
        return {
            **self._common("chat.completion"),
            "choices": [choice],
            "usage": usage_json(end.finished.usage),
            "kv": kv_json(end.decision),
        }

    def chunk(
        self,
        delta: dict[str, Any],
        tokens: Iterable[SampledToken] = (),
        finish_reason: str | None = None,
    ) -> dict[str, Any]:
        tokens = tuple(tokens)
        choice = {
            "index": 0,
            "delta": delta,
            "logprobs": _logprobs(tokens) if self.with_logprobs and tokens else None,
            "finish_reason": finish_reason,
        }
        chunk = {**self._common("chat.completion.chunk"), "choices": [choice]}
        return {**chunk, "usage": None} if self.include_usage else chunk

    def usage_chunk(self, end: "Ending") -> dict[str, Any]:
        return {
            **self._common("chat.completion.chunk"),
            "choices": [],
            "usage": usage_json(end.finished.usage),
            "kv": kv_json(end.decision),
        }

    def _common(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


@dataclass(frozen=True, slots=True)
class Ending:
    """How a reply ended, and what the session had kept for it."""

    finished: Finished
    decision: Decision | None

    @property
    def note(self) -> str:
        """The words of the log line."""
        usage = self.finished.usage
        return (
            f"job={self.finished.job_id} finish={self.finished.stop_reason} "
            f"prompt={usage.prompt_tokens} cached={usage.cached_tokens} "
            f"evaluated={usage.evaluated_tokens} completion={usage.completion_tokens} "
            f"ttft_ms={usage.ttft_ms:.0f}"
        )


class WholeReply:
    """What a reply's events say in all."""

    def __init__(self) -> None:
        self.tokens: list[SampledToken] = []
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[dict[str, Any]] = []

    def add(self, event: Event | None) -> None:
        if isinstance(event, TokenText | ReasoningText):
            self.tokens.extend(event.tokens)
            told = self._texts if isinstance(event, TokenText) else self._reasoning
            told.append(event.text)
        elif isinstance(event, ToolCallEnded):
            function = {"name": event.name, "arguments": event.arguments}
            call = {"id": event.call_id, "type": "function", "function": function}
            self._calls.append(call)

    def message(self) -> dict[str, Any]:
        text, reasoning = "".join(self._texts), "".join(self._reasoning)
        content = None if self._calls and not text else text
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if reasoning:
            message["reasoning_content"] = reasoning
        if self._calls:
            message["tool_calls"] = self._calls
        return message


async def whole_reply(head: ReplyHead, events: JobEvents) -> tuple[dict[str, Any], Ending]:
    """The body of a complete answer. Raises the Ds4Error that the job failed with."""
    reply = WholeReply()
    while True:
        event = await events.next()
        reply.add(event)
        if isinstance(event, Finished):
            end = Ending(_complete(event), events.decision)
            return head.whole(reply, end), end
        if isinstance(event, Failed):
            raise as_ds4_error(event.error)


class ReplyStream:
    """Writes one answer as chunks; `ending` says how it ended once it has."""

    def __init__(self, head: ReplyHead, events: JobEvents, keep_alive_s: float) -> None:
        self._head = head
        self._events = events
        self._keep_alive_s = keep_alive_s
        self._pending: list[SampledToken] = []  # tokens whose text is still held back
        self.ending: Ending | None = None
        self.error: Ds4Error | None = None

    async def write(self, writer: EventWriter) -> None:
        await writer.data(self._head.chunk({"role": "assistant", "content": ""}))
        try:
            self.ending = await self._write_deltas(writer)
        except Ds4Error as exc:
            self.error = exc
            await writer.data({"error": error_object(exc)})
            return
        await self._write_end(writer, self.ending)

    async def _write_deltas(self, writer: EventWriter) -> Ending:
        while True:
            silent_s = time.monotonic() - writer.written_s
            event = await self._events.next(max(0.0, self._keep_alive_s - silent_s))
            if event is None:
                await writer.comment(self._events.phase)
            elif isinstance(event, Finished):
                return Ending(_complete(event), self._events.decision)
            elif isinstance(event, Failed):
                raise as_ds4_error(event.error)
            else:
                await self._write_delta(writer, event)

    async def _write_delta(self, writer: EventWriter, event: Event) -> None:
        if isinstance(event, TokenText | ReasoningText):
            self._pending.extend(event.tokens)
        delta = _delta(event)
        if delta is not None:
            await self._write(writer, delta)

    async def _write(self, writer: EventWriter, delta: dict[str, Any]) -> None:
        tokens, self._pending = self._pending, []
        await writer.data(self._head.chunk(delta, tokens))

    async def _write_end(self, writer: EventWriter, end: Ending) -> None:
        if self._head.with_logprobs and self._pending:
            await self._write(writer, {"content": ""})
        await writer.data(self._head.chunk({}, finish_reason=end.finished.stop_reason))
        if self._head.include_usage:
            await writer.data(self._head.usage_chunk(end))
        await writer.raw(b"data: [DONE]\n\n")


def _delta(event: Event) -> dict[str, Any] | None:
    """What a chunk says of an event, None for nothing.

    A call that began and turns out to be none cannot be taken back: its text follows as content,
    and the finish_reason is that of a reply without calls.
    """
    match event:
        case TokenText(text=text) if text:
            return {"content": text}
        case ReasoningText(text=text) if text:
            return {"reasoning_content": text}
        case ToolCallBegun(index=index, call_id=call_id, name=name):
            function = {"name": name, "arguments": ""}
            call = {"index": index, "id": call_id, "type": "function", "function": function}
            return {"tool_calls": [call]}
        case ToolCallArguments(index=index, text=text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
    return None


def _complete(finished: Finished) -> Finished:
    if finished.stop_reason == "cancelled":
        raise EngineClosed("The reply was cancelled before it was complete.", "Send it again.")
    return finished


def _logprobs(tokens: Iterable[SampledToken]) -> dict[str, Any]:
    content = [
        {**_candidate(token.chosen), "top_logprobs": [_candidate(one) for one in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _candidate(token: TokenLogprob) -> dict[str, Any]:
    logprob = token.logprob if token.logprob >= LEAST_LOGPROB else LEAST_LOGPROB  # NaN as well
    return {
        "token": token.token_bytes.decode("utf-8", "replace"),
        "logprob": logprob,
        "bytes": list(token.token_bytes),
    }
