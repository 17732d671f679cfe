"""From the bytes of a picture file to RGB pixels. Needs no mlx.

Turned as EXIF says; transparency over white, as the reference processors have it; of more than 8
bits a colour the upper 8; of several frames the first.
"""

import io
import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import TypeVar

import numpy as np
from PIL import Image, UnidentifiedImageError

from ds4tui.errors import Ds4Error, PictureError

log = logging.getLogger(__name__)

# More is refused before it is decoded: a hostile file of some kilobytes may claim any size. Three
# screens of 5K side by side have 44 million, a page of 20,000 lines on a sharp screen 58. One
# picture is held twice while it is made (4 bytes a pixel each), WebP's decoder has two more of it.
PIXELS_MAX = 64_000_000
# Of pictures inside of others (ICO holds PNG), whose size no head tells: twice that is refused.
Image.MAX_IMAGE_PIXELS = PIXELS_MAX
# Rows that are made over at a time, so that what stands between is never of the full size.
STRIP_PIXELS = 1 << 20

_HINT = "Send a PNG, JPEG, WebP, GIF or BMP file."
# Of what Pillow can read. Others run programs (EPS runs Ghostscript), or are no pictures.
_FORMATS = "PNG JPEG MPO WEBP GIF BMP DIB TIFF AVIF HEIF ICO PPM QOI JPEG2000".split()
# "ftyp" boxes of HEIF's containers, by which a camera's picture is known.
_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
_VECTOR_HINT = "Save it as a PNG file and send that."
_SIXTEEN_BITS = ("I;16", "I;16B", "I;16L", "I;16N", "I")
_TRANSPARENT = ("RGBA", "LA", "PA", "La", "RGBa")
_PNG = b"\x89PNG\r\n\x1a\n"
_BEGINNINGS = {_PNG: "PNG", b"\xff\xd8\xff": "JPEG", b"GIF8": "GIF", b"BM": "BMP", b"RIFF": "WebP"}
_ORIENTATION = 0x0112  # EXIF's tag
# By its values: what the picture has to go through to stand upright.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_QUARTER_TURNS = (5, 6, 7, 8)
# However many ask, one picture at a time is decoded and held in full.
_FULL_SIZE = threading.Lock()

T = TypeVar("T")


def made_of(data: bytes, make: Callable[[Image.Image], T], name: str = "The picture") -> T:
    """What `make` makes of the picture, which it must not keep: one is held in full at a time.
    Raises as `opened` and `make` do."""
    with _FULL_SIZE:
        return make(opened(data, name))


def opened(data: bytes, name: str = "The picture") -> Image.Image:
    """The picture as mode RGB. Raises PictureError, with `name` and the reason, for what is no
    picture, damaged, cut off, empty or too large."""
    _refuse_known_others(data, name)
    with reading(data, name) as image:
        _check_size(image, name)
        image.load()
        _check_size(image, name)  # an ICO has the size of what is in it, not the one it tells
        turn = _TURNS.get(image.getexif().get(_ORIENTATION, 1))
        flat = _as_rgb(image)
    return flat if turn is None else flat.transpose(turn)


def seen_size(image: Image.Image) -> tuple[int, int]:
    """(width, height) in pixels of what `reading` gave, turned as EXIF says."""
    is_turned = image.getexif().get(_ORIENTATION, 1) in _QUARTER_TURNS
    return (image.height, image.width) if is_turned else image.size


@contextmanager
def reading(data: bytes, name: str) -> Iterator[Image.Image]:
    """The picture in `data`, not decoded yet. Whatever a reader of Pillow raises within becomes a
    PictureError: their authors promise nothing, and damaged files bring out KeyError, TypeError,
    IndexError, struct.error, RuntimeError and more."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd but readable metadata
            with Image.open(io.BytesIO(data), formats=readable_formats()) as image:
                yield image
    except Ds4Error:
        raise
    except UnidentifiedImageError as exc:
        raise _unknown(data, name) from exc
    except Image.DecompressionBombError as exc:
        told = f"{name} is too large: at most {PIXELS_MAX:,} pixels are decoded."
        raise PictureError(told, name, "Send a smaller one.") from exc
    except MemoryError as exc:
        told = f"There is not enough memory to decode {name}."
        raise PictureError(told, name, "Close other programs, or send a smaller one.") from exc
    except Exception as exc:  # the one place that knows Pillow's readers: see above
        told = f"{name} is damaged or cut off: {str(exc) or type(exc).__name__}."
        raise PictureError(told, name, "Save it anew.") from exc


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
    """Raises PictureError for what people take for a picture, by name of its kind."""
    if data[4:8] == b"ftyp" and data[8:12] in _HEIF_BRANDS and "HEIF" not in readable_formats():
        raise PictureError(
            f"{name} is a HEIC picture, which Pillow does not read by itself.",
            name,
            "Install pillow-heif beside ds4tui, or save it as PNG (macOS: sips -s format png).",
        )
    begin = data[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if begin.startswith(b"%pdf"):
        raise PictureError(f"{name} is a PDF document, not a picture.", name, _VECTOR_HINT)
    if begin.startswith(b"<svg") or (begin.startswith(b"<?xml") and b"<svg" in begin):
        raise PictureError(f"{name} is an SVG drawing, which has no pixels.", name, _VECTOR_HINT)
    if begin.startswith((b"<!doctype html", b"<html")):
        told = f"{name} is a web page, not a picture."
        raise PictureError(told, name, "Save the picture itself.")


def _check_size(image: Image.Image, name: str) -> None:
    width, height = image.size
    if width * height > PIXELS_MAX:
        raise PictureError(
            f"{name} has {width} x {height} pixels; at most {PIXELS_MAX:,} are decoded.",
            name,
            "Send a smaller one.",
        )


def _as_rgb(image: Image.Image) -> Image.Image:
    """`image`, which is loaded, in strips: of the full size there is nothing but it and this."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    flat = Image.new("RGB", image.size)
    rows = max(1, STRIP_PIXELS // image.width)
    for top in range(0, image.height, rows):
        strip = image.crop((0, top, image.width, min(top + rows, image.height)))
        flat.paste(_flat(strip), (0, top))
    return flat


def _flat(strip: Image.Image) -> Image.Image:
    if strip.mode in _SIXTEEN_BITS:
        values = np.asarray(strip).astype(np.int64)
        return Image.fromarray((values >> 8).clip(0, 255).astype(np.uint8)).convert("RGB")
    if strip.mode in _TRANSPARENT or "transparency" in strip.info:
        over = strip.convert("RGBA")
        white = Image.new("RGBA", over.size, (255, 255, 255))
        return Image.alpha_composite(white, over).convert("RGB")
    return strip.convert("RGB")


def _unknown(data: bytes, name: str) -> PictureError:
    """Why no reader took `data`."""
    if data.startswith(_PNG) and data[12:16] == b"IHDR" and len(data) >= 24:
        width, height = (int.from_bytes(data[at : at + 4]) for at in (16, 20))
        if not width or not height:
            told = f"{name} is an empty picture: {width} x {height} pixels."
            return PictureError(told, name, "Save it anew.")
    kind = next((kind for begin, kind in _BEGINNINGS.items() if data.startswith(begin)), "")
    if kind:
        told = f"{name} is damaged or cut off: it begins like a {kind} file and does not go on so."
        return PictureError(told, name, "Save it anew.")
    return PictureError(f"{name} is no picture that can be read: it {_look(data)}.", name, _HINT)


def _look(data: bytes) -> str:
    if not data:
        return "is empty"
    if not data.strip(b"\0"):
        return "holds zeros only"
    return f"begins with {data[:8]!r}"
