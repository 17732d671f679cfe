"""Pictures and encoders' settings that the tests of vision share."""

import io
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image

from ds4tui.engine.vision.config import VisionConfig

SIZES = [(100, 70), (64, 64), (350, 150), (37, 90), (240, 301)]  # width, height
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
CONFIGS = {"idefics3": IDEFICS3, "tiled": TILED, "gemma3": GEMMA3, "qwen": QWEN}


def picture(width: int, height: int) -> Image.Image:
    """Slopes, edges and a pattern, so that filters differ."""
    y, x = np.mgrid[:height, :width]
    squares = ((x // 8 + y // 8) % 2) * 200 + x % 50
    values = np.stack([(x * 7 + y * 3) % 256, (x * y // 5) % 256, squares], -1)
    return Image.fromarray(values.astype(np.uint8))


def encoded(image: Image.Image, kind: str = "PNG", **more: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **more)
    return file.getvalue()
