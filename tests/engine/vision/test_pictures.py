"""What people send: every form of a picture becomes RGB, and what is none is refused in words."""

import io
import struct
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile, ImageOps

from ds4tui.engine.vision import pictures
from ds4tui.engine.vision.pictures import made_of, opened
from ds4tui.errors import PictureError, UsageError
from tests.engine.vision.pictures import encoded, forms, picture, sixteen_bits
from tests.scale import scaled

RED = Image.new("RGB", (6, 4), (200, 10, 30))


@pytest.mark.parametrize("kind", ["PNG", "BMP", "GIF", "TIFF", "WEBP", "JPEG"])
def test_every_kind_is_read(kind: str) -> None:
    more = {"lossless": True} if kind == "WEBP" else {"quality": 95} if kind == "JPEG" else {}
    image = opened(encoded(RED, kind, **more))
    assert image.mode == "RGB" and image.size == (6, 4)
    assert np.abs(np.asarray(image).astype(int) - [200, 10, 30]).max() <= 6


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK", "YCbCr", "RGBA", "LA", "I;16", "I"])
def test_every_mode_is_read(mode: str) -> None:
    grey = Image.new("L", (5, 5), 255)
    if mode.startswith("I"):
        image = Image.fromarray(np.full((5, 5), 0xFFFF, np.uint16 if ";" in mode else np.int32))
    else:
        image = grey.convert(mode)
    data = encoded(image, "TIFF")
    assert np.asarray(opened(data)).min() == 255


def test_of_more_than_8_bits_the_upper_ones_count() -> None:
    """transformers lets Pillow cut all grey values above 255 to it, which leaves nothing."""
    grey = Image.fromarray((np.arange(256, dtype=np.uint16) * 256 + 77)[None])
    assert np.asarray(opened(encoded(grey)))[0].tolist() == [[i, i, i] for i in range(256)]
    colours = np.asarray(opened(sixteen_bits(RED)))
    assert (colours == [200, 10, 30]).all()


def test_what_is_transparent_is_white() -> None:
    clear = Image.new("RGBA", (3, 3), (0, 0, 0, 0))
    assert np.asarray(opened(encoded(clear))).min() == 255
    palette = Image.new("L", (3, 3), 40).convert("P")
    assert np.asarray(opened(encoded(palette, transparency=40))).min() == 255


def test_a_picture_is_turned_as_its_exif_says() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # its right side is up
    assert opened(encoded(RED, "JPEG", exif=exif)).size == (4, 6)


def test_of_several_frames_the_first_is_taken() -> None:
    other = Image.new("RGB", (6, 4), (0, 0, 0))
    data = encoded(RED, "GIF", save_all=True, append_images=[other])
    assert opened(data).getpixel((0, 0))[0] > 150


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"\0" * 500, "zeros"),
        (b"<html>no</html>", "is a web page"),
        (encoded(RED)[:40], "damaged or cut off|no picture"),
        (encoded(picture(100, 100))[:2000], "damaged or cut off"),
        (encoded(picture(100, 100), "JPEG")[:900], "damaged or cut off"),
    ],
)
def test_what_is_no_picture_is_refused_by_name_and_reason(data: bytes, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as refusal:
        opened(data, "shot.png")
    assert "shot.png" in refusal.value.message and refusal.value.hint


def test_a_bomb_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(RED, "BMP")
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("decoded"))
    monkeypatch.setattr(pictures, "PIXELS_MAX", 23)
    with pytest.raises(UsageError, match="6 x 4 pixels"):
        opened(data)


@pytest.mark.parametrize(
    "error",
    [RuntimeError("decoder"), IndexError("range"), TypeError("none"), struct.error("argument"),
     AttributeError("fp"), ZeroDivisionError(), AssertionError(), OverflowError("int")],
)  # fmt: skip
def test_whatever_a_reader_raises_is_told_as_a_damaged_file(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Image.Image) -> None:
        raise error

    monkeypatch.setattr(ImageFile.ImageFile, "load", fail)
    reason = str(error) or type(error).__name__
    with pytest.raises(PictureError, match=rf"shot\.png is damaged or cut off: {reason}"):
        opened(encoded(RED), "shot.png")


def test_too_little_memory_is_not_told_as_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Image.Image) -> None:
        raise MemoryError

    monkeypatch.setattr(ImageFile.ImageFile, "load", fail)
    with pytest.raises(PictureError, match=r"not enough memory to decode shot\.png"):
        opened(encoded(RED), "shot.png")


def test_what_lies_inside_an_icon_counts_and_not_what_its_head_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inside = encoded(picture(40, 30))
    head = struct.pack("<HHHBBBBHHII", 0, 1, 1, 6, 4, 0, 0, 1, 32, len(inside), 22)
    monkeypatch.setattr(pictures, "PIXELS_MAX", 40 * 30 - 1)
    with pytest.raises(PictureError, match="40 x 30 pixels"):
        opened(head + inside)


@pytest.mark.parametrize("form", forms())
@pytest.mark.parametrize("strip", [1, 333, 1 << 20])
def test_strips_make_the_same_pixels_as_the_whole_at_once(
    form: str, strip: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = forms()[form]
    monkeypatch.setattr(pictures, "STRIP_PIXELS", strip)
    whole = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    assert np.array_equal(np.asarray(opened(data)), np.asarray(pictures._flat(whole)))


def test_what_stands_between_is_never_of_the_full_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a picture takes 4 bytes a pixel as it is read and 4 as it is given, and no more."""
    heights: list[int] = []

    def noting(strip: Image.Image) -> Image.Image:
        heights.append(strip.height)
        return flat(strip)

    flat = pictures._flat
    monkeypatch.setattr(pictures, "_flat", noting)
    monkeypatch.setattr(pictures, "STRIP_PIXELS", 40 * 4)
    data = encoded(picture(40, 30).quantize(16), transparency=3)
    assert opened(data).size == (40, 30)
    assert heights == [4] * 7 + [2]
    monkeypatch.setattr(Image.Image, "copy", lambda self: pytest.fail("held twice"))
    assert opened(encoded(picture(40, 30))).mode == "RGB"


def test_one_picture_at_a_time_is_held_in_full() -> None:
    meeting = threading.Barrier(2)

    def make(image: Image.Image) -> bool:
        try:
            meeting.wait(0.2)
        except threading.BrokenBarrierError:
            return False
        return True

    met: list[bool] = []
    data = encoded(RED)
    threads = [threading.Thread(target=lambda: met.append(made_of(data, make))) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert met == [False, False]


@given(st.binary(max_size=200), st.integers(0, 400))
@settings(max_examples=scaled(200), deadline=None)
def test_damaged_bytes_never_crash(noise: bytes, at: int) -> None:
    for data in (BASE_PNG, BASE_JPEG):
        broken = data[:at] + noise + data[at + len(noise) :]
        try:
            assert opened(broken).mode == "RGB"
        except UsageError as refusal:
            assert refusal.message and refusal.hint


BASE_PNG = encoded(picture(20, 20))
BASE_JPEG = encoded(picture(20, 20), "JPEG")
