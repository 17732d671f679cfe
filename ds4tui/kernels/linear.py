"""One matrix product, y = x Wᵀ + b, and the forms a matrix can be held in.

`DenseLinear` and `QuantisedLinear` are the plain MLX reference; `kernels.cpu.linear.HostLinear`
is the CPU twin. A matrix belongs to its Linear and nobody else: where the input embedding and
the output share one (tied), they share the Linear.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import mlx.core as mx
import numpy as np


@dataclass(frozen=True, slots=True)
class QuantisedMatrix:
    """A matrix in MLX's affine form: w = scale * q + bias over groups along the columns.

    packed: uint32 [.., out, in * bits / 32]; scales, biases: [.., out, in / group_size].
    """

    packed: mx.array
    scales: mx.array
    biases: mx.array
    group_size: int
    bits: int

    @property
    def shape(self) -> tuple[int, ...]:
        return *self.scales.shape[:-1], self.scales.shape[-1] * self.group_size

    @property
    def nbytes(self) -> int:
        return sum(int(part.nbytes) for part in (self.packed, self.scales, self.biases))


class Linear(ABC):
    """y = x Wᵀ + b with W of `shape` (out, in); the rows of W can be read as embeddings."""

    form: str  # how the matrix is held, in words: "float32 in NumPy", "4-bit groups of 32"

    def __init__(self, shape: tuple[int, int], nbytes: int) -> None:
        self.shape = shape
        self.nbytes = nbytes  # of the matrix, without the bias

    @abstractmethod
    def __call__(self, x: mx.array) -> mx.array:
        """x [T, in] to [T, out], in the dtype of x."""

    @abstractmethod
    def rows(self, ids: np.ndarray) -> mx.array:
        """Rows `ids` (int64 [T]) of the matrix as [T, in]: an embedding lookup."""

    @abstractmethod
    def add_bias(self, bias: mx.array) -> None:
        """Give the product a bias [out]."""

    @abstractmethod
    def reorder(self, order: np.ndarray) -> None:
        """Bring the rows of W to another order: row i becomes what was row order[i] (int64
        [out]). Before a bias is added."""


class DenseLinear(Linear):
    """The reference over a plain MLX matrix [out, in]."""

    def __init__(self, weight: mx.array) -> None:
        super().__init__((weight.shape[0], weight.shape[1]), int(weight.nbytes))
        self.form = array_form(weight)
        self._weight = weight
        self._bias: mx.array | None = None

    def __call__(self, x: mx.array) -> mx.array:
        y = x @ self._weight.T
        return y if self._bias is None else y + self._bias

    def rows(self, ids: np.ndarray) -> mx.array:
        return self._weight[mx.array(np.ascontiguousarray(ids))]

    def add_bias(self, bias: mx.array) -> None:
        self._bias = bias.astype(self._weight.dtype)

    def reorder(self, order: np.ndarray) -> None:
        self._weight = self._weight[mx.array(order)]
        mx.eval(self._weight)


class QuantisedLinear(Linear):
    """The reference over MLX's own quantised product; scales, biases and rows are in `dtype`."""

    def __init__(self, matrix: QuantisedMatrix, dtype: mx.Dtype) -> None:
        self._packed = matrix.packed
        # A GGUF's scales are float16, so that loses nothing, and a float16 product stays one.
        self._scales = matrix.scales.astype(dtype)
        self._offsets = matrix.biases.astype(dtype)
        mx.eval(self._packed, self._scales, self._offsets)
        parts = (self._packed, self._scales, self._offsets)
        out, columns = matrix.shape
        super().__init__((out, columns), sum(int(part.nbytes) for part in parts))
        self.form = quantised_form(matrix)
        self._group_size, self._bits = matrix.group_size, matrix.bits
        self._bias: mx.array | None = None

    def __call__(self, x: mx.array) -> mx.array:
        y = mx.quantized_matmul(
            x,
            self._packed,
            self._scales,
            self._offsets,
            transpose=True,
            group_size=self._group_size,
            bits=self._bits,
        )
        return y if self._bias is None else y + self._bias

    def rows(self, ids: np.ndarray) -> mx.array:
        at = mx.array(np.ascontiguousarray(ids))
        return mx.dequantize(
            self._packed[at],
            self._scales[at],
            self._offsets[at],
            group_size=self._group_size,
            bits=self._bits,
        )

    def add_bias(self, bias: mx.array) -> None:
        self._bias = bias.astype(self._scales.dtype)

    def reorder(self, order: np.ndarray) -> None:
        at = mx.array(order)
        self._packed, self._scales, self._offsets = (
            part[at] for part in (self._packed, self._scales, self._offsets)
        )
        mx.eval(self._packed, self._scales, self._offsets)


def array_form(weight: mx.array) -> str:
    return f"{str(weight.dtype).removeprefix('mlx.core.')} in MLX"


def quantised_form(matrix: QuantisedMatrix) -> str:
    return f"{matrix.bits}-bit groups of {matrix.group_size}"
