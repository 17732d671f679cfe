"""Replies found by the ids of their calls, which are ours and name one reply each.

Clients write calls anew (keys in another order, `1` for `1.0`) and leave out what was said beside
them. With all the ids of a reply, calls that say the same by value and the text, if it is there,
the tokens are those that were sampled. Calls that say something else are somebody's edit: with the
sampled tokens the model would be told what it said, and not what the client shows.
"""

import json
import logging
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from ds4tui.chat.messages import Message, ToolCall

_log = logging.getLogger(__name__)

# Floats that JavaScript writes as whole numbers.
_LARGEST_WHOLE = 2.0**53

_ID_BYTES = 8
_KEY_BYTES = 16  # of a conversation's key, which a row has before the ids

LoadRow = Callable[[bytes], Sequence[int] | None]


@dataclass(frozen=True, slots=True)
class MadeReply:
    """What was sampled, and the key of the conversation with it."""

    key: bytes
    ids: Sequence[int]


class RepliesByCall:
    """Bounded in number and by the ids; the least recently used are forgotten first. `load` finds
    rows of earlier processes. Not for use by several threads at once."""

    def __init__(self, max_entries: int, max_bytes: int, load: LoadRow) -> None:
        self._max_entries, self._max_bytes = max_entries, max_bytes
        self._load = load
        self._bytes = 0
        self._made: OrderedDict[bytes, MadeReply] = OrderedDict()
        # Of each call what it says, and how many stood with it.
        self._calls: OrderedDict[str, tuple[str, int]] = OrderedDict()
        self._told: OrderedDict[bytes, None] = OrderedDict()

    def remember(
        self, text: str, calls: Sequence[ToolCall], reply: MadeReply
    ) -> dict[bytes, tuple[int, ...]]:
        """Keep a reply under the names by which it is found: with its text and without. These,
        each with its row for later processes."""
        if not calls or not all(call.id for call in calls):
            return {}
        for call in calls:
            _put(self._calls, call.id, (_said(call), len(calls)), self._max_entries)
        names = dict.fromkeys((_name(text, calls), _name("", calls)))
        for name in names:
            self._keep(name, reply)
        return dict.fromkeys(names, (*reply.key, *reply.ids))

    def of(self, message: Message) -> MadeReply | None:
        """The reply whose calls these are, None for calls that nobody made here."""
        calls = message.tool_calls
        if not calls or not all(call.id for call in calls):
            return None
        name = _name(message.text, calls)
        made = self._made.get(name)
        if made is not None:
            self._made.move_to_end(name)
            return made
        row = self._load(name)
        if row is None or len(row) < _KEY_BYTES or max(row[:_KEY_BYTES]) > 255:
            self._tell_why(name, message)
            return None
        made = MadeReply(bytes(row[:_KEY_BYTES]), array("q", row[_KEY_BYTES:]))
        self._keep(name, made)
        return made

    def _keep(self, name: bytes, reply: MadeReply) -> None:
        self._forget(name)
        self._made[name] = reply
        self._bytes += _ID_BYTES * len(reply.ids)
        while len(self._made) > 2 * self._max_entries or self._bytes > self._max_bytes:
            self._forget(next(iter(self._made)))

    def _forget(self, name: bytes) -> None:
        made = self._made.pop(name, None)
        self._bytes -= _ID_BYTES * len(made.ids) if made else 0

    def _tell_why(self, name: bytes, message: Message) -> None:
        """Once of each, what differs from what was sampled under these ids."""
        reason = self._reason(message)
        if reason and name not in self._told:
            _put(self._told, name, None, self._max_entries)
            _log.info("a reply is not replayed as it was sampled: %s", reason)

    def _reason(self, message: Message) -> str:
        known = [call for call in message.tool_calls if call.id in self._calls]
        for call in known:
            if self._calls[call.id][0] != _said(call):
                return f"the call {call.id} came back with other arguments, which count"
        if not known:
            return ""
        count = self._calls[known[0].id][1]
        if len(known) != len(message.tool_calls) or count != len(message.tool_calls):
            return f"of the {count} calls that were made with {known[0].id} others came back"
        return f"what was said beside the call {known[0].id} was changed"


def _put(kept: "OrderedDict[Any, Any]", name: Any, value: Any, most: int) -> None:
    kept[name] = value
    kept.move_to_end(name)
    while len(kept) > most:
        kept.popitem(last=False)


def _name(text: str, calls: Sequence[ToolCall]) -> bytes:
    told = [[call.id, _said(call)] for call in calls]
    words = json.dumps(["by calls", " ".join(text.split()), told])
    return xxhash.xxh3_128_digest(words.encode())


def _said(call: ToolCall) -> str:
    """The same for calls that say the same by value; null and false are as good as nothing
    (tools.order_free)."""
    try:
        value = _plain(json.loads(call.arguments))
    except (ValueError, RecursionError):
        return f"{call.name} {call.arguments.strip()}"
    if isinstance(value, dict):
        value = {key: said for key, said in value.items() if said is not None and said is not False}
    return f"{call.name} {json.dumps(value, sort_keys=True)}"


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < _LARGEST_WHOLE:
        return int(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
