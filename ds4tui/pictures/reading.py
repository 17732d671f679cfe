"""From a file that somebody gave to a picture that can be sent: its bytes, size and note.

What is read, how it is turned and what is refused is `engine/vision/pictures.py`'s; here are the
files. Everything blocks for as long as the disk and the decoder take: call it off the UI loop.
"""

import io
import struct
import warnings
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from ds4tui.engine.vision.pictures import opened, readable_formats
from ds4tui.errors import UsageError

# A screenshot of the largest screens has a tenth of it.
FILE_BYTES_MAX = 64 * 2**20
# Pixels of what previews are made of: more than terminals have for a few rows.
PREVIEW_SIZE = 960, 480
# What Pillow's readers raise for files that are none of theirs, or damaged.
_DAMAGED = (OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError,
            struct.error, Image.DecompressionBombError)  # fmt: skip
_ORIENTATION = 0x0112  # EXIF's tag; from 5 on width and height change places


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
