"""A reply as OpenAI's chat completion, whole or in chunks.

Besides OpenAI's fields an answer has `kv`: what was kept of the KV state, what was evaluated
and why.
"""

import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ds4tui.chat.tools import openai_call
from ds4tui.errors import Ds4Error
from ds4tui.events import (
    Decision,
    Event,
    PrefillProgress,
    ReasoningText,
    SampledToken,
    TokenLogprob,
    TokenText,
    ToolCallArguments,
    ToolCallBegun,
)
from ds4tui.server.cache_json import kv_json
from ds4tui.server.errors import error_object
from ds4tui.server.reply import Ending, Reply
from ds4tui.server.service import usage_json
from ds4tui.server.sse import DONE, data_frame

# What OpenAI documents for "very unlikely"; JSON cannot hold the -inf of a masked token.
LEAST_LOGPROB = -9999.0


@dataclass
class ChatDialect:
    """A server.reply.Dialect for one request. `with_progress`: a stream tells the prefill."""

    model: str
    with_logprobs: bool = False
    with_progress: bool = False
    include_usage: bool = False
    choices: int = 1
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    has_ping: ClassVar[bool] = False
    _held: list[SampledToken] = field(default_factory=list)  # whose text is still held back

    def whole(self, replies: Sequence[Reply]) -> dict[str, Any]:
        choices = [self._choice(number, reply) for number, reply in enumerate(replies)]
        ends = [reply.end for reply in replies]
        return {**self._common("chat.completion"), "choices": choices, **totals_json(ends)}

    def _choice(self, number: int, reply: Reply) -> dict[str, Any]:
        return {
            "index": number,
            "message": _message(reply),
            "logprobs": logprobs_json(reply.tokens) if self.with_logprobs else None,
            "finish_reason": reply.end.finished.stop_reason,
        }

    def opening(self) -> Iterable[bytes]:
        for number in range(self.choices):
            yield self._chunk(number, {"role": "assistant", "content": ""})

    def keep_alive(self) -> bytes:
        held, self._held = self._held, []  # they wait for their text
        frame = self._chunk(0, {})
        self._held = held
        return frame

    def told(self, choice: int, event: Event) -> Iterable[bytes]:
        if isinstance(event, TokenText | ReasoningText):
            self._held.extend(event.tokens)
        if self.with_progress and (progress := _progress(event)) is not None:
            yield self._chunk(choice, {}, prompt_progress=progress)
        delta = _delta(event)
        if delta is not None:
            yield self._chunk(choice, delta)

    def ended(self, choice: int, end: Ending) -> Iterable[bytes]:
        if self.with_logprobs and self._held:
            yield self._chunk(choice, {"content": ""})
        self._held = []
        yield self._chunk(choice, {}, end.finished.stop_reason)

    def closing(self, ends: Sequence[Ending]) -> Iterable[bytes]:
        if self.include_usage:
            chunk = {**self._common("chat.completion.chunk"), "choices": [], **totals_json(ends)}
            yield data_frame(chunk)
        yield DONE

    def failed(self, error: Ds4Error) -> Iterable[bytes]:
        yield data_frame({"error": error_object(error)})

    def _chunk(
        self, number: int, delta: dict[str, Any], finish_reason: str | None = None, **more: Any
    ) -> bytes:
        held, self._held = self._held, []
        choice = {
            "index": number,
            "delta": delta,
            "logprobs": logprobs_json(held) if self.with_logprobs and held else None,
            "finish_reason": finish_reason,
        }
        chunk = {**self._common("chat.completion.chunk"), "choices": [choice], **more}
        return data_frame({**chunk, "usage": None} if self.include_usage else chunk)

    def _common(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def totals_json(ends: Sequence[Ending]) -> dict[str, Any]:
    usages = [end.finished.usage for end in ends]
    return {"usage": usage_json(usages), "kv": kv_json(ends[0].decision)}


def _message(reply: Reply) -> dict[str, Any]:
    content = None if reply.calls and not reply.text else reply.text
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = list(map(openai_call, reply.calls))
    return message


def _progress(event: Event) -> dict[str, Any] | None:
    """llama.cpp's: tokens of the prompt, those that were resident, those and the evaluated ones,
    and how long evaluating has taken."""
    if isinstance(event, Decision):
        total = event.kept + event.evaluated
        return {"total": total, "cache": event.kept, "processed": event.kept, "time_ms": 0}
    if not isinstance(event, PrefillProgress):
        return None
    return {
        "total": event.cached + event.total,
        "cache": event.cached,
        "processed": event.cached + event.done,
        "time_ms": round(event.done / event.tokens_per_s * 1e3) if event.tokens_per_s else 0,
    }


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


def logprobs_json(tokens: Iterable[SampledToken]) -> dict[str, Any]:
    content = [
        {**_candidate(token.chosen), "top_logprobs": [_candidate(one) for one in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def told_logprob(token: TokenLogprob) -> float:
    return token.logprob if token.logprob >= LEAST_LOGPROB else LEAST_LOGPROB  # NaN as well


def _candidate(token: TokenLogprob) -> dict[str, Any]:
    logprob = told_logprob(token)
    return {
        "token": token.token_bytes.decode("utf-8", "replace"),
        "logprob": logprob,
        "bytes": list(token.token_bytes),
    }
