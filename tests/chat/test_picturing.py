"""Which images a model is shown, and who refuses them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4tui.chat.messages import Image, Message
from ds4tui.chat.picturing import LEFT_OUT, Pictures, last_images
from ds4tui.errors import RequestError, UsageError
from tests.chat.sights import FakeVision


def asked(*files: bytes, text: str = "ab") -> Message:
    return Message("user", text, images=tuple(Image(data, 1) for data in files))


def test_a_model_without_sight_says_why_and_what_to_load() -> None:
    pictures = Pictures(None, "SmolLM2 sees no pictures: load SmolVLM.")
    with pytest.raises(RequestError, match="load SmolVLM"):
        pictures(Image(b"red"))
    assert list(pictures.rows([Message("user", "no image")])) == []


def test_a_bad_picture_is_named() -> None:
    pictures = Pictures(FakeVision(), "")
    with pytest.raises(UsageError, match=r"^shot\.png is no picture"):
        pictures(Image(b"bad", name="shot.png"))
    with pytest.raises(UsageError, match=r"^Picture 2 of message 1 is no picture"):
        list(pictures.rows([asked(b"red"), asked(b"blue", b"bad")]))


def test_pictures_are_recognised_one_after_the_other() -> None:
    vision = FakeVision(vectors=5)
    rows = Pictures(vision, "").rows([asked(b"red", b"blue")])
    assert next(rows) == 8 and vision.decoded == [b"red"]


def test_earlier_images_are_left_out_in_words() -> None:
    told = [asked(b"1", b"2"), Message("assistant", "Ok."), asked(b"3", text="c")]
    kept, left_out = last_images(told, 1)
    assert left_out == 2
    assert kept == [
        Message("user", f"a{LEFT_OUT}{LEFT_OUT}b"),
        told[1],
        told[2],
    ]
    kept, left_out = last_images(told, 2)
    place = 1 + len(LEFT_OUT)
    assert kept[0] == Message("user", f"a{LEFT_OUT}b", images=(Image(b"2", place),))
    assert (kept[2], left_out) == (told[2], 1)


def test_all_are_kept_where_there_are_no_more_or_none_is_to_go() -> None:
    told = [asked(b"1", b"2")]
    assert last_images(told, 2) == (told, 0) == last_images(told, 0)


@given(most=st.integers(1, 9), count=st.integers(0, 40))
def test_images_go_seldom_and_never_more_than_half(most: int, count: int) -> None:
    """Each time one goes, all behind it is computed again."""
    changes = []
    for held in range(count + 1):
        kept, left_out = last_images([asked(b"%d" % n) for n in range(held)], most)
        files = [image.data for message in kept for image in message.images]
        assert files == [b"%d" % n for n in range(left_out, held)]
        assert len(files) <= most and (held < most or len(files) > most - max(1, most // 2))
        changes.append(left_out)
    assert len(set(changes)) <= 2 + count // max(1, most // 2)
