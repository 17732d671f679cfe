"""The images of a conversation, recognised; and how many of them are shown.

A model without vision refuses them, with the reason and what to do. `last_images` keeps a
conversation with ever more screenshots going.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ds4tui.chat.messages import Image, Message
from ds4tui.errors import RequestError, UsageError

if TYPE_CHECKING:  # brings Pillow
    from ds4tui.engine.vision.recognition import Picture
    from ds4tui.engine.vision.seeing import Vision

LEFT_OUT = "[earlier image left out]"
_NO_SIGHT = "This model sees no pictures: load one that does, with its mmproj file."


class Pictures:
    """Which picture an image shows. `vision` decodes it unless it saw it before. May be called
    from any thread."""

    def __init__(self, vision: "Vision | None", refusal: str) -> None:
        self._vision = vision
        self._refusal = refusal or _NO_SIGHT

    def __call__(self, image: Image, name: str = "The picture") -> "Picture":
        """Raises RequestError where the model sees none, UsageError for what is no picture, with
        its name (`name` for one that has none) and the reason."""
        if self._vision is None:
            raise RequestError(self._refusal, param="messages")
        return self._vision(image.data, image.name or name, image.digest)

    def identity(self, image: Image) -> bytes:
        """What tells an image from others: the picture, however its file is written. One that is
        no picture, which is not shown then, is its file."""
        try:
            return self(image).fingerprint
        except UsageError:
            return image.digest

    def rows(self, messages: Sequence[Message]) -> Iterator[int]:
        """How many each image takes, one after the other: each is recognised when it is asked
        for. Raises as a call does."""
        for number, message in enumerate(messages):
            for place, image in enumerate(message.images, 1):
                yield self(image, f"Picture {place} of message {number}").block.rows


def last_images(messages: Sequence[Message], most: int) -> tuple[Sequence[Message], int]:
    """The messages with at most `most` images (0: all), the last ones, and how many were left
    out. Words stand in the places of those. They go by half of `most` at once: whenever one goes
    all that follows it is computed again."""
    held = sum(len(message.images) for message in messages)
    if not most or held <= most:
        return messages, 0
    step = max(1, most // 2)
    left_out = -(-(held - most) // step) * step
    told, left = [], left_out
    for message in messages:
        count = min(left, len(message.images))
        told.append(_without_first(message, count) if count else message)
        left -= count
    return told, left_out


def _without_first(message: Message, count: int) -> Message:
    """The message with words in the places of its first `count` images."""
    text, start = "", 0
    for image in message.images[:count]:
        text += message.text[start : image.at] + LEFT_OUT
        start = image.at
    moved = len(text) - start
    kept = tuple(image.moved(image.at + moved) for image in message.images[count:])
    return replace(message, text=text + message.text[start:], images=kept)
