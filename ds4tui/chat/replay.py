"""What was sampled, remembered by what was shown.

Clients send replies back as text, often trimmed; the same text may be other tokens than those
the model produced, and one differing token costs all that comes after it. So replies are
looked up by the conversation before them and their own text, both without blanks at the ends.
Of tool calls the names and arguments count, in whatever order clients put the keys of an object
and whatever ids they give; reasoning, which clients drop, does not.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

import xxhash

from ds4tui.chat.messages import Message, ToolCall
from ds4tui.chat.tools import order_free

# Of a reply's 16-byte key and its containers; ids come on top.
_ENTRY_BYTES = 256


class ReplayMemory:
    """Bounded; the least recently used replies are forgotten first. Not for use by several
    threads at once."""

    def __init__(self, max_entries: int = 4096, max_bytes: int = 32 * 2**20) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._bytes = 0
        self._replies: OrderedDict[bytes, array[int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._replies)

    @property
    def nbytes(self) -> int:
        return self._bytes

    def remember(
        self,
        messages: Sequence[Message],
        reply_text: str,
        sampled_ids: Sequence[int],
        tool_calls: Sequence[ToolCall] = (),
    ) -> None:
        """`reply_text` was shown and `tool_calls` were made for `messages`; `sampled_ids` are
        the tokens of all of it."""
        hasher = _Conversation()
        for message in messages:
            hasher.add(message)
        key = hasher.key(reply_text, tool_calls)
        self._forget(key)
        ids = array("q", sampled_ids)
        self._replies[key] = ids
        self._bytes += _size(ids)
        while len(self._replies) > self._max_entries or self._bytes > self._max_bytes:
            self._forget(next(iter(self._replies)))

    def recall(self, messages: Sequence[Message]) -> list[Message]:
        """`messages`, with the sampled ids of the assistant turns that are remembered. Turns
        that have sampled ids keep them."""
        hasher = _Conversation()
        known: list[Message] = []
        for message in messages:
            known.append(self._with_ids(message, hasher))
            hasher.add(message)
        return known

    def _with_ids(self, message: Message, before: "_Conversation") -> Message:
        if message.role != "assistant" or message.sampled_ids is not None:
            return message
        key = before.key(message.text, message.tool_calls)
        ids = self._replies.get(key)
        if ids is None:
            return message
        self._replies.move_to_end(key)
        return replace(message, sampled_ids=tuple(ids))

    def _forget(self, key: bytes) -> None:
        ids = self._replies.pop(key, None)
        if ids is not None:
            self._bytes -= _size(ids)


def _size(ids: "array[int]") -> int:
    return _ENTRY_BYTES + len(ids) * ids.itemsize


class _Conversation:
    """Running hash (xxh3_128) of roles, stripped texts and calls; lengths keep them apart."""

    def __init__(self) -> None:
        self._hasher = xxhash.xxh3_128()

    def add(self, message: Message) -> None:
        self._hasher.update(_framed(message.role, message.text, message.tool_calls))

    def key(self, reply_text: str, tool_calls: Sequence[ToolCall]) -> bytes:
        """The key of a reply to the conversation so far."""
        hasher = self._hasher.copy()
        hasher.update(_framed("reply", reply_text, tool_calls))
        return hasher.digest()


def _framed(role: str, text: str, calls: Sequence[ToolCall]) -> bytes:
    parts = [_part(role, text), *(_part("call", order_free(call)) for call in calls)]
    return b"".join(parts)


def _part(name: str, text: str) -> bytes:
    data = text.strip().encode("utf-8", "surrogatepass")
    return f"{name} {len(data)} ".encode() + data
