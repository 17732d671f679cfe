"""From a file that somebody gave to a picture that can be sent: its bytes, size and note.

What is read, how it is turned and what is refused is `engine/vision/pictures.py`'s; here are the
files. Everything blocks for as long as the disk and the decoder take: call it off the UI loop.
"""

from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from ds4tui.engine.vision.pictures import made_of, reading, seen_size
from ds4tui.errors import PictureError, UsageError

# A screenshot of the largest screens has a tenth of it.
FILE_BYTES_MAX = 64 * 2**20
# Pixels of what previews are made of: more than terminals have for a few rows.
PREVIEW_SIZE = 960, 480
# Further frames of these are depth and thumbnails.
_PHOTOS = ("MPO", "HEIF", "AVIF")


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
    size = made_of(data, lambda picture: picture.size, name)
    return PictureFile(name, data, size, _note(data))


def size_of(data: bytes) -> tuple[int, int] | None:
    """(width, height) in pixels as it is seen, by the file's head alone; None for what is no
    picture. Takes microseconds."""
    try:
        with reading(data, "") as image:
            return seen_size(image)
    except PictureError:
        return None


def preview(data: bytes, size: tuple[int, int] = PREVIEW_SIZE) -> Image.Image:
    """The picture, mode RGB, made smaller to fit `size` (width, height) in pixels; never larger.
    Raises UsageError as `checked`."""

    def smaller(picture: Image.Image) -> Image.Image:
        picture.thumbnail(size, Image.Resampling.BOX, reducing_gap=2.0)
        return picture

    return made_of(data, smaller)


def _too_large(name: str, size: int) -> UsageError:
    return UsageError(
        f"{name} has {size / 1e6:,.0f} MB; picture files of up to {FILE_BYTES_MAX / 1e6:,.0f} MB "
        "are read.",
        "Save it smaller, or cut out what matters.",
    )


def _note(data: bytes) -> str:
    """Of a picture whose first frame is whole."""
    try:
        with reading(data, "") as image:
            frames = getattr(image, "n_frames", 1)
            is_photo = image.format in _PHOTOS
    except PictureError:
        return "first frame; those behind it are damaged"
    return "" if frames == 1 or is_photo else f"first of {frames:,} frames"
