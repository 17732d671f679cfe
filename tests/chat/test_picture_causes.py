"""A picture that a client leaves out or replaces is told as that, whatever a template writes around
pictures: gemma3's blank lines part the timelines one token before it."""

from pathlib import Path

import pytest

from ds4tui.cache.causes import Cause
from ds4tui.cache.plan import plan_sync
from ds4tui.chat.messages import Image, Message
from ds4tui.chat.rendering import CHATML, ChatFormat
from tests.chat import sights

FORMATS = [
    (sights.GEMMA3, "gemma3"),
    (CHATML, "gemma3"),
    (sights.QWEN3_VL, "qwen"),
    (CHATML, "idefics3"),
]
TEXT = "Look at this"


def talk(first: Message, later: bytes) -> list[Message]:
    return [
        first,
        Message("assistant", "A field."),
        Message("user", "And this?", images=(Image(later, 0),)),
        Message("assistant", "Green."),
        Message("user", "Which was first?"),
    ]


@pytest.mark.parametrize("later", [b"green", b"red"], ids=["two pictures", "one twice"])
@pytest.mark.parametrize("at", [0, 4, len(TEXT)])
@pytest.mark.parametrize(("template", "family"), FORMATS)
def test_a_picture_that_is_gone(
    template: str, family: str, at: int, later: bytes, tmp_path: Path
) -> None:
    chat_format = ChatFormat(sights.tokenizer(tmp_path), template)

    def cause(first: Message) -> Cause | None:
        was = talk(Message("user", TEXT, images=(Image(b"red", at),)), later)[:4]
        pictures = sights.FakeVision(family).of
        held = chat_format.laid_out(was, (), None, pictures)
        wanted = chat_format.laid_out(talk(first, later), (), None, pictures)
        return plan_sync(
            held.timeline,
            wanted.timeline,
            can_rewind=lambda to: True,
            live_outline=held.outline,
            wanted_outline=wanted.outline,
        ).cause

    said = TEXT[:at] + "[removed]" + TEXT[at:]
    assert cause(Message("user", said)) is Cause.IMAGE_REMOVED
    assert cause(Message("user", TEXT)) is Cause.IMAGE_REMOVED
    other = Message("user", TEXT, images=(Image(b"blue", at),))
    assert cause(other) is Cause.IMAGE_REPLACED
    edited = Message("user", f"Please look: {TEXT}", images=(Image(b"red", at + 13),))
    assert cause(edited) is (Cause.EARLY_MESSAGE_EDITED)
