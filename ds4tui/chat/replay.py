"""What was sampled, remembered by what was shown.

Clients send replies back as text, often trimmed; the same text may be other tokens than those
the model produced, and one differing token costs all that comes after it. So replies are
looked up by the ids of their calls (replies_by_call.py), else by the conversation before them and
what they showed (conversation_keys.py says what of it counts), and other messages become again what
they were when they were first sent.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Protocol

from ds4tui.chat.conversation_keys import Contents, ConversationKeys, by_file, shared_key
from ds4tui.chat.messages import Image, Message, ToolCall
from ds4tui.chat.replies_by_call import MadeReply, RepliesByCall
from ds4tui.chat.seen import SeenMessages, with_images_of

# Of a reply's 16-byte key and its containers; ids come on top.
_ENTRY_BYTES = 256


class Shelf(Protocol):
    """Where replies outlive the process (saved_replies.py)."""

    def load(self, key: bytes) -> tuple[int, ...] | None: ...
    def save(self, key: bytes, ids: Sequence[int]) -> None: ...


class ReplayMemory:
    """Bounded; the least recently used are forgotten first. Not for use by several threads at
    once. With a `shelf` replies that are not known here are looked for there. `identity` names
    the picture that an image shows, however its file is written; what it raises arrives."""

    def __init__(
        self,
        max_entries: int = 4096,
        max_bytes: int = 32 * 2**20,
        shelf: Shelf | None = None,
        now: Callable[[], datetime] = datetime.now,
        identity: Callable[[Image], bytes] = by_file,
    ) -> None:
        self._identity = identity
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._bytes = 0
        self._replies: OrderedDict[bytes, array[int]] = OrderedDict()
        self._seen = SeenMessages(max_bytes)
        self._contents = Contents()
        self._shelf = shelf
        self._by_call = RepliesByCall(max_entries, max_bytes, self._shelved)
        self._now = now

    def __len__(self) -> int:
        return len(self._replies)

    @property
    def nbytes(self) -> int:
        """Of the replies' ids."""
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
        keys = ConversationKeys(self._now(), self._contents, self._identity)
        for message in whole_replies(messages):
            self._add(keys, message)
        key, ids = keys.reply(reply_text, tool_calls), array("q", sampled_ids)
        self._keep(key, ids)
        rows = self._by_call.remember(reply_text, tool_calls, MadeReply(key, ids))
        if self._shelf is not None:
            for name, row in {key: sampled_ids, **rows}.items():
                self._shelf.save(name, row)

    def recall(self, messages: Sequence[Message], note: bool = False) -> list[Message]:
        """`messages` as the model was told of them: assistant turns that are remembered with
        their sampled ids (those that have ids keep them), others as they were first sent; a reply
        that came back in two messages is one. `note` remembers how they are sent now, for later."""
        keys = ConversationKeys(self._now(), self._contents, self._identity)
        known: list[Message] = []
        told = whole_replies(messages)
        question = next((m.text for m in told if m.role == "user"), "")
        goes_on = sum(m.role != "system" for m in told) > 1
        for message in told:
            if message.role == "assistant":
                known.append(self._with_ids(message, *self._add(keys, message), note))
                continue
            names = []
            if message.role == "system":
                # What only a clock changes is the same in a conversation that goes on; one that
                # begins has the time of now. What only an accounting header changes is the same
                # in all.
                clocked = keys.opening(message, question)
                if note and not goes_on:
                    self._seen.renew(clocked, message)
                names = [clocked, shared_key(message)] if goes_on else [shared_key(message)]
            key = keys.add(message)
            known.append(self._as_first_sent(message, names or [key], note))
        return known

    def _add(self, keys: ConversationKeys, message: Message) -> tuple[bytes, Sequence[int] | None]:
        """The key of the conversation with `message`, and with a reply whose calls are known the
        ids: then the key is that of the conversation in which it was made."""
        made = self._by_call.of(message) if message.role == "assistant" else None
        if made is None:
            return keys.add(message), None
        keys.go_on_after(made.key)
        return made.key, made.ids

    def _shelved(self, key: bytes) -> tuple[int, ...] | None:
        return None if self._shelf is None else self._shelf.load(key)

    def _with_ids(
        self, message: Message, key: bytes, made: Sequence[int] | None, note: bool
    ) -> Message:
        if message.sampled_ids is not None:
            return message
        ids = self._known_ids(key) if made is None else made
        if ids is not None:
            return replace(message, sampled_ids=tuple(ids))
        # A reply of another model, or from before a restart.
        first = self._seen.first(key)
        if first is not None:
            return replace(first, reasoning=first.reasoning or message.reasoning)
        if note:
            self._seen.note(key, message)
        return message

    def _known_ids(self, key: bytes) -> Sequence[int] | None:
        ids: Sequence[int] | None = self._replies.get(key)
        if ids is not None:
            self._replies.move_to_end(key)
        elif (ids := self._shelved(key)) is not None:
            self._keep(key, array("q", ids))
        return ids

    def _as_first_sent(self, message: Message, keys: Sequence[bytes], note: bool) -> Message:
        first = next((m for m in map(self._seen.first, keys) if m is not None), message)
        if first is not message:
            first = with_images_of(first, message)
        if message.role == "user" and first.text.rstrip() != message.text.rstrip():
            first = message  # indented otherwise, which is somebody's edit
        if note:
            for key in keys:
                self._seen.note(key, first)
        return first

    def _keep(self, key: bytes, ids: "array[int]") -> None:
        self._forget(key)
        self._replies[key] = ids
        self._bytes += _size(ids)
        while len(self._replies) > self._max_entries or self._bytes > self._max_bytes:
            self._forget(next(iter(self._replies)))

    def _forget(self, key: bytes) -> None:
        ids = self._replies.pop(key, None)
        if ids is not None:
            self._bytes -= _size(ids)


def whole_replies(messages: Sequence[Message]) -> list[Message]:
    """The messages, with a reply that came back cut into its text and its calls put together."""
    told: list[Message] = []
    for message in messages:
        before = told[-1] if told else message
        if _goes_on(before, message) and told:
            calls = (*before.tool_calls, *message.tool_calls)
            reasoning = before.reasoning or message.reasoning
            told[-1] = replace(before, reasoning=reasoning, tool_calls=calls)
        else:
            told.append(message)
    return told


def _goes_on(before: Message, message: Message) -> bool:
    both = before.role == message.role == "assistant"
    known = before.sampled_ids is not None or message.sampled_ids is not None
    return both and not known and bool(message.tool_calls) and not message.text.strip()


def _size(ids: "array[int]") -> int:
    return _ENTRY_BYTES + len(ids) * ids.itemsize
