"""An image encoder as the files describe it: patches, blocks, and what they share.

x = patches · kernel (+ positions)
x = x + Wo · attention(norm(x))           every patch sees every other of its square, or window
x = x + W2 · a(W1 · norm(x))              or W2 · (a(W0 · norm(x)) * (W1 · norm(x)))

Matrices are held and multiplied as those of the text model are (kernels/choice.py).
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from gguf.constants import GGMLQuantizationType

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.layers import LayerLoader
from ds4tui.engine.vision.config import VisionConfig
from ds4tui.engine.vision.operations import Operations
from ds4tui.engine.vision.preprocess import Pixels, normalised
from ds4tui.engine.vision.windows import Windows
from ds4tui.errors import GGUFError
from ds4tui.kernels.choice import ComputePath
from ds4tui.kernels.linear import Linear

Floats = npt.NDArray[np.float32]
Turn = tuple[mx.array, mx.array]  # cosines and sines [T, J] of pairs (j, j + J) of a head


@dataclass(frozen=True, slots=True)
class Norm:
    """Over the last axis: LayerNorm, or RMSNorm where there is no bias."""

    weight: mx.array
    bias: mx.array | None
    epsilon: float

    def __call__(self, x: mx.array) -> mx.array:
        if self.bias is None:
            return mx.fast.rms_norm(x, self.weight, self.epsilon)
        return mx.fast.layer_norm(x, self.weight, self.bias, self.epsilon)


@dataclass(frozen=True, slots=True)
class BlockParts:
    ln1: Norm
    qkv: tuple[Linear, ...]  # q, k and v, or one for all three
    output: Linear
    ln2: Norm
    up: Linear
    down: Linear
    gate: Linear | None = None


class Tower:
    """Patches and blocks. `parts` hands out what projectors need of the same file."""

    def __init__(self, config: VisionConfig, gguf: GGUFFile, path: ComputePath) -> None:
        """Loads all weights but the projector's. Raises GGUFError for missing or misshapen ones."""
        self.config = config
        self.parts = Parts(config, gguf, path)
        self._patch = self.parts.patch()
        self._blocks = [self.parts.block(i) for i in range(config.blocks)]
        self._operations = Operations.of(path, config.activation)

    def embedded(self, pixels: Pixels) -> mx.array:
        """uint8 [height, width, 3] to [T, width], a row of patches after the other."""
        patches = patches_of(normalised(pixels, self.config), self.config.patch_side)
        return self._patch(mx.array(patches))

    def blocks(
        self, x: mx.array, turn: Turn | None = None, windows: Windows | None = None
    ) -> tuple[mx.array, list[mx.array]]:
        """x [T, width] of one square behind all blocks, and behind those that are tapped. With
        `windows` rows, and those of `turn`, lie in their order."""
        tapped = []
        for i, block in enumerate(self._blocks):
            whole = (i + 1) % self.config.whole_every == 0
            x = x + self._attention(block, block.ln1(x), turn, None if whole else windows)
            x = x + self._feed_forward(block, block.ln2(x))
            if i in self.config.tapped:
                tapped.append(x)
        return x, tapped

    def _feed_forward(self, block: BlockParts, n: mx.array) -> mx.array:
        if block.gate is None:
            return block.down(self._operations.activate(block.up(n)))
        return block.down(self._operations.activate(block.gate(n)) * block.up(n))

    def _attention(
        self, block: BlockParts, n: mx.array, turn: Turn | None, windows: Windows | None
    ) -> mx.array:
        joined = [linear(n) for linear in block.qkv]
        q, k, v = mx.split(joined[0], 3, axis=-1) if len(joined) == 1 else joined
        heads = partial(_heads, heads=self.config.heads)
        q, k, v = heads(q), heads(k), heads(v)
        if turn is not None:
            q, k = _turned(q, *turn), _turned(k, *turn)
        scale = 1 / math.sqrt(self.config.width // self.config.heads)
        if windows is None:
            mixed = self._operations.attend(q, k, v, scale)
        else:
            mixed = windows.each(self._operations.attend, q, k, v, scale)
        return block.output(mixed.swapaxes(0, 1).reshape(n.shape[0], -1))


def patches_of(values: Floats, side: int) -> Floats:
    """[height, width, 3] to [T, 3 * side * side]: colour, y, x, as a kernel's values lie."""
    height, width, colours = values.shape
    grid = values.reshape(height // side, side, width // side, side, colours)
    return np.ascontiguousarray(grid.transpose(0, 2, 4, 1, 3)).reshape(-1, colours * side * side)


def exact_gelu(x: mx.array) -> mx.array:
    return 0.5 * x * (1 + mx.erf(x / math.sqrt(2)))


def squares_of(x: mx.array, rows: int, merge: int) -> mx.array:
    """[rows * columns, width] to [vectors, merge * merge, width]: the patches of each vector, by
    row and column."""
    columns, width = x.shape[0] // rows, x.shape[1]
    cells = x.reshape(rows // merge, merge, columns // merge, merge, width)
    return cells.transpose(0, 2, 1, 3, 4).reshape(-1, merge * merge, width)


def _heads(x: mx.array, heads: int) -> mx.array:
    """[T, H * D] to [H, T, D]."""
    return x.reshape(x.shape[0], heads, -1).swapaxes(0, 1)


def _turned(x: mx.array, cosines: mx.array, sines: mx.array) -> mx.array:
    first, second = mx.split(x, 2, axis=-1)
    both = [first * cosines - second * sines, second * cosines + first * sines]
    return mx.concatenate(both, axis=-1)


# -- parts of a file -----------------------------------------------------------------------------


class Parts:
    """Hands out the tensors of an mmproj, checked against its keys."""

    def __init__(self, config: VisionConfig, gguf: GGUFFile, path: ComputePath) -> None:
        self.loader, self.config = LayerLoader(gguf, path), config
        self._gguf, self._path = gguf, path
        self._own_bytes = 0  # of matrices that do not lie in the file as they are held

    @property
    def nbytes(self) -> int:
        return self.loader.nbytes + self._own_bytes

    def norm(self, name: str, size: int) -> Norm:
        load = self.loader.vector
        bias = None if self.config.has_rms_norms else load(f"{name}.bias", size)
        return Norm(load(f"{name}.weight", size), bias, self.config.norm_epsilon)

    def positions(self) -> mx.array:
        """Learnt ones [grid * grid, width]."""
        c = self.config
        return self.loader.table("v.position_embd.weight", c.grid**2, c.width)

    def block(self, i: int) -> BlockParts:
        c, at, matrix = self.config, f"v.blk.{i}.", self.loader.matrix
        if self.loader.has(at + "attn_qkv.weight"):
            qkv: tuple[Linear, ...] = (matrix(at + "attn_qkv", 3 * c.width, c.width),)
        else:
            qkv = tuple(matrix(f"{at}attn_{part}", c.width, c.width) for part in "qkv")
        up, down = self._feed_forward_names(at)
        return BlockParts(
            ln1=self.norm(at + "ln1", c.width),
            qkv=qkv,
            output=matrix(at + "attn_out", c.width, c.width),
            ln2=self.norm(at + "ln2", c.width),
            up=matrix(up, c.inner, c.width),
            down=matrix(down, c.width, c.inner),
            gate=matrix(at + "ffn_gate", c.inner, c.width) if c.has_rms_norms else None,
        )

    def _feed_forward_names(self, at: str) -> tuple[str, str]:
        """Of the first and the second product. Files of early converters have them swapped."""
        names, c = (at + "ffn_up", at + "ffn_down"), self.config
        first = self._gguf.tensor(names[0] + ".weight").shape
        swapped = c.inner != c.width and first == (c.width, c.inner)
        return names[::-1] if swapped else names

    def patch(self) -> Linear:
        """The convolution as a product. Of a kernel over two frames both halves see a still
        image, so they are summed."""
        c, name = self.config, "v.patch_embd.weight"
        shape = (c.width, 3, c.patch_side, c.patch_side)
        kernel = self.values(name, shape)
        if self.loader.has(name + ".1"):
            kernel = kernel + self.values(name + ".1", shape)
        linear = self.linear(kernel.reshape(c.width, -1))
        if self.loader.has("v.patch_embd.bias"):
            linear.add_bias(self.loader.vector("v.patch_embd.bias", c.width))
        return linear

    def values(self, name: str, shape: tuple[int, ...]) -> Floats:
        """A whole tensor as float32. Raises GGUFError if it is missing or of another shape."""
        held = self._gguf.tensor(name).shape
        if held != shape:
            raise GGUFError(
                f"{self._gguf.path.name}: the tensor {name} has the shape {list(held)}; "
                f"{list(shape)} was expected.",
                "Get another conversion of this mmproj.",
            )
        return self._gguf.dequantised(name)

    def linear(self, values: Floats) -> Linear:
        """A product with a matrix [out, in] that does not lie in the file as it is."""
        linear = self._path.linear(MatrixOfValues(np.ascontiguousarray(values)))
        self._own_bytes += linear.nbytes
        return linear


@dataclass(frozen=True, slots=True)
class MatrixOfValues:
    """A kernels.choice.WeightSource of float32 values."""

    values: Floats
    ggml_type = GGMLQuantizationType.F32

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def blocks(self) -> npt.NDArray[np.uint8]:
        return self.values.view(np.uint8)

    def host_rows(self, rows: slice) -> Floats:
        return self.values[rows]

    def dense(self, dtype: mx.Dtype = mx.float32) -> mx.array:
        return mx.array(self.values).astype(dtype)

    def quantised(self) -> Any:
        return None
