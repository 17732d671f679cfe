"""From the tensors of a GGUF to arrays of the device, one tensor at a time.

A Weight is only a name in a mapped file until it is asked for a form. Each form is made by
itself, so loading peaks at one tensor over what is kept. The affine form of MLX
(w = scale * q + bias, groups of 32) holds Q8_0, Q4_0 and Q4_1 exactly while scales and biases
are float32: a scale has 11 significant bits, q at most 8, their product fits into 24.
"""

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from gguf.constants import GGMLQuantizationType

from ds4tui.engine.gguf import TILE_ELEMENTS, GGUFFile
from ds4tui.engine.gguf_cursor import shown
from ds4tui.engine.gguf_format import TensorInfo
from ds4tui.errors import GGUFError
from ds4tui.kernels.linear import QuantisedMatrix

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Form = Literal["dense", "quantised"]

GROUP = 32  # elements under one scale: the block of Q4_0, Q4_1 and Q8_0, and MLX's smallest


@dataclass(frozen=True, slots=True)
class _Repack:
    """How the blocks of one GGUF type become groups of MLX's affine form.

    values: the bytes of the blocks' values [n, ..] to MLX's packing [n, GROUP * bits / 8];
    scales: the blocks [n, bytes] to scales and biases, float32 [n] each.
    """

    bits: int
    values_at: int
    values: Callable[[Bytes], Bytes]
    scales: Callable[[Bytes], tuple[Floats, Floats]]


def _half(blocks: Bytes, at: int) -> Floats:
    """The float16 at byte `at` of each block, as float32 [n]."""
    halves: npt.NDArray[np.float16] = np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2")
    return halves[:, 0].astype(np.float32)


def _nibbles_in_order(values: Bytes) -> Bytes:
    """Byte i of a GGUF block holds elements i (low half) and i + 16 (high half); byte i of
    MLX's packing holds elements 2 i and 2 i + 1."""
    low, high = values & np.uint8(0x0F), values >> np.uint8(4)
    elements = np.concatenate([low, high], axis=1)
    packed: Bytes = elements[:, 0::2] | elements[:, 1::2] << np.uint8(4)
    return packed


def _signed_to_offset(values: Bytes) -> Bytes:
    return values ^ np.uint8(0x80)  # int8 q as uint8 q + 128


def _scales_q4_0(blocks: Bytes) -> tuple[Floats, Floats]:
    scale = _half(blocks, 0)
    return scale, -8 * scale


def _scales_q4_1(blocks: Bytes) -> tuple[Floats, Floats]:
    return _half(blocks, 0), _half(blocks, 2)


def _scales_q8_0(blocks: Bytes) -> tuple[Floats, Floats]:
    scale = _half(blocks, 0)
    return scale, -128 * scale


_REPACKS = {
    GGMLQuantizationType.Q4_0: _Repack(4, 2, _nibbles_in_order, _scales_q4_0),
    GGMLQuantizationType.Q4_1: _Repack(4, 4, _nibbles_in_order, _scales_q4_1),
    GGMLQuantizationType.Q8_0: _Repack(8, 2, _signed_to_offset, _scales_q8_0),
}


class Weight:
    """A tensor of a file. Making a form of it reads the map and keeps nothing here."""

    def __init__(self, gguf: GGUFFile, name: str) -> None:
        """Raises GGUFError if the file has no such tensor."""
        self._gguf = gguf
        self.info: TensorInfo = gguf.tensor(name)

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows first: a matrix of y = W x is (out, in)."""
        return self.info.shape

    @property
    def ggml_type(self) -> GGMLQuantizationType:
        return self.info.ggml_type

    def host_rows(self, rows: slice) -> Floats:
        """Some rows of a matrix (the first axis of two or more) as float32, a new array."""
        return self._gguf.dequantised(self.name, rows)

    def dense(self, dtype: mx.Dtype = mx.float32) -> mx.array:
        """The values as an array of the device, of the tensor's shape, rounded to `dtype`."""
        same = _SAME_BITS.get((self.ggml_type, dtype))
        if same is not None:
            raw = self._gguf.raw(self.name).view(same)
            result = mx.array(raw)
            if dtype == mx.bfloat16:  # NumPy has none: it carried the bits as uint16
                result = result.view(mx.bfloat16)
        elif len(self.shape) < 2:
            result = mx.array(self._gguf.dequantised(self.name)).astype(dtype)
        else:
            result = mx.concatenate(self._tiles(dtype))
        mx.eval(result)
        return result

    def _tiles(self, dtype: mx.Dtype) -> list[mx.array]:
        # A tile at a time: the float32 of a whole matrix may be twice what is kept of it.
        rows = self.shape[0]
        step = max(1, TILE_ELEMENTS // math.prod(self.shape[1:]))
        tiles = []
        for start in range(0, rows, step):
            tile = mx.array(self.host_rows(slice(start, start + step))).astype(dtype)
            mx.eval(tile)
            tiles.append(tile)
        return tiles

    def quantised(self) -> QuantisedMatrix | None:
        """The matrix (or the matrices along a first axis) in MLX's affine form, float32 scales
        and biases: equal to the file's values bit by bit (but for the sign of zeros).

        None where there is no exact form: other types, other than two or three axes, and scales
        that are not finite (infinity less infinity is no number).
        """
        repack = _REPACKS.get(self.ggml_type)
        if repack is None or len(self.shape) not in (2, 3):
            return None
        *rows, columns = self.shape
        blocks = self._gguf.raw(self.name).reshape(math.prod(rows) * (columns // GROUP), -1)
        packed = np.empty((len(blocks), GROUP * repack.bits // 8), np.uint8)
        scales, biases = np.empty(len(blocks), np.float32), np.empty(len(blocks), np.float32)
        for start in range(0, len(blocks), TILE_ELEMENTS // GROUP):
            part = slice(start, start + TILE_ELEMENTS // GROUP)
            packed[part] = repack.values(blocks[part, repack.values_at :])
            scales[part], biases[part] = repack.scales(blocks[part])
        if not (np.isfinite(scales).all() and np.isfinite(biases).all()):
            return None
        return QuantisedMatrix(
            packed=mx.array(packed.reshape(*rows, -1).view(np.uint32)),
            scales=mx.array(scales.reshape(*rows, -1)),
            biases=mx.array(biases.reshape(*rows, -1)),
            group_size=GROUP,
            bits=repack.bits,
        )


# Where the file's bits are the wanted ones, and the NumPy type that carries them.
_SAME_BITS: dict[tuple[GGMLQuantizationType, mx.Dtype], np.dtype[Any]] = {
    (GGMLQuantizationType.F32, mx.float32): np.dtype("<f4"),
    (GGMLQuantizationType.F16, mx.float16): np.dtype("<f2"),
    (GGMLQuantizationType.BF16, mx.bfloat16): np.dtype("<u2"),
}


class WeightLoader:
    """Hands out the tensors of a file by name and expected shape, and remembers which."""

    def __init__(self, gguf: GGUFFile) -> None:
        self._gguf = gguf
        self._taken: set[str] = set()

    def take(self, name: str, shape: tuple[int, ...]) -> Weight:
        """Raises GGUFError, naming the tensor, if it is missing (with the most similar names
        there are) or of another shape (with both). A tensor may be taken more than once."""
        weight = self.take_optional(name, shape)
        if weight is None:
            raise GGUFError(
                f"{self._gguf.path.name}: the tensor {shown(name)} is missing{self._near(name)}.",
                "Get another conversion of this model.",
            )
        return weight

    def take_optional(self, name: str, shape: tuple[int, ...]) -> Weight | None:
        """As `take`, but None if there is no such tensor."""
        info = self._gguf.tensors.get(name)
        if info is None:
            return None
        if info.shape != tuple(shape):
            raise GGUFError(
                f"{self._gguf.path.name}: the tensor {shown(name)} has the shape "
                f"{list(info.shape)}; {list(shape)} was expected.",
                "Get another conversion of this model.",
            )
        self._taken.add(name)
        return Weight(self._gguf, name)

    def unused(self) -> list[str]:
        """Names of tensors nobody took, in the order of the file."""
        return [name for name in self._gguf.tensors if name not in self._taken]

    def required_bytes(self, form: Form, dtype: mx.Dtype = mx.float32) -> int:
        """Memory that loading the whole file takes at its peak: all tensors in `form`, and the
        largest of them once more. `dtype` is of the dense ones, which in "quantised" are those
        that have no exact quantised form."""
        held = [_held_bytes(info, form, dtype) for info in self._gguf.tensors.values()]
        return sum(held) + max(held, default=0)

    def _near(self, name: str) -> str:
        near = difflib.get_close_matches(name, self._gguf.tensors, n=3, cutoff=0.7)
        return f" (there is {', '.join(shown(n) for n in near)})" if near else ""


def _held_bytes(info: TensorInfo, form: Form, dtype: mx.Dtype) -> int:
    elements = math.prod(info.shape)
    repack = _REPACKS.get(info.ggml_type)
    if form == "quantised" and repack is not None and len(info.shape) in (2, 3):
        return elements // GROUP * (GROUP * repack.bits // 8 + 2 * mx.float32.size)
    return elements * dtype.size
