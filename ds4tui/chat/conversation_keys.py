"""Names for conversations, and for what stands in them, that survive being sent back.

What clients change without meaning anything does not count: white space at the ends of texts,
the order of keys and the layout of JSON in tool calls and results, ids of calls, reasoning (which
many drop), clocks and accounting headers in system texts. Keys are 16 bytes (xxh3_128) and the
same in every process.
"""

import json
from collections.abc import Sequence
from datetime import datetime

import xxhash

from ds4tui.chat.messages import Message, ToolCall
from ds4tui.chat.tools import order_free
from ds4tui.chat.volatile import without_accounting, without_clocks


class ConversationKeys:
    """Running keys of one conversation. `now` is when it is sent. Not for several threads."""

    def __init__(self, now: datetime) -> None:
        self._hasher = xxhash.xxh3_128()
        self._now = now

    def add(self, message: Message) -> None:
        self._hasher.update(self._framed(message))

    def reply(self, text: str, calls: Sequence[ToolCall]) -> bytes:
        """Of a reply to the conversation so far."""
        return self._with(_parts("reply", text.strip(), calls))

    def message(self, message: Message) -> bytes:
        """Of the next message."""
        return self._with(self._framed(message))

    def opening(self, message: Message, question: str) -> bytes:
        """Of a system text of the conversation that begins with `question`."""
        return self._with(self._framed(message) + _part("question", question.strip()))

    def _with(self, data: bytes) -> bytes:
        hasher = self._hasher.copy()
        hasher.update(data)
        return hasher.digest()

    def _framed(self, message: Message) -> bytes:
        text = message.text.strip()
        if message.role == "system":
            text = without_clocks(without_accounting(text), self._now).strip()
        elif message.role == "tool":
            text = in_order(text)
        return _parts(message.role, text, message.tool_calls)


def shared_key(message: Message) -> bytes:
    """Of a system text, whatever conversation it begins."""
    return xxhash.xxh3_128_digest(_part("shared", without_accounting(message.text).strip()))


def in_order(text: str) -> str:
    """JSON of an object or an array with its keys in order; any other text as it is."""
    return _ordered(text) if text[:1] in ("{", "[") else text


def _ordered(text: str) -> str:
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except (ValueError, RecursionError):
        return text


def _parts(role: str, text: str, calls: Sequence[ToolCall]) -> bytes:
    return b"".join([_part(role, text), *(_part("call", order_free(call)) for call in calls)])


def _part(name: str, text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return f"{name} {len(data)} ".encode() + data
