"""The messages of a conversation, as values."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Literal, get_args

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[str, ...] = get_args(Role)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What an assistant asks a tool for. `arguments` is JSON text of an object, as
    `tools.canonical_arguments` writes it; its keys keep the order in which they came."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Tool:
    """What a model may call. `parameters` is JSON text of a JSON Schema; with `strict` arguments
    must follow it, also where a call is not required. That is no part of what a model is told."""

    name: str
    description: str
    parameters: str
    strict: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Image:
    """A picture in a message: `data` is the file as it was given (PNG, JPEG, ..), `at` the
    character of the message's text before which it stands, `name` what people call it. Nothing
    is known of the pixels: recognising it is the vision model's."""

    data: bytes = field(repr=False)
    at: int = 0
    name: str = ""
    _digest: bytes = field(default=b"", init=False, repr=False, compare=False)

    @property
    def digest(self) -> bytes:
        """blake2b of the data, 16 bytes: its identity where nothing is decoded. Told once."""
        if not self._digest:
            object.__setattr__(self, "_digest", blake2b(self.data, digest_size=16).digest())
        return self._digest

    def moved(self, at: int) -> "Image":
        """The same picture at another place of a text."""
        if at == self.at:
            return self
        image = Image(self.data, at, self.name)
        object.__setattr__(image, "_digest", self._digest)
        return image


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. `sampled_ids` are the tokens the model really produced for an assistant turn
    (without its end-of-turn token); with them the turn renders to exactly what is resident:
    they hold its reasoning and tool calls too.

    `reasoning` and `tool_calls` belong to assistant turns, beside the visible `text`;
    `tool_call_id` and `name` (of the tool) to a tool's result, which is the `text`.
    `images` stand in texts of users and in results of tools, in the order of their places;
    several may stand at one place.
    """

    role: Role
    text: str
    sampled_ids: tuple[int, ...] | None = None
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""
    images: tuple[Image, ...] = ()

    def elements(self) -> "Iterator[str | Image]":
        """Texts and images in their order; texts are not empty."""
        start = 0
        for image in self.images:
            if self.text[start : image.at]:
                yield self.text[start : image.at]
            yield image
            start = image.at
        if self.text[start:]:
            yield self.text[start:]

    def within(self, before: str, after: str = "") -> "Message":
        """This message with more text around what it holds."""
        images = tuple(image.moved(image.at + len(before)) for image in self.images)
        return replace(self, text=before + self.text + after, images=images)

    def followed_by(self, other: "Message", between: str) -> "Message":
        """This message with `between` and what `other` holds behind it."""
        behind = other.within(self.text + between)
        return replace(self, text=behind.text, images=(*self.images, *behind.images))
