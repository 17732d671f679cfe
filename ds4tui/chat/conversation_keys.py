"""Names for conversations, and for what stands in them, that survive being sent back.

What clients change without meaning anything does not count: white space at the ends of texts,
the order of keys and the layout of JSON in tool calls and results, ids of calls, reasoning (which
many drop), clocks and accounting headers in system texts, how the file of a picture is written.
Keys are 16 bytes (xxh3_128) and the
same in every process.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import xxhash

from ds4tui.chat.messages import Image, Message, ToolCall
from ds4tui.chat.tools import order_free
from ds4tui.chat.volatile import without_accounting, without_clocks

# Of a long history nearly all was sent before, and putting its JSON in order again takes longer
# than all else. An entry takes about 200 bytes.
_MOST_CONTENTS = 32768


class Contents:
    """Digests of what messages say, told once of each. The least recently used are forgotten. Not
    for use by several threads at once."""

    def __init__(self, max_entries: int = _MOST_CONTENTS) -> None:
        self._max_entries = max_entries
        self._known: OrderedDict[bytes, bytes] = OrderedDict()

    def of(self, text: str, calls: Sequence[ToolCall], is_result: bool = False) -> bytes:
        """The same for all that say the same; `is_result` puts the text's JSON in order."""
        parts = [text, *(part for call in calls for part in (call.name, call.arguments))]
        raw = _digest(f"{is_result}", *parts)
        found = self._known.get(raw)
        if found is None:
            said = in_order(text.strip()) if is_result else text.strip()
            if is_result and said[:1] not in ("{", "["):
                said = text.rstrip()  # how the first line is indented says something
            found = _digest(said, *map(order_free, calls))
            self._known[raw] = found
            if len(self._known) > self._max_entries:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(raw)
        return found


def by_file(image: Image) -> bytes:
    return image.digest


class ConversationKeys:
    """Running keys of one conversation. `now` is when it is sent (None: whenever; clocks of all
    times are then alike), `identity` names the picture that an image shows, `after` is the key of
    what stands before the first message that is added. Not for use by several threads at once."""

    def __init__(
        self,
        now: datetime | None,
        contents: Contents,
        identity: Callable[[Image], bytes] = by_file,
        after: bytes = b"",
    ) -> None:
        self._state = after
        self._now = now
        self._contents = contents
        self._identity = identity

    def add(self, message: Message) -> bytes:
        """The key of the conversation with this message, which names the message, too."""
        self._state = self._with(message.role, self._content(message))
        return self._state

    def go_on_after(self, key: bytes) -> None:
        """What is added next stands behind the message that has this key."""
        self._state = key

    def reply(self, text: str, calls: Sequence[ToolCall]) -> bytes:
        """Of the conversation with this reply, which is not added."""
        return self._with("assistant", self._contents.of(text, calls))

    def opening(self, message: Message, question: str) -> bytes:
        """Of a system text that comes next, if the conversation begins with `question`."""
        return self._with(f"question {_digest(question.strip()).hex()}", self._content(message))

    def _with(self, role: str, content: bytes) -> bytes:
        return xxhash.xxh3_128_digest(self._state + role.encode() + b" " + content)

    def _content(self, message: Message) -> bytes:
        text = message.text
        if message.role == "system":
            return _digest(without_clocks(without_accounting(text), self._now).strip())
        said = self._contents.of(text, message.tool_calls, message.role == "tool")
        if not message.images:
            return said
        before, length = len(text) - len(text.lstrip()), len(text.strip())
        shown = (
            b"%d " % min(max(image.at - before, 0), length) + self._identity(image)
            for image in message.images
        )
        return xxhash.xxh3_128_digest(b"".join((said, *shown)))


def shared_key(message: Message) -> bytes:
    """Of a system text, whatever conversation it begins."""
    return _digest("shared", without_accounting(message.text).strip())


def in_order(text: str) -> str:
    """JSON of an object or an array with its keys in order; any other text as it is, and JSON that
    says more than its values do: a key twice, a number that no float holds."""
    return _ordered(text) if text[:1] in ("{", "[") else text


def _ordered(text: str) -> str:
    try:
        values = json.loads(text, object_pairs_hook=_only_once, parse_float=_written)
        return json.dumps(values, sort_keys=True)
    except (ValueError, RecursionError):
        return text


def _only_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a key twice")
    return values


def _written(number: str) -> str:
    # As it stands there: two that round to the same float are not the same text.
    return f"\0{number}"


def _digest(*parts: str) -> bytes:
    """xxh3_128; lengths keep the parts apart."""
    if len(parts) == 1:
        return xxhash.xxh3_128_digest(parts[0].encode("utf-8", "surrogatepass"))
    data = [part.encode("utf-8", "surrogatepass") for part in parts]
    return xxhash.xxh3_128_digest(b"".join((f"{[*map(len, data)]}".encode(), *data)))
