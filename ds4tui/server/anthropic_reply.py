"""A reply as Anthropic's message, whole or as events.

Reasoning, text and calls are blocks, one open at a time; no block is opened for nothing. Of the
usage `input_tokens` are those that were not resident, if the request asks for caching; clients
that do not ask add nothing to them, so then they are all (and `kv` says what was resident).
"""

import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ds4tui.errors import Ds4Error
from ds4tui.events import (
    Event,
    ReasoningText,
    TokenText,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallEnded,
    ToolCallRejected,
    Usage,
)
from ds4tui.server.cache_json import kv_json
from ds4tui.server.errors import anthropic_error
from ds4tui.server.reply import Ending, Reply
from ds4tui.server.sse import event_frame

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


@dataclass
class MessagesDialect:
    """A server.reply.Dialect for one request. `counts_cache`: it asked for caching,
    `edits_context`: it asked for edits of its history, of which none is made."""

    model: str
    counts_cache: bool = False
    edits_context: bool = False
    id: str = field(default_factory=lambda: f"msg_{uuid.uuid4().hex}")
    has_ping: ClassVar[bool] = True
    _open: str = ""  # type of the block that is open
    _index: int = -1  # of the latest block

    def whole(self, replies: Sequence[Reply]) -> dict[str, Any]:
        [reply] = replies
        return {
            **self._head(_blocks(reply), reply.end.finished.usage),
            **_stop(reply.end),
            **self._more(reply.end),
        }

    def _more(self, end: Ending) -> dict[str, Any]:
        edits: dict[str, Any] = (
            {"context_management": {"applied_edits": []}} if self.edits_context else {}
        )
        return {**edits, "kv": kv_json(end.decision)}

    def _head(self, content: list[Any], usage: Usage) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(usage),
        }

    def _usage(self, usage: Usage) -> dict[str, int]:
        cached = usage.cached_tokens if self.counts_cache else 0
        return {
            "input_tokens": usage.prompt_tokens - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": usage.completion_tokens,
        }

    def opening(self) -> Iterable[bytes]:
        # Nothing is counted yet: the first byte must not wait. The last event has the numbers.
        yield _frame("message_start", message=self._head([], Usage()))

    def keep_alive(self) -> bytes:
        return _frame("ping")

    def told(self, choice: int, event: Event) -> Iterable[bytes]:
        match event:
            case ReasoningText(text=text) if text:
                yield from self._within("thinking", {"thinking": "", "signature": ""})
                yield self._delta({"type": "thinking_delta", "thinking": text})
            case TokenText(text=text) if text:
                yield from self._within("text", {"text": ""})
                yield self._delta({"type": "text_delta", "text": text})
            case ToolCallBegun(call_id=call_id, name=name):
                yield from self._close()
                yield from self._within("tool_use", {"id": call_id, "name": name, "input": {}})
            case ToolCallArguments(text=text) if text:
                yield self._delta({"type": "input_json_delta", "partial_json": text})
            case ToolCallEnded() | ToolCallRejected():
                yield from self._close()

    def ended(self, choice: int, end: Ending) -> Iterable[bytes]:
        yield from self._close()
        usage = self._usage(end.finished.usage)
        yield _frame("message_delta", delta=_stop(end), usage=usage, **self._more(end))

    def closing(self, ends: Sequence[Ending]) -> Iterable[bytes]:
        yield _frame("message_stop")

    def failed(self, error: Ds4Error) -> Iterable[bytes]:
        yield event_frame("error", anthropic_error(error))

    def _within(self, kind: str, block: dict[str, Any]) -> Iterable[bytes]:
        if self._open == kind:
            return
        yield from self._close()
        self._open = kind
        self._index += 1
        block = {"type": kind, **block}
        yield _frame("content_block_start", index=self._index, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _frame("content_block_delta", index=self._index, delta=delta)

    def _close(self) -> Iterable[bytes]:
        if self._open:
            self._open = ""
            yield _frame("content_block_stop", index=self._index)


def _frame(kind: str, **values: Any) -> bytes:
    return event_frame(kind, {"type": kind, **values})


def _stop(end: Ending) -> dict[str, Any]:
    stopped_by = end.finished.stop_string
    if stopped_by is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": stopped_by}
    return {"stop_reason": _STOP_REASONS[end.finished.stop_reason], "stop_sequence": None}


def _blocks(reply: Reply) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if reply.reasoning:
        blocks.append({"type": "thinking", "thinking": reply.reasoning, "signature": ""})
    if reply.text:
        blocks.append({"type": "text", "text": reply.text})
    for call in reply.calls:
        values = json.loads(call.arguments)
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": values})
    return blocks
