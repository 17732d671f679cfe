"""Messages as they were first sent.

Clients send the same message back in another layout. Where that says nothing else, the model is
told what it was told before, so the conversation stays resident.
"""

import sys
from collections import OrderedDict

from ds4tui.chat.messages import Message

_ENTRY_BYTES = 512  # of a message's objects beside its texts


class SeenMessages:
    """Bounded; the least recently used are forgotten first. Not for several threads at once."""

    def __init__(self, max_bytes: int = 32 * 2**20) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._messages: OrderedDict[bytes, Message] = OrderedDict()

    @property
    def nbytes(self) -> int:
        return self._bytes

    def first(self, key: bytes) -> Message | None:
        """What was sent first under `key`, if it is known."""
        message = self._messages.get(key)
        if message is not None:
            self._messages.move_to_end(key)
        return message

    def renew(self, key: bytes, message: Message) -> None:
        """What is sent under `key` from now on."""
        before = self._messages.pop(key, None)
        if before is not None:
            self._bytes -= _size(before)
        self.note(key, message)

    def note(self, key: bytes, message: Message) -> None:
        """What is sent under `key`, unless something was before."""
        if key in self._messages:
            return
        self._messages[key] = message
        self._bytes += _size(message)
        while self._bytes > self._max_bytes:
            self._bytes -= _size(self._messages.popitem(last=False)[1])


def _size(message: Message) -> int:
    arguments = sum(sys.getsizeof(call.arguments) for call in message.tool_calls)
    return _ENTRY_BYTES + sys.getsizeof(message.text) + arguments
