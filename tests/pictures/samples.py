"""Picture files of every kind that people have, good and bad."""

import io
import struct
import zlib
from typing import Any

from PIL import Image

RED, BLUE = (200, 30, 40), (20, 40, 220)


def picture(size: tuple[int, int] = (40, 24), mode: str = "RGB") -> Image.Image:
    """Red with a blue left half."""
    made = Image.new("RGB", size, RED)
    made.paste(BLUE, (0, 0, size[0] // 2, size[1]))
    return made.convert(mode)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    target = io.BytesIO()
    image.save(target, kind, **options)
    return target.getvalue()


def png(size: tuple[int, int] = (40, 24)) -> bytes:
    return encoded(picture(size))


def animated_gif(frames: int = 3) -> bytes:
    pictures = [Image.new("RGB", (8, 8), (80 * number, 0, 0)) for number in range(frames)]
    return encoded(pictures[0], "GIF", save_all=True, append_images=pictures[1:])


def turned_jpeg() -> bytes:
    """40 x 24 in the file, to be shown turned by a quarter."""
    exif = Image.Exif()
    exif[0x0112] = 6  # Orientation
    return encoded(picture(), "JPEG", exif=exif)


def bomb(width: int = 60_000, height: int = 60_000) -> bytes:
    """A PNG of a hundred bytes that claims to be huge."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n"
        + head
        + chunk(b"IDAT", zlib.compress(bytes(1000)))
        + chunk(b"IEND", b"")
    )
