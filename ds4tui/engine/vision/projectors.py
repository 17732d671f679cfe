"""From pictures to vectors of the text model: the encoders of each projector type.

idefics3    SigLIP; merge x merge patches side by side are one vector, times one matrix
gemma3      SigLIP; merge x merge patches are averaged, RMSNorm, times one matrix
qwen2vl     positions turned by row and column; 2 x 2 patches side by side through two matrices
qwen2.5vl   the same, and most blocks attend within windows; RMSNorm, gated feed-forwards
qwen3vl     positions resized to the picture and turned by row and column; 2 x 2 patches side by
            side through two matrices; blocks that are tapped give vectors for the text model's
            first blocks through two matrices of their own
deepseek4v  positions turned by row and column; 3 x 3 patches, colour by colour as it were, through
            two matrices; behind the vectors those that were learnt for a block's other rows
"""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.vision.config import Projector, VisionConfig
from ds4tui.engine.vision.encoder import Parts, Tower, Turn, exact_gelu, squares_of
from ds4tui.engine.vision.preprocess import Pixels, Prepared
from ds4tui.engine.vision.windows import Windows
from ds4tui.kernels.choice import ComputePath

ROPE_BASE = 10_000.0  # of Qwen's towers


@dataclass(frozen=True, slots=True)
class Vectors:
    """What a picture becomes, evaluated: `rows` float32 [V, text width]; `added` [V, text width]
    each, for behind the text model's first blocks."""

    rows: mx.array
    added: tuple[mx.array, ...] = ()

    @property
    def nbytes(self) -> int:
        return sum(int(part.nbytes) for part in (self.rows, *self.added))


class Encoder:
    """One loaded mmproj. Owned by the engine thread."""

    def __init__(self, gguf: GGUFFile, path: ComputePath) -> None:
        """Loads all weights. Raises GGUFError for what is missing, misshapen or not read."""
        self.config = VisionConfig.of(gguf)
        self._tower = Tower(self.config, gguf, path)
        self._run = _SQUARES[self.config.projector](self._tower)
        loader = self._tower.parts.loader
        self.unused_tensors = loader.warn_of_unused(*_ELSEWHERE)
        self.weights_bytes, self.compute_path = self._tower.parts.nbytes, loader.words()

    def __call__(self, picture: Prepared) -> Vectors:
        """All squares of a picture, in order; equal ones are encoded once."""
        done: dict[bytes, list[mx.array]] = {}
        squares = []
        for pixels in picture.pixels:
            key = pixels.tobytes()
            if key not in done:
                done[key] = self._run(pixels)
                mx.eval(done[key])
            squares.append(done[key])
        rows, *added = (mx.concatenate(list(parts)) for parts in zip(*squares, strict=True))
        mx.eval(rows, added)
        return Vectors(rows, tuple(added))


# Read without the loader, which knows matrices and vectors.
_ELSEWHERE = ("v.patch_embd.weight", "v.patch_embd.weight.1", "mm.input_projection.weight")

RunSquare = Callable[[Pixels], list[mx.array]]


def _siglip(tower: Tower) -> Callable[[Pixels], mx.array]:
    """To [vectors, merge * merge, width]."""
    c, positions = tower.config, tower.parts.positions()
    norm = tower.parts.norm("v.post_ln", c.width)

    def run(pixels: Pixels) -> mx.array:
        x, _ = tower.blocks(tower.embedded(pixels) + positions)
        return squares_of(norm(x), c.grid, c.merge)

    return run


def _idefics3(tower: Tower) -> RunSquare:
    c, parts = tower.config, tower.parts
    encode = _siglip(tower)
    project = parts.loader.matrix("mm.model.fc", c.text_width, c.merge**2 * c.width)

    def run(pixels: Pixels) -> list[mx.array]:
        cells = encode(pixels)
        return [project(cells.reshape(cells.shape[0], -1))]

    return run


def _gemma3(tower: Tower) -> RunSquare:
    """The matrix lies in the file as it is multiplied from the right."""
    c, parts = tower.config, tower.parts
    encode, weight = _siglip(tower), parts.loader.vector("mm.soft_emb_norm.weight", c.width)
    projection = parts.values("mm.input_projection.weight", (c.width, c.text_width))
    project = parts.linear(projection.T)

    def run(pixels: Pixels) -> list[mx.array]:
        pooled = encode(pixels).mean(axis=1)
        return [project(mx.fast.rms_norm(pooled, weight, c.norm_epsilon))]

    return run


def _qwen2vl(tower: Tower) -> RunSquare:
    """And 2.5."""
    c = tower.config
    merge = _qwen_merge(tower.parts, "v.post_ln", "mm.0", "mm.2", norm_first=True)

    def run(pixels: Pixels) -> list[mx.array]:
        rows, columns = (side // c.patch_side for side in pixels.shape[:2])
        x, turn = tower.embedded(pixels), turns(rows, columns, c.width // c.heads)
        if c.whole_every > 1:
            windows = Windows.of(rows, columns, c.window_side)
            order, back = mx.array(windows.order), mx.array(windows.back)
            x, _ = tower.blocks(x[order], (turn[0][order], turn[1][order]), windows)
            x = x[back]
        else:
            x, _ = tower.blocks(x, turn)
        return [merge(squares_of(x, rows, c.merge))]

    return run


def _qwen3vl(tower: Tower) -> RunSquare:
    c, parts, positions = tower.config, tower.parts, tower.parts.positions()
    merge = _qwen_merge(parts, "v.post_ln", "mm.0", "mm.2", norm_first=True)
    taps = [
        _qwen_merge(parts, f"{at}.norm", f"{at}.fc1", f"{at}.fc2", norm_first=False)
        for at in (f"v.deepstack.{i}" for i in c.tapped)
    ]

    def run(pixels: Pixels) -> list[mx.array]:
        rows, columns = (side // c.patch_side for side in pixels.shape[:2])
        x = tower.embedded(pixels) + resized_positions(positions, rows, columns)
        x, tapped = tower.blocks(x, turns(rows, columns, c.width // c.heads))
        squares = [squares_of(part, rows, c.merge) for part in (x, *tapped)]
        return [give(cells) for give, cells in zip([merge, *taps], squares, strict=True)]

    return run


def _deepseek4v(tower: Tower) -> RunSquare:
    c, parts = tower.config, tower.parts
    norm = parts.norm("v.post_ln", c.width)
    inner = parts.loader.matrix("mm.1", c.text_width, c.merge**2 * c.width)
    outer = parts.loader.matrix("mm.2", c.text_width, c.text_width)
    learnt = mx.stack([parts.loader.vector(name, c.text_width) for name in _BLOCK_VECTORS])

    def run(pixels: Pixels) -> list[mx.array]:
        rows, columns = (side // c.patch_side for side in pixels.shape[:2])
        turn = turns(rows, columns, c.width // c.heads)
        x, _ = tower.blocks(tower.embedded(pixels), turn)
        cells = _unfolded(norm(x), rows, c.merge)
        return [mx.concatenate([outer(exact_gelu(inner(cells))), learnt])]

    return run


# In the order of engine/vision/paired_rows.py.
_BLOCK_VECTORS = (
    "v.token_embd.img_start",
    "v.token_embd.img_pad",
    "v.image_newline",
    "v.token_embd.img_end",
)


def _unfolded(x: mx.array, rows: int, merge: int) -> mx.array:
    """[rows * columns, width] to [vectors, width * merge * merge], for each number of a patch those
    of its neighbours; patches beyond the edge are zeros."""
    columns, width = x.shape[0] // rows, x.shape[1]
    grid = x.reshape(rows, columns, width)
    grid = mx.pad(grid, [(0, -rows % merge), (0, -columns % merge), (0, 0)])
    cells = squares_of(grid.reshape(-1, width), grid.shape[0], merge)
    return cells.swapaxes(1, 2).reshape(cells.shape[0], -1)


def _qwen_merge(
    parts: Parts, norm: str, first: str, second: str, norm_first: bool
) -> Callable[[mx.array], mx.array]:
    """[V, 4, width] to [V, text width]; the norm is of each patch, or of the four together."""
    c = parts.config
    joined = c.merge**2 * c.width
    normed = parts.norm(norm, c.width if norm_first else joined)
    inner = parts.loader.matrix(first, joined, joined)
    outer = parts.loader.matrix(second, c.text_width, joined)

    def merge(cells: mx.array) -> mx.array:
        flat = (cells.shape[0], joined)
        x = normed(cells).reshape(flat) if norm_first else normed(cells.reshape(flat))
        return outer(exact_gelu(inner(x)))

    return merge


_SQUARES: dict[Projector, Callable[[Tower], RunSquare]] = {
    "idefics3": _idefics3,
    "gemma3": _gemma3,
    "qwen2vl_merger": _qwen2vl,
    "qwen2.5vl_merger": _qwen2vl,
    "qwen3vl_merger": _qwen3vl,
    "deepseek4v": _deepseek4v,
}


# -- qwen's positions ----------------------------------------------------------------------------


def resized_positions(positions: mx.array, rows: int, columns: int) -> mx.array:
    """Learnt positions [side * side, width] at rows x columns points that span the same square,
    bilinear: [rows * columns, width]."""
    side = round(positions.shape[0] ** 0.5)
    low_y, high_y, part_y = _between(side, rows)
    low_x, high_x, part_x = _between(side, columns)
    grid = positions.reshape(side, side, -1)
    parts = []
    for at_y, weight_y in ((low_y, 1 - part_y), (high_y, part_y)):
        for at_x, weight_x in ((low_x, 1 - part_x), (high_x, part_x)):
            weights = mx.array((weight_y[:, None] * weight_x).astype(np.float32))
            parts.append(grid[mx.array(at_y)][:, mx.array(at_x)] * weights[..., None])
    return (parts[0] + parts[1] + parts[2] + parts[3]).reshape(rows * columns, -1)


def _between(
    side: int, count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """For `count` points spread over 0 .. side - 1: the whole numbers below and above, and how
    far each is from the one below."""
    points = np.linspace(0, side - 1, count, dtype=np.float32).astype(np.float64)
    low = points.astype(np.int64)
    return low, np.minimum(low + 1, side - 1), points - low


def turns(rows: int, columns: int, head_size: int) -> Turn:
    """Cosines and sines [T, head_size / 2]: the first half of the pairs turns with the patch's
    row, the second with its column."""
    quarter = head_size // 4
    frequencies = ROPE_BASE ** -(np.arange(quarter) / quarter)
    down, right = np.divmod(np.arange(rows * columns), columns)
    angles = np.concatenate([down[:, None] * frequencies, right[:, None] * frequencies], axis=1)
    return mx.array(np.cos(angles).astype(np.float32)), mx.array(np.sin(angles).astype(np.float32))
