"""A picture as its encoder wants it: resized and cut as the model's own processor does.

Engines differ here, so these follow transformers' processors (5.24), with Pillow's filters:

idefics3    longer side to longest_edge (LANCZOS, the other one made even), then to whole tiles,
            which stretches a little; more than one tile: each, and all of it in one as overview
gemma3      to image_side x image_side (BILINEAR), which stretches
deepseek4v  whole patches whose block has at most 384 rows, padded with grey (paired_rows.py)
qwen        to a multiple of the pixels of a vector (28, or 32) a side that keeps the shape within
            the bounds (BICUBIC)

Needs no mlx.
"""

import math
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
from PIL import Image

from ds4tui.engine.vision.config import VisionConfig
from ds4tui.engine.vision.paired_rows import fitted, fitted_size, grid_of
from ds4tui.errors import UsageError

Pixels = npt.NDArray[np.uint8]

ASPECT_MAX = 200  # qwen


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a picture decides about its place in a timeline.

    size: (width, height) of the picture. squares: how many images the encoder takes. grid: rows
    and columns, of tiles before the overview (idefics3; (0, 0): the overview only) or of vectors
    (qwen, deepseek4v); (0, 0) for others.
    """

    size: tuple[int, int]
    squares: int
    grid: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Prepared:
    """pixels: uint8 [squares, height, width, 3]."""

    pixels: Pixels
    shape: Shape

    def fingerprint(self, encoder: bytes) -> bytes:
        """16 bytes that stand for what the encoder `encoder` (config.identity) makes of this."""
        hasher = blake2b(encoder, digest_size=16)
        hasher.update(repr((self.pixels.shape, self.shape.grid)).encode())
        hasher.update(np.ascontiguousarray(self.pixels).data)
        return hasher.digest()


def prepared(image: Image.Image, config: VisionConfig) -> Prepared:
    """`image` is of mode RGB. Raises UsageError for a shape that the model does not take."""
    if config.projector == "idefics3":
        squares, grid = _tiled(image, config)
    elif config.projector == "gemma3":
        squares, grid = [_resized(image, _square(config), Image.Resampling.BILINEAR)], (0, 0)
    elif config.projector == "deepseek4v":
        squares = [fitted(image, config)]
        grid = grid_of(squares[0].size, config)
    else:
        size = smart_size(image.size, config)
        squares = [_resized(image, size, Image.Resampling.BICUBIC)]
        grid = size[1] // config.factor, size[0] // config.factor
    pixels = np.stack([np.asarray(square) for square in squares])
    return Prepared(pixels, Shape(image.size, len(squares), grid))


def shape_of(size: tuple[int, int], config: VisionConfig) -> Shape:
    """Of a picture of (width, height) pixels, as `prepared` gives it. Raises UsageError as that."""
    if config.projector == "idefics3":
        side = config.image_side
        wide, high = whole_tiles(first_size(size, config.longest_edge), side)
        rows, columns = high // side, wide // side
        is_one = rows == columns == 1
        return Shape(
            size, 1 if is_one else rows * columns + 1, (0, 0) if is_one else (rows, columns)
        )
    if config.projector == "gemma3":
        return Shape(size, 1, (0, 0))
    if config.projector == "deepseek4v":
        return Shape(size, 1, grid_of(fitted_size(size, config), config))
    wide, high = smart_size(size, config)
    return Shape(size, 1, (high // config.factor, wide // config.factor))


def normalised(pixels: Pixels, config: VisionConfig) -> npt.NDArray[np.float32]:
    """uint8 [.., 3] to float32 of about -1..1."""
    mean, std = (np.array(c, np.float32) for c in (config.mean, config.std))
    values: npt.NDArray[np.float32] = (pixels.astype(np.float32) / np.float32(255) - mean) / std
    return values


def _square(config: VisionConfig) -> tuple[int, int]:
    return config.image_side, config.image_side


def _resized(image: Image.Image, size: tuple[int, int], resample: Image.Resampling) -> Image.Image:
    return image if image.size == size else image.resize(size, resample)


# -- idefics3 ------------------------------------------------------------------------------------


def _tiled(image: Image.Image, config: VisionConfig) -> tuple[list[Image.Image], tuple[int, int]]:
    side, lanczos = config.image_side, Image.Resampling.LANCZOS
    image = _resized(image, first_size(image.size, config.longest_edge), lanczos)
    image = _resized(image, whole_tiles(image.size, side), lanczos)
    columns, rows = image.width // side, image.height // side
    if rows == columns == 1:
        return [image], (0, 0)
    tiles = [
        image.crop((x * side, y * side, (x + 1) * side, (y + 1) * side))
        for y in range(rows)
        for x in range(columns)
    ]
    return [*tiles, _resized(image, (side, side), lanczos)], (rows, columns)


def first_size(size: tuple[int, int], longest: int) -> tuple[int, int]:
    """(width, height) with the longer side `longest`, the other one even."""
    width, height = size
    aspect = width / height
    if width >= height:
        width, height = longest, _even(int(longest / aspect))
    else:
        width, height = _even(int(longest * aspect)), longest
    return max(width, 1), max(height, 1)


def whole_tiles(size: tuple[int, int], side: int) -> tuple[int, int]:
    """Rounded up to tiles, the longer side first, the other one by the shape it then has."""
    width, height = size
    aspect = width / height
    if width >= height:
        width = math.ceil(width / side) * side
        height = math.ceil(int(width / aspect) / side) * side
    else:
        height = math.ceil(height / side) * side
        width = math.ceil(int(height * aspect) / side) * side
    return max(width, side), max(height, side)


def _even(value: int) -> int:
    return value + value % 2


# -- qwen ----------------------------------------------------------------------------------------


def smart_size(size: tuple[int, int], config: VisionConfig) -> tuple[int, int]:
    """(width, height) in multiples of the factor, of nearly the same shape, within the bounds of
    pixels. Raises UsageError for a picture more than 200 times as long as wide."""
    width, height = size
    if max(size) > ASPECT_MAX * min(size):
        raise UsageError(
            f"A picture of {width} x {height} pixels is too long for this model.",
            f"Crop it: the longer side may be at most {ASPECT_MAX} times the other one.",
        )
    factor, (least, most) = config.factor, config.pixels
    wide, high = (round(side / factor) * factor for side in (width, height))
    if wide * high > most:
        beta = math.sqrt(width * height / most)
        wide, high = (max(factor, int(side / beta / factor) * factor) for side in size)
    elif wide * high < least:
        beta = math.sqrt(least / (width * height))
        wide, high = (math.ceil(side * beta / factor) * factor for side in size)
    return wide, high
