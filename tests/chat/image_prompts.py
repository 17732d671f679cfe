"""Conversations with images that transformers' processors were asked to write, too."""

from functools import cache

from ds4tui.chat.messages import Image, Message
from tests.chat.sights import GEMMA3, QWEN2_5_VL, QWEN3_VL, SMOLVLM
from tests.engine.vision.pictures import SIZES, encoded, picture

# Name: the template, and the settings of the image encoder (tests/engine/vision/pictures.py).
MODELS = {
    "smolvlm": (SMOLVLM, "idefics3"),
    "smolvlm in tiles": (SMOLVLM, "tiled"),
    "gemma3": (GEMMA3, "gemma3"),
    "qwen2.5vl": (QWEN2_5_VL, "qwen"),
    "qwen3vl": (QWEN3_VL, "qwen"),
}


@cache
def shot(number: int) -> bytes:
    return encoded(picture(*SIZES[number]))


def _user(text: str, *places: tuple[int, int]) -> Message:
    """`places` are (the number of a picture, its place in the text)."""
    images = tuple(Image(shot(number), at) for number, at in places)
    return Message("user", text, images=images)


CONVERSATIONS = {
    "first": [_user("What is this?", (0, 0))],
    "last": [_user("What is this?", (1, 13))],
    "in the middle": [_user("What is this and why?", (2, 12))],
    "alone": [_user("", (3, 0))],
    "side by side": [_user("Compare.", (0, 0), (1, 0))],
    "all over": [_user("First second.", (0, 0), (4, 6), (0, 13), (2, 13))],
    "in turns": [
        Message("system", "Be brief."),
        _user("One?", (1, 0)),
        Message("assistant", "Yes."),
        _user("And that?", (1, 0), (2, 9)),
        Message("assistant", "No."),
        _user("Why?"),
    ],
}
RESULT = [
    Message("user", "Look at it."),
    Message("assistant", "I do."),
    Message("tool", "Done.", name="look", images=(Image(shot(0), 0), Image(shot(1), 5))),
]
