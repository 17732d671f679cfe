"""From the bytes of a picture file to RGB pixels. Needs no mlx.

Turned as EXIF says; transparency over white, as the reference processors have it; of more than 8
bits a colour the upper 8; of several frames the first.
"""

import io
import logging
import warnings
from functools import cache
from importlib import import_module

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from ds4tui.errors import UsageError

log = logging.getLogger(__name__)

# More is refused before it is decoded: a hostile file of some kilobytes may claim any size.
PIXELS_MAX = 120_000_000

_HINT = "Send a PNG, JPEG, WebP, GIF or BMP file."
# Of what Pillow can read. Others run programs (EPS runs Ghostscript), or are no pictures.
_FORMATS = "PNG JPEG MPO WEBP GIF BMP DIB TIFF AVIF HEIF ICO PPM QOI JPEG2000".split()
# "ftyp" boxes of HEIF's containers, by which a camera's picture is known.
_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
_VECTOR_HINT = "Save it as a PNG file and send that."
_SIXTEEN_BITS = ("I;16", "I;16B", "I;16L", "I;16N", "I")


def opened(data: bytes, name: str = "The picture") -> Image.Image:
    """The picture as mode RGB. Raises UsageError, with `name` and the reason, for what is no
    picture, damaged, cut off, empty or too large."""
    _refuse_known_others(data, name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd but readable metadata
            with Image.open(io.BytesIO(data), formats=readable_formats()) as image:
                _check_size(image, name)
                return _as_rgb(ImageOps.exif_transpose(image))
    except UnidentifiedImageError as exc:
        raise UsageError(
            f"{name} is no picture that can be read: it {_look(data)}.", _HINT
        ) from exc
    except Image.DecompressionBombError as exc:
        raise UsageError(
            f"{name} is too large: at most {PIXELS_MAX:,} pixels are decoded.",
            "Send a smaller one.",
        ) from exc
    # What Pillow's readers raise for damaged files is many things.
    except (OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError) as exc:
        raise UsageError(f"{name} is damaged or cut off: {exc}.", "Save it anew.") from exc


@cache
def readable_formats() -> tuple[str, ...]:
    """The names, as Pillow has them, of the formats that are read here: HEIF if pillow-heif is
    installed, too."""
    try:
        import_module("pillow_heif").register_heif_opener()
    except ImportError:
        log.debug("pillow-heif is not installed: HEIC pictures are refused")
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def _refuse_known_others(data: bytes, name: str) -> None:
    """Raises UsageError for what people take for a picture, by name of its kind."""
    if data[4:8] == b"ftyp" and data[8:12] in _HEIF_BRANDS and "HEIF" not in readable_formats():
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


def _check_size(image: Image.Image, name: str) -> None:
    width, height = image.size
    if width * height > PIXELS_MAX:
        raise UsageError(
            f"{name} has {width} x {height} pixels; at most {PIXELS_MAX:,} are decoded.",
            "Send a smaller one.",
        )


def _as_rgb(image: Image.Image) -> Image.Image:
    if image.mode in _SIXTEEN_BITS:
        image.load()
        values = np.asarray(image).astype(np.int64)
        return Image.fromarray((values >> 8).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        over = image.convert("RGBA")
        white = Image.new("RGBA", over.size, (255, 255, 255))
        return Image.alpha_composite(white, over).convert("RGB")
    return image.convert("RGB")


def _look(data: bytes) -> str:
    if not data:
        return "is empty"
    if not data.strip(b"\0"):
        return "holds zeros only"
    return f"begins with {data[:8]!r}"
