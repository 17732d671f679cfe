"""A model that sees, for tests of the app: what pictures cost is told, nothing is encoded."""

from dataclasses import replace
from typing import Any

from ds4tui.errors import UsageError
from tests.fakes import FakeAssistant

REFUSAL = "fake sees no pictures. /model seeing opens one that does."


class FakeVision:
    """Satisfies engine.vision.seeing.Vision as far as the app asks: a token a thousand pixels."""

    name = "mmproj-fake.gguf"

    def tokens_of(self, size: tuple[int, int]) -> int:
        if max(size) > 200 * min(size):
            raise UsageError("too long", "Crop it.")
        return max(1, size[0] * size[1] // 1000)


def seeing(reply: str = "I see.", **arguments: Any) -> FakeAssistant:
    """A FakeAssistant that takes pictures. They do not come to its engine: what it was asked is in
    `asked`, the messages of each question."""
    assistant = FakeAssistant(reply, **arguments)
    assistant.vision = FakeVision()  # type: ignore[assignment]
    assistant.asked = []  # type: ignore[attr-defined]
    chat = assistant.chat

    def noting(messages: Any, *more: Any, **named: Any) -> Any:
        assistant.asked.append(tuple(messages))  # type: ignore[attr-defined]
        return chat(_without_images(messages), *more, **named)

    assistant.chat = noting  # type: ignore[method-assign]
    return assistant


def blind(reply: str = "No.", **arguments: Any) -> FakeAssistant:
    assistant = FakeAssistant(reply, **arguments)
    assistant.vision_refusal = REFUSAL
    return assistant


def _without_images(messages: Any) -> list[Any]:
    return [replace(message, images=()) for message in messages]
