"""Pictures and encoders' settings that the tests of vision share."""

import io
import struct
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image

from ds4tui.engine.vision.config import VisionConfig

SIZES = [(100, 70), (64, 64), (350, 150), (37, 90), (240, 301)]  # width, height
ODD_SIZES = [(1, 1), (3, 5), (1, 200), (1, 2000), (2000, 1), (1999, 10), (2501, 1603)]
HALF = (0.5, 0.5, 0.5)
COLOURS = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)

IDEFICS3 = VisionConfig(
    "idefics3", 32, 4, 32, 48, 2, 2, 1e-6, 64, 2, HALF, HALF, longest_edge=32, pixels=(1, 1)
)
TILED = replace(IDEFICS3, longest_edge=96)
GEMMA3 = replace(IDEFICS3, projector="gemma3", image_side=48)
QWEN = replace(
    IDEFICS3,
    projector="qwen3vl_merger",
    patch_side=14,
    mean=COLOURS[0],
    std=COLOURS[1],
    pixels=(56 * 56, 100 * 100),
)
# Qwen's pixels, by those of a side of a vector; SmolVLM's longest edge and tiles; tiles in rows
# and columns.
BOUNDS = {28: (3_136, 12_845_056), 32: (65_536, 16_777_216)}
SMOLVLM = 1536, 384
GRIDS = [(0, 0), (1, 2), (2, 1), (3, 2)]
CONFIGS = {"idefics3": IDEFICS3, "tiled": TILED, "gemma3": GEMMA3, "qwen": QWEN}


def picture(width: int, height: int) -> Image.Image:
    """Slopes, edges and a pattern, so that filters differ."""
    y, x = np.mgrid[:height, :width]
    squares = ((x // 8 + y // 8) % 2) * 200 + x % 50
    values = np.stack([(x * 7 + y * 3) % 256, (x * y // 5) % 256, squares], -1)
    return Image.fromarray(values.astype(np.uint8))


def forms() -> dict[str, bytes]:
    """Files of one picture in the modes that people have."""
    rgb = picture(50, 40)
    slope = Image.fromarray(np.tile(np.arange(50, dtype=np.uint8) * 5, (40, 1)))
    clear = rgb.copy()
    clear.putalpha(slope)
    grey = rgb.convert("L")
    palette = rgb.quantize(16, dither=Image.Dither.NONE)
    return {
        "plain": encoded(rgb),
        "alpha": encoded(clear),
        "grey and alpha": encoded(Image.merge("LA", (grey, slope))),
        "grey": encoded(grey),
        "palette": encoded(palette),
        "palette with a clear colour": encoded(palette, transparency=3),
        "black and white": encoded(rgb.convert("1", dither=Image.Dither.NONE)),
        "cmyk": encoded(rgb.convert("CMYK"), "TIFF"),
        "16 bits": sixteen_bits(rgb),
    }


def sixteen_bits(image: Image.Image) -> bytes:
    """A PNG with 16 bits a colour, which Pillow reads but does not write; the lower 8 are noise."""
    values = np.asarray(image).astype(">u2") * 256 + np.arange(image.width)[:, None] % 256
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    header = struct.pack(">IIBBBBB", *image.size, 16, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    parts = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def encoded(image: Image.Image, kind: str = "PNG", **more: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **more)
    return file.getvalue()
