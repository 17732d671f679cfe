"""A history's shape is as long as it has kinds of exchange, and goes on as the history does."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.chat.compact import WORD, History, stand_in, stand_ins
from ds4tui.chat.messages import Image, Message, ToolCall
from tests.scale import scaled

CALL = ToolCall("call_7", "read", '{"path": "a.txt"}')
QUESTION = Message("user", "What is in a.txt?")
CALLING = Message("assistant", "", (1, 2), "Hm.", (CALL, CALL, CALL))
RESULT = Message("tool", "the file", tool_call_id="call_7", name="read")
REPLY = Message("assistant", "It is empty.")
TALK, ROUND, LAST = (QUESTION, REPLY), (QUESTION, CALLING), (RESULT, REPLY)
KINDS = [TALK, ROUND, LAST, (RESULT, CALLING), (Message("system", "s"), *TALK)]


def shape(exchange: tuple[Message, ...]) -> tuple[Message, ...]:
    return stand_ins(exchange)


def test_a_stand_in_says_nothing_of_what_was_said() -> None:
    shown = repr([stand_in(m) for m in (QUESTION, CALLING, RESULT, REPLY)])
    for text in ("a.txt", "Hm.", "the file", "empty", "call_7", "read"):
        assert text not in shown
    assert WORD in shown
    assert stand_in(Message("user", " \n")) == Message("user", "")


def test_more_than_two_alike_are_two() -> None:
    assert len(stand_ins([QUESTION, *[RESULT] * 9, QUESTION])) == 4
    assert len(stand_in(CALLING).tool_calls) == 2


@settings(max_examples=scaled(200))
@given(kinds=st.lists(st.sampled_from(KINDS), max_size=60))
def test_a_history_is_bounded_and_keeps_its_beginning_and_its_end(
    kinds: list[tuple[Message, ...]],
) -> None:
    history = History()
    for kind in kinds:
        history = history.added(shape(kind))
    told = (*history.earlier, *history.recent)
    assert len(history.earlier) <= len(KINDS)
    assert told[-2:] == tuple(map(shape, kinds[-2:]))
    assert told[:1] == tuple(map(shape, kinds[:1]))
    assert set(pairwise(told)) <= set(pairwise(map(shape, kinds)))


@pytest.mark.parametrize(
    ("text", "places", "shape"),
    [
        ("a b", (0, 0), ["image", "text"]),
        ("a b", (3,), ["text", "image"]),
        ("a b", (1, 2), ["text", "image", "text"]),
        ("a b", (0, 1, 3), ["image", "text", "image"]),
        ("", (0, 0, 0), ["image"]),
    ],
)
def test_images_leave_their_places_only(
    text: str, places: tuple[int, ...], shape: list[str]
) -> None:
    images = tuple(Image(b"secret", at) for at in places)
    made = stand_in(Message("user", text, images=images))
    kinds = ["image" if isinstance(e, Image) else "text" for e in made.elements()]
    assert kinds == shape and all(image.data == b"" for image in made.images)
