"""From the tensors of a GGUF to arrays of the device, one tensor at a time.

A Weight is only a name in a mapped file until it is asked for a form. Each form is made by
itself, so loading peaks at one tensor over what is kept.
"""

import difflib
import math
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from gguf.constants import GGMLQuantizationType

from ds4tui.engine.gguf import TILE_ELEMENTS, GGUFFile
from ds4tui.engine.gguf_cursor import shown
from ds4tui.engine.gguf_format import TensorInfo
from ds4tui.engine.repack import NATIVE_FORMS, Groups, repacked
from ds4tui.engine.stopping import check_stopped
from ds4tui.errors import GGUFError
from ds4tui.kernels.cpu.threads import cpus
from ds4tui.kernels.linear import QuantisedMatrix
from ds4tui.kernels.policy import Scales

# Each takes some tiles of memory; more than this many do not unpack faster than memory writes.
THREADS_MAX = 8

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


class Weight:
    """A tensor of a file, or of several matrices along a first axis the one `at` a place, or of a
    matrix its rows in so many `groups`, a matrix each. Making a form of it reads the map and keeps
    nothing here."""

    def __init__(
        self, gguf: GGUFFile, name: str, at: int | None = None, groups: int | None = None
    ) -> None:
        """Raises GGUFError if the file has no such tensor."""
        self._gguf, self._at, self._groups = gguf, at, groups
        self.info: TensorInfo = gguf.tensor(name)

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows first: a matrix of y = W x is (out, in)."""
        if self._groups is not None:
            rows, *columns = self.info.shape
            return self._groups, rows // self._groups, *columns
        return self.info.shape if self._at is None else self.info.shape[1:]

    @property
    def ggml_type(self) -> GGMLQuantizationType:
        return self.info.ggml_type

    def blocks(self) -> Bytes:
        """The file's bytes: a read-only view of the map, [.., out, bytes of a row]."""
        raw = self._gguf.raw(self.name)
        if self._groups is not None:
            return raw.reshape(*self.shape[:2], -1)
        return raw if self._at is None else raw[self._at]

    def host_rows(self, rows: slice) -> Floats:
        """Some rows of a matrix (the first axis of two or more) as float32, a new array."""
        if self._groups is None:
            return self._gguf.dequantised(self.name, rows, self._at)
        _, each, columns = self.shape
        start, stop, _ = rows.indices(self._groups)
        held = self._gguf.dequantised(self.name, slice(start * each, stop * each))
        return held.reshape(-1, each, columns)

    def dense(self, dtype: mx.Dtype = mx.float32) -> mx.array:
        """The values as an array of the device, of the tensor's shape, rounded to `dtype`."""
        same = _SAME_BITS.get((self.ggml_type, dtype))
        if same is not None:
            raw = self.blocks().view(same)
            result = mx.array(raw)
            if dtype == mx.bfloat16:  # NumPy has none: it carried the bits as uint16
                result = result.view(mx.bfloat16)
        elif len(self.shape) < 2:
            result = mx.array(self._gguf.dequantised(self.name, at=self._at)).astype(dtype)
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

    def groups(self, threads: int = 1) -> Groups | None:
        """The blocks as groups of MLX's quantised forms, in NumPy; None where there is no exact
        form: other types, other than two or three axes, and scales that the form cannot hold
        (repack.py)."""
        if self.ggml_type not in NATIVE_FORMS or len(self.shape) not in (2, 3):
            return None
        return repacked(self.blocks(), self.ggml_type, TILE_ELEMENTS, threads)

    def quantised(
        self, scales: Scales = "exact", groups: Groups | None = None
    ) -> QuantisedMatrix | None:
        """The matrix (or the matrices along a first axis) in one of MLX's quantised forms: with
        exact scales (float32) equal to the file's values bit by bit, but for the sign of zeros.
        With float16 they are rounded, unless one would leave its range. `groups` are this
        weight's own, if they were made before. None where there are none.
        """
        groups = groups or self.groups(threads=min(THREADS_MAX, cpus()))
        if groups is None:
            return None
        native, rows = NATIVE_FORMS[self.ggml_type], self.shape[:-1]
        matrix = QuantisedMatrix(
            packed=mx.array(groups.values.reshape(*rows, -1).view(np.uint32)),
            scales=mx.array(groups.scales.reshape(*rows, -1)),
            biases=None if groups.biases is None else mx.array(groups.biases.reshape(*rows, -1)),
            group_size=native.group_size,
            bits=native.bits,
            mode=native.mode,
        )
        return matrix if scales == "exact" else with_short_scales(matrix)


def with_short_scales(matrix: QuantisedMatrix) -> QuantisedMatrix:
    """`matrix` with scales and biases rounded to float16, if none of them leaves its range."""
    if matrix.biases is None:
        return matrix
    scales, biases = matrix.scales.astype(mx.float16), matrix.biases.astype(mx.float16)
    if not (mx.isfinite(scales).all() & mx.isfinite(biases).all()).item():
        return matrix
    return replace(matrix, scales=scales, biases=biases)


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
        """As `take`, but None if there is no such tensor. Raises EngineClosed if the load was
        given up."""
        check_stopped()
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

    def _near(self, name: str) -> str:
        near = difflib.get_close_matches(name, self._gguf.tensors, n=3, cutoff=0.7)
        return f" (there is {', '.join(shown(n) for n in near)})" if near else ""
