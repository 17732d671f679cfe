"""The native twin of a matrix product: blocks of the file, where the file is mapped."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from gguf.constants import GGMLQuantizationType

from ds4tui.kernels.cpu.linear import host_view
from ds4tui.kernels.cpu.native.formats import BLOCK_TYPES
from ds4tui.kernels.cpu.native.library import Kernels, MatrixStruct
from ds4tui.kernels.linear import Linear
from ds4tui.kernels.stack import Stack

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


class BlockSource(Protocol):
    """A tensor of a file (engine/layers.py)."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def ggml_type(self) -> GGMLQuantizationType: ...
    def blocks(self) -> Bytes:
        """The file's bytes, a view [.., out, bytes of a row]."""

    def host_rows(self, rows: slice) -> Floats: ...


class NativeLinear(Linear):
    """Holds a view of the mapped file, so its memory is the system's to read and to drop.
    Where a type has no kernel, its values are held as float32 instead."""

    def __init__(self, kernels: Kernels, source: BlockSource) -> None:
        blocks, kind, self.form = _held(kernels, source)
        super().__init__((source.shape[0], source.shape[1]), blocks.nbytes)
        self._kernels = kernels
        self.struct = _struct(blocks, kind, self.shape)
        self._kept: list[npt.NDArray[Any]] = [blocks]  # what the struct points to

    def __call__(self, x: mx.array) -> mx.array:
        return mx.array(self.apply(host_view(x))).astype(x.dtype)

    def apply(self, x: Floats) -> Floats:
        """x float32 [T, in] to a new float32 [T, out]."""
        return self._kernels.product(self.struct, x)

    def rows(self, ids: npt.NDArray[np.int64]) -> mx.array:
        return mx.array(self._kernels.rows(self.struct, ids))

    def add_bias(self, bias: mx.array) -> None:
        self.struct.bias = self._keep(host_view(bias).copy())

    def reorder(self, order: npt.NDArray[np.int64]) -> None:
        """The rows stay where they are; the kernels look up which is which."""
        if self.struct.order:
            raise ValueError("The rows have an order already.")
        self.struct.order = self._keep(np.array(order, np.int64))

    def _keep(self, array: npt.NDArray[Any]) -> int:
        self._kept.append(array)
        return int(array.ctypes.data)


class NativeStack(Stack):
    """The same for the matrices of experts, one behind the other."""

    def __init__(self, kernels: Kernels, source: BlockSource, reads_ahead: bool = True) -> None:
        blocks, kind, self.form = _held(kernels, source, reads_ahead)
        count, out, columns = source.shape
        super().__init__((count, out, columns), blocks.nbytes)
        self._kernels, self._blocks = kernels, blocks
        self.matrices = [_struct(matrix, kind, (out, columns)) for matrix in blocks]
        self.expert_bytes = blocks.strides[0]

    def products(self) -> list[Callable[[Floats], Floats]]:
        """With each matrix, as NativeLinear.apply."""
        return [partial(self._kernels.product, matrix) for matrix in self.matrices]

    def __call__(self, x: mx.array, experts: mx.array) -> mx.array:
        rows, chosen = host_view(x), np.asarray(experts)
        y = np.empty((len(rows), self.shape[1]), np.float32)
        for expert in np.unique(chosen):
            y[chosen == expert] = self._kernels.product(
                self.matrices[expert], rows[chosen == expert]
            )
        return mx.array(y).astype(x.dtype)


def struct_of(linear: Linear) -> MatrixStruct:
    if not isinstance(linear, NativeLinear):
        raise TypeError(f"A matrix is held as {linear.form}, not in blocks of the file.")
    return linear.struct


def native_stack(stack: Stack) -> NativeStack:
    if not isinstance(stack, NativeStack):
        raise TypeError(f"Matrices are held as {stack.form}, not in blocks of the file.")
    return stack


def _held(
    kernels: Kernels, source: BlockSource, reads_ahead: bool = True
) -> tuple[Bytes, GGMLQuantizationType, str]:
    """The bytes of a tensor, their type, and both in words. With `reads_ahead` the system is
    asked for the whole of it now."""
    kind = source.ggml_type
    if kind in BLOCK_TYPES:
        blocks = source.blocks()
        if reads_ahead:
            kernels.will_need(blocks)
        return blocks, kind, f"{kind.name} blocks of the file"
    values = source.host_rows(slice(0, source.shape[0]))
    return values.view(np.uint8), GGMLQuantizationType.F32, f"float32, read from {kind.name}"


def _struct(blocks: Bytes, kind: GGMLQuantizationType, shape: tuple[int, int]) -> MatrixStruct:
    return MatrixStruct(
        data=blocks.ctypes.data,
        row_bytes=blocks.strides[0],
        type=int(kind),
        out=shape[0],
        columns=shape[1],
    )
