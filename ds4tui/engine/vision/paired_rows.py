"""The block of a picture in DeepSeek V4 Flash Vision: its size, and the order of its rows.

A picture keeps its shape and becomes rows x columns vectors. Each row of them ends with a vector
for a line's end, an odd last row gets one of pads below it, and two rows lie in each other: the
first column of both, the second of both, and so on, so that a pool of four neighbours is a square
of the picture. In front stand a vector for the start and, before it, pads up to a position
divisible by 4; behind stand pads to an even number of pairs, and a vector for the end.

Follows inference/image_processor.py of the published checkpoint, as vLLM and llama.cpp (tools/mtmd)
have it too; only float16 rounding of pixels is left out. Needs no mlx.
"""

import math

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from ds4tui.engine.vision.config import VisionConfig

Size = tuple[int, int]  # width and height in pixels

ROWS_MAX = 384  # of a block
ALIGNED_TO = 4
WIDTHS_MAX = 8  # a wider picture is squeezed to it
GREY = (127, 127, 127)

# What learnt vectors stand behind those of the picture, in this order.
START, PAD, LINE_END, END = range(4)


def grid_of(size: Size, config: VisionConfig) -> tuple[int, int]:
    """Rows and columns of vectors of a picture of `size`, a multiple of a patch."""
    wide, high = (-(-(side // config.patch_side) // config.merge) for side in size)
    return high, wide


def row_count(rows: int, columns: int) -> int:
    """Of a block, without the pads before its start."""
    pairs = (rows + 1) // 2 * (columns + 1)
    return 2 * pairs + pairs % 2 * 2 + 2


def row_order(rows: int, columns: int) -> npt.NDArray[np.int64]:
    """Which vector each row of a block is, int64 [row_count]: those of the picture count from 0,
    row by row, the learnt ones follow them."""
    count, line = rows * columns, columns + 1
    cells = np.full((rows + rows % 2, line), count + PAD, np.int64)
    cells[:rows, :columns] = np.arange(count).reshape(rows, columns)
    cells[:rows, columns] = count + LINE_END
    paired = cells.reshape(-1, 2, line).swapaxes(1, 2).reshape(-1)
    pads = [count + PAD] * (len(paired) // 2 % 2 * 2)
    return np.array([count + START, *paired, *pads, count + END], np.int64)


def pads_before(start: int) -> int:
    """So that what follows the vector of the start lies at a multiple of ALIGNED_TO."""
    return ALIGNED_TO - 1 - start % ALIGNED_TO


def fitted(image: Image.Image, config: VisionConfig) -> Image.Image:
    """`image` within `fitted_size`: padded with grey, or squeezed if it is too wide."""
    size = fitted_size(image.size, config)
    if image.width >= WIDTHS_MAX * image.height:
        return image.resize(size, Image.Resampling.BICUBIC)
    return ImageOps.pad(image, size, Image.Resampling.BICUBIC, color=GREY)


def fitted_size(size: Size, config: VisionConfig) -> Size:
    """Whole patches, of nearly the same shape, whose block has room for all its pads."""
    width, height = _enlarged(min(size[0], WIDTHS_MAX * size[1]), size[1], config.pixels[0])
    patch = config.patch_side
    best = -(-width // patch) * patch, -(-height // patch) * patch
    most = budget = ROWS_MAX - (ALIGNED_TO - 1)
    while row_count(*grid_of(best, config)) > most:
        best = _within(width, height, budget, config)
        budget -= 1
    return best


def _enlarged(width: int, height: int, least: int) -> Size:
    if width * height >= least:
        return width, height
    ratio = math.sqrt(least / (width * height))
    return int(width * ratio), int(height * ratio)


def _within(width: int, height: int, budget: int, config: VisionConfig) -> Size:
    """The largest size of this shape whose block takes about `budget` rows."""
    ratio, cell = height / width, config.factor
    columns = math.sqrt((budget - 2) / ratio + 0.25) - 0.5
    rows = columns * ratio
    if columns < 1:
        return cell, (budget - 2) // 2 // 2 * 2 * cell
    if rows < 2:
        return ((budget - 2) // 2 - 1) * cell, 2 * cell
    scale = min(math.floor(columns) * cell / width, math.floor(rows) // 2 * 2 * cell / height)
    wide, high = (math.floor(side * scale / config.patch_side) for side in (width, height))
    return wide * config.patch_side, high * config.patch_side
