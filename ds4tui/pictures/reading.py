"""From a file that somebody gave to a picture that can be sent: its bytes, size and note.

What is read, how it is turned and what is refused is `engine/vision/pictures.py`'s; here are the
files. Everything blocks for as long as the disk and the decoder take: call it off the UI loop.
"""

import importlib
import io
import logging
import struct
import warnings
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from ds4tui.engine.vision.pictures import opened, readable_formats
from ds4tui.errors import UsageError

log = logging.getLogger(__name__)

# A screenshot of the largest screens has a tenth of it.
FILE_BYTES_MAX = 64 * 2**20
# Pixels of what previews are made of: more than terminals have for a few rows.
PREVIEW_SIZE = 960, 480
# "ftyp" boxes of HEIF's containers, by which a camera's picture is known.
_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
# What Pillow's readers raise for files that are none of theirs, or damaged.
_DAMAGED = (OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError,
            struct.error, Image.DecompressionBombError)  # fmt: skip
_ORIENTATION = 0x0112  # EXIF's tag; from 5 on width and height change places
_VECTOR_HINT = "Save it as a PNG file and send that."


@dataclass(frozen=True, slots=True)
class PictureFile:
    """A picture that was decoded once, so it is whole. size: (width, height) in pixels as it is
    seen (turned as EXIF says). note: what of the file the model does not get, "" for nothing."""

    name: str
    data: bytes
    size: tuple[int, int]
    note: str = ""


def read_picture(path: Path) -> PictureFile:
    """Raises UsageError, with the file's name and the reason, for what cannot be read, is too
    large or is no picture."""
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise UsageError(f"{path.name} is no file.", "Name a picture file.")
        if size > FILE_BYTES_MAX:
            raise _too_large(path.name, size)
        with open(path, "rb") as file:  # it may grow between the two
            data = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError as exc:
        raise UsageError(f"There is no file {path}.", "Look at its name and folder.") from exc
    except OSError as exc:
        raise UsageError(f"{path.name} cannot be read: {exc.strerror}.", "") from exc
    return checked(data, path.name)


def checked(data: bytes, name: str) -> PictureFile:
    """The picture in `data`, decoded to be sure that it is whole. Raises UsageError."""
    if len(data) > FILE_BYTES_MAX:
        raise _too_large(name, len(data))
    _open_heif_too()
    _refuse_known_others(data, name)
    picture = opened(data, name)
    return PictureFile(name, data, picture.size, _note(data))


def size_of(data: bytes) -> tuple[int, int] | None:
    """(width, height) in pixels as it is seen, by the file's head alone; None for what is no
    picture. Takes microseconds."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data), formats=readable_formats()) as image:
                width, height = image.size
                is_turned = image.getexif().get(_ORIENTATION, 1) >= 5
    except _DAMAGED:
        return None
    return (height, width) if is_turned else (width, height)


def preview(data: bytes, size: tuple[int, int] = PREVIEW_SIZE) -> Image.Image:
    """The picture, mode RGB, made smaller to fit `size` (width, height) in pixels; never larger.
    Raises UsageError as `checked`."""
    _open_heif_too()
    picture = opened(data)
    picture.thumbnail(size, Image.Resampling.BOX, reducing_gap=2.0)
    return picture


def _too_large(name: str, size: int) -> UsageError:
    return UsageError(
        f"{name} has {size / 1e6:,.0f} MB; picture files of up to {FILE_BYTES_MAX / 1e6:,.0f} MB "
        "are read.",
        "Save it smaller, or cut out what matters.",
    )


def _note(data: bytes) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Image.open(io.BytesIO(data), formats=readable_formats()) as image:
            frames = getattr(image, "n_frames", 1)
            is_photo = image.format in ("MPO", "HEIF", "AVIF")  # further frames: depth, thumbnails
    return "" if frames == 1 or is_photo else f"first of {frames:,} frames"


def _refuse_known_others(data: bytes, name: str) -> None:
    """Raises UsageError for what people take for a picture, by name of its kind."""
    if data[4:8] == b"ftyp" and data[8:12] in _HEIF_BRANDS and "HEIF" not in Image.OPEN:
        raise UsageError(
            f"{name} is a HEIC picture, which Pillow does not read by itself.",
            "Install pillow-heif beside ds4tui, or save it as PNG (macOS: sips -s format png).",
        )
    begin = data[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if begin.startswith(b"%pdf"):
        raise UsageError(f"{name} is a PDF document, not a picture.", _VECTOR_HINT)
    if begin.startswith(b"<svg") or (begin.startswith(b"<?xml") and b"<svg" in begin):
        raise UsageError(f"{name} is an SVG drawing, which has no pixels.", _VECTOR_HINT)
    if begin.startswith((b"<!doctype html", b"<html")):
        raise UsageError(f"{name} is a web page, not a picture.", "Save the picture itself.")


_is_heif_asked_for = False


def _open_heif_too() -> None:
    """Let Pillow read HEIC where pillow-heif is installed; once."""
    global _is_heif_asked_for
    if _is_heif_asked_for:
        return
    _is_heif_asked_for = True
    try:
        importlib.import_module("pillow_heif").register_heif_opener()
    except ImportError:
        log.debug("pillow-heif is not installed: HEIC pictures are refused")
