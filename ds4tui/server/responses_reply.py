"""A reply as a response of OpenAI's newer API, whole or as events.

Reasoning, text and calls are items, one open at a time. Each event names its type in its data,
and begins and ends with the whole response, since strict clients read nothing else.
"""

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
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
from ds4tui.server.errors import error_object
from ds4tui.server.openai_reply import logprobs_json
from ds4tui.server.reply import Ending, Reply, reply_of
from ds4tui.server.responses_tools import CallItems, free_text
from ds4tui.server.sse import event_frame

# What a response says is kept for requests that go on from it: its id, and what it says.
Keep = Callable[[str, Reply, dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Echo:
    """Fields of the request that its response repeats."""

    values: dict[str, Any]


@dataclass
class ResponsesDialect:
    """A server.reply.Dialect for one request. `calls` writes those of its tools, `keep` is told
    of a complete response."""

    model: str
    echo: Echo
    calls: CallItems
    keep: Keep | None = None
    id: str = field(default_factory=lambda: f"resp_{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    has_ping: ClassVar[bool] = False
    _number: int = 0  # of the next event
    _output: list[dict[str, Any]] = field(default_factory=list)  # items that are complete
    _item: dict[str, Any] | None = None  # the open one
    _index: int = -1  # of the latest item
    _events: list[Event] = field(default_factory=list)
    _reasoning_tokens: int = 0

    def whole(self, replies: Sequence[Reply]) -> dict[str, Any]:
        [reply] = replies
        self._reasoning_tokens = reply.reasoning_tokens
        response = self._response(self._items(reply), reply.end)
        if self.keep is not None:
            self.keep(self.id, reply, response)
        return response

    def opening(self) -> Iterable[bytes]:
        yield self._frame("response.created", response=self._response([], None))
        yield self._frame("response.in_progress", response=self._response([], None))

    def keep_alive(self) -> bytes:
        # Strict clients refuse events that they do not know.
        return self._frame("response.in_progress", response=self._response(self._output, None))

    def told(self, choice: int, event: Event) -> Iterable[bytes]:
        self._events.append(event)
        match event:
            case ReasoningText(text=text, token_ids=ids):
                self._reasoning_tokens += len(ids)
                if text:
                    yield from self._within("reasoning", _reasoning_item(""))
                    yield from self._more("content", "response.reasoning_text.delta", text)
            case TokenText(text=text, tokens=tokens) if text:
                yield from self._within("message", _message_item(""))
                told = logprobs_json(tokens)["content"] if tokens else []
                yield from self._more("content", "response.output_text.delta", text, logprobs=told)
            case ToolCallBegun(call_id=call_id, name=name):
                yield from self._close()
                item = self._call_item(call_id, name, "")
                yield from self._within(item["type"], item)
            case ToolCallArguments(text=text) if text:
                yield from self._more_arguments(text)
            case ToolCallEnded(arguments=arguments):
                yield from self._end_call(arguments)
                yield from self._close()
            case ToolCallRejected():
                self._item = None  # a client would run what is said to be done

    def ended(self, choice: int, end: Ending) -> Iterable[bytes]:
        yield from self._close()
        response = self._response(self._output, end)
        if self.keep is not None:
            self.keep(self.id, reply_of(self._events, end), response)
        yield self._frame(f"response.{response['status']}", response=response)

    def closing(self, ends: Sequence[Ending]) -> Iterable[bytes]:
        return ()

    def failed(self, error: Ds4Error) -> Iterable[bytes]:
        told = error_object(error)
        failure = {"code": told["code"] or told["type"], "message": told["message"]}
        response = {**self._response(self._output, None), "status": "failed", "error": failure}
        yield self._frame("response.failed", response=response)

    def _response(self, output: list[dict[str, Any]], end: Ending | None) -> dict[str, Any]:
        is_cut = end is not None and end.finished.stop_reason == "length"
        ended = "incomplete" if is_cut else "completed"
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": int(time.time()) if end is not None and not is_cut else None,
            "status": "in_progress" if end is None else ended,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "model": self.model,
            "output": list(output),
            "usage": self._usage(end.finished.usage) if end is not None else None,
            **self.echo.values,
            "kv": kv_json(end.decision) if end is not None else None,
        }

    def _usage(self, usage: Usage) -> dict[str, Any]:
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._reasoning_tokens},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }

    def _within(self, kind: str, item: dict[str, Any]) -> Iterable[bytes]:
        if self._item is not None and self._item["type"] == kind:
            return
        yield from self._close()
        self._item, self._index = item, self._index + 1
        empty = {**item, "status": "in_progress"}
        if "call_id" in item:
            yield self._frame("response.output_item.added", output_index=self._index, item=empty)
            return
        empty["content"] = []
        yield self._frame("response.output_item.added", output_index=self._index, item=empty)
        part = item["content"][0]
        yield self._of_item("response.content_part.added", content_index=0, part={**part})

    def _more_arguments(self, text: str) -> Iterable[bytes]:
        if self._item is not None and self._item["type"] == "function_call":
            self._item["arguments"] += text
            yield self._of_item("response.function_call_arguments.delta", delta=text)

    def _end_call(self, arguments: str) -> Iterable[bytes]:
        if self._item is None:
            return
        if self._item["type"] == "function_call":
            self._item["arguments"] = arguments
        else:  # what is free text can be told once its JSON is complete
            text = self._item["input"] = free_text(arguments)
            yield self._of_item("response.custom_tool_call_input.delta", delta=text)

    def _more(self, name: str, kind: str, text: str, **more: Any) -> Iterable[bytes]:
        assert self._item is not None
        self._item[name][0]["text"] += text
        yield self._of_item(kind, content_index=0, delta=text, **more)

    def _close(self) -> Iterable[bytes]:
        item, self._item = self._item, None
        if item is None:
            return
        item["status"] = "completed"
        self._output.append(item)
        self._item = item  # for the frames below
        if item["type"] == "function_call":
            done = {"name": item["name"], "arguments": item["arguments"]}
            yield self._of_item("response.function_call_arguments.done", **done)
        elif item["type"] == "custom_tool_call":
            yield self._of_item("response.custom_tool_call_input.done", input=item["input"])
        else:
            part = item["content"][0]
            kind = "output_text" if item["type"] == "message" else "reasoning_text"
            more: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
            yield self._of_item(f"response.{kind}.done", content_index=0, text=part["text"], **more)
            yield self._of_item("response.content_part.done", content_index=0, part=part)
        self._item = None
        yield self._frame("response.output_item.done", output_index=self._index, item=item)

    def _of_item(self, kind: str, **values: Any) -> bytes:
        assert self._item is not None
        return self._frame(kind, item_id=self._item["id"], output_index=self._index, **values)

    def _items(self, reply: Reply) -> list[dict[str, Any]]:
        items = []
        if reply.reasoning:
            items.append(_reasoning_item(reply.reasoning))
        if reply.text:
            message = _message_item(reply.text)
            if reply.tokens:
                message["content"][0]["logprobs"] = logprobs_json(reply.tokens)["content"]
            items.append(message)
        items += [self._call_item(call.id, call.name, call.arguments) for call in reply.calls]
        return [{**item, "status": "completed"} for item in items]

    def _call_item(self, call_id: str, name: str, arguments: str) -> dict[str, Any]:
        item = self.calls.item(call_id, name, arguments)
        return {"id": _new_id("fc" if item["type"] == "function_call" else "ctc"), **item}

    def _frame(self, kind: str, **values: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return event_frame(kind, {"type": kind, "sequence_number": number, **values})


def _reasoning_item(text: str) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "id": _new_id("rs"), "summary": [], "content": content}


def _message_item(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    return {"type": "message", "id": _new_id("msg"), "role": "assistant", "content": content}


def _new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"
