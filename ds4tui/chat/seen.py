"""Messages as they were first sent.

Clients send the same message back in another layout. Where that says nothing else, the model is
told what it was told before, so the conversation stays resident.
"""

import sys
from collections import OrderedDict
from dataclasses import replace

from ds4tui.chat.messages import Image, Message

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
        """What is sent under `key`, unless something was before. Of its images the places only
        are kept: whoever sends it again sends them, too."""
        if key in self._messages:
            return
        message = _without_files(message)
        self._messages[key] = message
        self._bytes += _size(message)
        while self._bytes > self._max_bytes:
            self._bytes -= _size(self._messages.popitem(last=False)[1])


def with_images_of(first: Message, message: Message) -> Message:
    """What was sent first, with the images of what is sent now at the places of then."""
    if not message.images:
        return first
    pairs = zip(message.images, first.images, strict=True)
    return replace(first, images=tuple(now.moved(then.at) for now, then in pairs))


def _without_files(message: Message) -> Message:
    if not message.images:
        return message
    return replace(message, images=tuple(Image(b"", image.at) for image in message.images))


def _size(message: Message) -> int:
    arguments = sum(sys.getsizeof(call.arguments) for call in message.tool_calls)
    return _ENTRY_BYTES + sys.getsizeof(message.text) + arguments
