"""One matrix product, y = x Wᵀ + b, and the forms a matrix can be held in.

`DenseLinear` and `QuantisedLinear` are the plain MLX reference; `kernels.cpu.linear.HostLinear`
is the CPU twin. A matrix belongs to its Linear and nobody else: where the input embedding and
the output share one (tied), they share the Linear.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TypedDict

import mlx.core as mx
import numpy as np


class QuantisedForm(TypedDict):
    """What MLX's quantised operations ask about a matrix."""

    group_size: int
    bits: int
    mode: str


@dataclass(frozen=True, slots=True)
class QuantisedMatrix:
    """A matrix in one of MLX's quantised forms, over groups along the columns.

    packed: uint32 [.., out, in * bits / 32]. In mode affine w = scale * q + bias, with scales
    and biases [.., out, in / group_size]; in mxfp4 and nvfp4 there are no biases and the scales
    are one byte each.
    """

    packed: mx.array
    scales: mx.array
    biases: mx.array | None
    group_size: int
    bits: int
    mode: str = "affine"

    @property
    def shape(self) -> tuple[int, ...]:
        return *self.scales.shape[:-1], self.scales.shape[-1] * self.group_size

    @property
    def nbytes(self) -> int:
        return sum(int(part.nbytes) for part in self._parts)

    @property
    def form(self) -> QuantisedForm:
        return {"group_size": self.group_size, "bits": self.bits, "mode": self.mode}

    @property
    def _parts(self) -> list[mx.array]:
        return [part for part in (self.packed, self.scales, self.biases) if part is not None]

    def held_for(self, dtype: mx.Dtype) -> "QuantisedMatrix":
        """Evaluated, with scales and biases in `dtype` if they all keep their values in it, else
        in float32: a product is then made in float32."""
        held = self
        if self.biases is not None:
            kept = dtype if _fits(self.scales, dtype) and _fits(self.biases, dtype) else mx.float32
            held = replace(self, scales=self.scales.astype(kept), biases=self.biases.astype(kept))
        mx.eval(held._parts)
        return held

    def rows(self, at: mx.array) -> "QuantisedMatrix":
        biases = None if self.biases is None else self.biases[at]
        return replace(self, packed=self.packed[at], scales=self.scales[at], biases=biases)

    def values(self, dtype: mx.Dtype = mx.float32) -> mx.array:
        parts = (self.packed, self.scales, self.biases)
        if self.biases is None:
            return mx.dequantize(*parts, **self.form, dtype=dtype)
        return mx.dequantize(*parts, **self.form).astype(dtype)


def _fits(values: mx.array, dtype: mx.Dtype) -> bool:
    if values.dtype == dtype:
        return True
    return bool(mx.array_equal(values.astype(dtype).astype(values.dtype), values).item())


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
    """The reference over MLX's own quantised product; rows are in `dtype`, and so are scales
    and biases where that is exact."""

    def __init__(self, matrix: QuantisedMatrix, dtype: mx.Dtype) -> None:
        self._matrix, self._dtype = matrix.held_for(dtype), dtype
        out, columns = matrix.shape
        super().__init__((out, columns), self._matrix.nbytes)
        self.form = quantised_form(self._matrix)
        self._bias: mx.array | None = None

    def __call__(self, x: mx.array) -> mx.array:
        m = self._matrix
        y = mx.quantized_matmul(x, m.packed, m.scales, m.biases, transpose=True, **m.form)
        return (y if self._bias is None else y + self._bias).astype(x.dtype)

    def rows(self, ids: np.ndarray) -> mx.array:
        return self._matrix.rows(mx.array(np.ascontiguousarray(ids))).values(self._dtype)

    def add_bias(self, bias: mx.array) -> None:
        self._bias = bias.astype(self._dtype)

    def reorder(self, order: np.ndarray) -> None:
        self._matrix = self._matrix.rows(mx.array(order)).held_for(self._dtype)


def array_form(weight: mx.array) -> str:
    return f"{str(weight.dtype).removeprefix('mlx.core.')} in MLX"


def quantised_form(matrix: QuantisedMatrix) -> str:
    """ "4-bit groups of 32, scales float16", "mxfp4 groups of 32"."""
    if matrix.biases is None:
        return f"{matrix.mode} groups of {matrix.group_size}"
    scales = str(matrix.scales.dtype).removeprefix("mlx.core.")
    return f"{matrix.bits}-bit groups of {matrix.group_size}, scales {scales}"
