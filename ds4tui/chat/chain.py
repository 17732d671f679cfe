"""Renderings that are kept, by conversation: what was rendered once is not rendered again.

A conversation is cut before each reply but the first message. The key of a cut is a running hash
(xxh3_128) of all that stands before it, so the longest known beginning of a conversation is
found by looking from its end.
"""

import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence

import xxhash

from ds4tui.chat.messages import Message, Tool
from ds4tui.chat.outlining import tools_digest
from ds4tui.chat.turnwise import Node

Key = tuple[bytes, bool | None]  # of the messages, and how thinking was switched


class Chain:
    """Nodes, the least recently used dropped beyond `max_bytes`; of a conversation its end first.
    May be shared by threads."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._nodes: OrderedDict[Key, Node] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        return self._bytes

    def longest(self, keys: Iterable[tuple[int, Key]]) -> tuple[int, Node | None]:
        """The first of `keys` that is known, with its number; (-1, None) if none is."""
        with self._lock:
            for number, key in keys:
                node = self._nodes.get(key)
                if node is not None:
                    return number, node
        return -1, None

    def put(self, nodes: Sequence[tuple[Key, Node]]) -> None:
        """Keep the nodes of one conversation, first to last, as used just now."""
        with self._lock:
            for key, node in reversed(nodes):
                old = self._nodes.pop(key, None)
                self._nodes[key] = node
                if old is not node:
                    self._bytes += node.nbytes - (old.nbytes if old else 0)
            while self._bytes > self._max_bytes:
                self._bytes -= self._nodes.popitem(last=False)[1].nbytes


def cuts(messages: Sequence[Message]) -> list[int]:
    """Where a conversation is cut: before each reply that something precedes, and at the end."""
    inner = [n for n, m in enumerate(messages) if n and m.role == "assistant"]
    return [*inner, len(messages)]


def digests(messages: Sequence[Message], tools: Sequence[Tool], at: Sequence[int]) -> list[bytes]:
    """A digest of the tools and the messages before each place of `at`, which ascends."""
    hasher = xxhash.xxh3_128(tools_digest(tools))
    found: list[bytes] = []
    start = 0
    for end in at:
        for message in messages[start:end]:
            hasher.update(_framed(message))
        found.append(hasher.digest())
        start = end
    return found


def _framed(message: Message) -> bytes:
    """All of a message; lengths keep its parts from running together."""
    calls = [part for c in message.tool_calls for part in (c.id, c.name, c.arguments)]
    texts = (message.role, message.text, message.reasoning, message.tool_call_id, message.name)
    parts = [text.encode("utf-8", "surrogatepass") for text in (*texts, *calls)]
    parts += [b"image %d " % image.at + image.digest for image in message.images]
    if message.sampled_ids is not None:
        parts.append(_id_bytes(message.sampled_ids))
    known = message.sampled_ids is not None
    head = f"{known} {len(message.images)} {[*map(len, parts)]}"
    return b"".join((head.encode(), *parts))


def _id_bytes(ids: Sequence[int]) -> bytes:
    try:
        return array("q", ids).tobytes()
    except OverflowError:  # no token of any vocabulary
        return repr(ids).encode()
