"""Files that people give: what is read of them, and the reason where nothing is."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ds4tui.errors import UsageError
from ds4tui.pictures import reading
from ds4tui.pictures.reading import checked, preview, read_picture, size_of
from tests.pictures.samples import (
    animated_gif,
    bomb,
    cut_gif,
    empty_png,
    encoded,
    lost_tiff,
    odd_exif_webp,
    picture,
    png,
    torn_avif,
    turned_jpeg,
)
from tests.scale import scaled

GOOD = {
    "png": png(),
    "jpeg": encoded(picture(), "JPEG"),
    "webp": encoded(picture(), "WEBP", lossless=True),
    "gif": encoded(picture().convert("P"), "GIF"),
    "bmp": encoded(picture(), "BMP"),
    "tiff": encoded(picture(), "TIFF"),
    "avif": encoded(picture(), "AVIF"),
    "grey": encoded(picture(mode="L")),
    "bits": encoded(picture(mode="1")),
    "palette": encoded(picture().convert("P")),
    "alpha": encoded(picture(mode="RGBA")),
    "grey alpha": encoded(picture(mode="LA")),
    "cmyk": encoded(picture(mode="CMYK"), "JPEG"),
    "16 bits": encoded(Image.new("I;16", (40, 24), 40_000)),
}


@pytest.mark.parametrize("kind", GOOD)
def test_what_people_have_is_read_whatever_it_is_called(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "shot.dat"
    path.write_bytes(GOOD[kind])
    read = read_picture(path)
    assert (read.name, read.size, read.note) == ("shot.dat", (40, 24), "")
    assert read.data == GOOD[kind]
    assert preview(read.data).mode == "RGB"


def test_sizes_are_those_that_are_seen() -> None:
    assert checked(turned_jpeg(), "x").size == (24, 40)
    assert checked(png((1, 1)), "x").size == (1, 1)
    assert checked(png((9000, 3)), "x").size == (9000, 3)


def test_of_several_frames_the_first_one_is_sent_and_that_is_said() -> None:
    assert checked(animated_gif(3), "x").note == "first of 3 frames"
    assert preview(animated_gif(3)).getpixel((0, 0)) == preview(animated_gif(2)).getpixel((0, 0))


@pytest.mark.parametrize("data", [cut_gif(), lost_tiff()])
def test_a_whole_first_frame_is_enough_and_damaged_ones_behind_it_are_told(data: bytes) -> None:
    read = checked(data, "x")
    assert (read.size, read.note) == ((8, 8), "first frame; those behind it are damaged")


def test_a_picture_is_turned_even_if_its_exif_cannot_be_written_again() -> None:
    assert checked(odd_exif_webp(), "x").size == size_of(odd_exif_webp()) == (24, 40)
    assert preview(odd_exif_webp()).size == (24, 40)


@pytest.mark.parametrize("data", [torn_avif(b"iloc"), empty_png(), b"no picture"])
def test_the_size_of_what_no_reader_takes_is_unknown(data: bytes) -> None:
    assert size_of(data) is None


def test_previews_fit_and_are_never_larger() -> None:
    assert preview(png((4000, 1000)), (400, 400)).size == (400, 100)
    assert preview(png((30, 20)), (400, 400)).size == (30, 20)
    assert preview(png((5000, 1)), (400, 400)).size == (400, 1)


HEIC = b"\0\0\0\x18ftypheic" + bytes(100)
BAD = {
    "empty": (b"", "is empty"),
    "zeros": (bytes(500), "holds zeros only"),
    "text": (b"a letter to somebody", "no picture that can be read"),
    "half": (png((300, 200))[:400], "damaged or cut off"),
    "half jpeg": (encoded(picture((400, 300)), "JPEG")[:900], "damaged or cut off"),
    "signature": (png()[:8] + b"rubbish" * 20, "shot.png"),
    "torn avif": (torn_avif(), "damaged or cut off"),
    "torn head of an avif": (torn_avif(b"iloc"), "damaged or cut off"),
    "no pixels": (empty_png(0, 5), "is an empty picture: 0 x 5 pixels"),
    "bomb": (bomb(), "is too large: at most 64,000,000 pixels"),
    "bomb below Pillow's own limit": (bomb(8_000, 8_001), "has 8000 x 8001 pixels"),
    "heic": (HEIC, "is a HEIC picture"),
    "pdf": (b"%PDF-1.7\n...", "is a PDF document"),
    "svg": (b'<?xml version="1.0"?>\n<svg xmlns="x"/>', "is an SVG drawing"),
    "page": (b"<!DOCTYPE html><html></html>", "is a web page"),
    "program for Ghostscript": (
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n",
        "no picture that can be read",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_cannot_be_read_is_refused_by_name_with_the_reason(kind: str, tmp_path: Path) -> None:
    data, reason = BAD[kind]
    path = tmp_path / "shot.png"
    path.write_bytes(data)
    with pytest.raises(UsageError) as raised:
        read_picture(path)
    assert "shot.png" in raised.value.message and reason in raised.value.message
    assert raised.value.hint


def test_files_that_are_not_there_or_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"There is no file .*gone\.png"):
        read_picture(tmp_path / "gone.png")
    folder = tmp_path / "folder.png"
    folder.mkdir()
    with pytest.raises(UsageError, match=r"folder\.png is no file"):
        read_picture(folder)


def test_huge_files_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "FILE_BYTES_MAX", 1000)
    path = tmp_path / "raw.bmp"
    path.write_bytes(bytes(1001))
    with pytest.raises(UsageError, match=r"raw\.bmp has .* MB"):
        read_picture(path)
    with pytest.raises(UsageError, match="pasted has"):
        checked(bytes(1001), "pasted")


@given(st.sampled_from(sorted(GOOD)), st.data())
@settings(max_examples=scaled(60))
def test_a_damaged_file_is_a_picture_or_a_refusal(kind: str, data: st.DataObject) -> None:
    content = bytearray(GOOD[kind])
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        read = checked(cut, "shot")
    except UsageError as exc:
        assert "shot" in exc.message
    else:
        assert read.data == cut and min(read.size) >= 1
