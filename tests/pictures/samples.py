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


def cut_gif() -> bytes:
    """The first frame is whole, the head of the second one is not."""
    whole = animated_gif(2)
    second = whole.rindex(b"\x2c\0\0\0\0\x08")  # where its extent is told
    return whole[: second + 4]


def lost_tiff() -> bytes:
    """The second frame's directory tells no width."""
    frames = [picture((8, 8)), picture((8, 8))]
    data = bytearray(encoded(frames[0], "TIFF", save_all=True, append_images=frames[1:]))
    width = data.rindex(struct.pack("<HHL", 256, 4, 1))
    data[width : width + 2] = struct.pack("<H", 65000)
    return bytes(data)


def torn_avif(at: bytes = b"mdat", behind: int = 4) -> bytes:
    """Whose decoder fails with a RuntimeError: as it opens the file (`at` b"iloc"), or later."""
    data = bytearray(encoded(picture(), "AVIF"))
    begin = data.index(at) + behind
    data[begin : begin + 16] = bytes(16)
    return bytes(data)


def odd_exif_webp() -> bytes:
    """Turned by a quarter; its EXIF has a number where another tag's text should stand, so that
    Pillow cannot write that EXIF again."""
    odd = struct.pack(">HHLL", 0x0100, 2, 2, 0x78000000)
    turned = struct.pack(">HHLHH", 0x0112, 3, 1, 6, 0)
    exif = b"MM\0*" + struct.pack(">LH", 8, 2) + odd + turned + bytes(4)
    return encoded(picture(), "WEBP", lossless=True, exif=exif)


def empty_png(width: int = 0, height: int = 5) -> bytes:
    return bomb(width, height)


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
