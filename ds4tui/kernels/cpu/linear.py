"""The CPU twin of a matrix product: a float32 matrix in NumPy, multiplied by NumPy's OpenBLAS.

MLX's bundled BLAS on Linux does 1 to 3 GFLOP/s, NumPy's about 150 at 128 rows. MLX arrays are
read in place through their buffer; results are copied once into a new MLX array.
"""

from collections.abc import Callable
from typing import Self, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.kernels.cpu.threads import workers
from ds4tui.kernels.linear import Linear

Floats = npt.NDArray[np.float32]

READ_ROWS = 1024  # rows transposed at a time while loading: what loading needs over the result


class HostLinear(Linear):
    """Holds Wᵀ [in, out]: one row times Wᵀ walks the matrix in memory order, which reads it
    about 1.7 times faster than W's dot products do, and OpenBLAS packs it with less work."""

    form = "float32 in NumPy"

    def __init__(self, transposed: Floats, bias: Floats | None = None) -> None:
        """Takes over `transposed`, float32 [in, out]."""
        super().__init__((transposed.shape[1], transposed.shape[0]), transposed.nbytes)
        self.transposed = transposed
        self.bias = bias

    @classmethod
    def read(cls, shape: tuple[int, int], rows: Callable[[slice], Floats]) -> Self:
        """The matrix of `shape` (out, in) whose rows `rows` hands out, a few at a time."""
        transposed = np.empty((shape[1], shape[0]), np.float32)
        for start in range(0, shape[0], READ_ROWS):
            part = slice(start, min(start + READ_ROWS, shape[0]))
            transposed[:, part] = rows(part).T
        return cls(transposed)

    @classmethod
    def side_by_side(cls, *parts: "HostLinear") -> Self:
        """One product for several that read the same rows: [y1 | y2 | ..]."""
        bias = None
        if any(part.bias is not None for part in parts):
            bias = np.concatenate([_bias_or_zeros(part) for part in parts])
        return cls(np.concatenate([part.transposed for part in parts], axis=1), bias)

    def __call__(self, x: mx.array) -> mx.array:
        rows, threads = host_view(x), workers()
        y = np.empty((len(rows), self.shape[0]), np.float32)

        def multiply(tile: slice) -> None:
            y[tile] = self.apply(rows[tile])

        threads.each(threads.tiles(len(rows)), multiply)
        return mx.array(y).astype(x.dtype)

    def apply(self, x: Floats) -> Floats:
        """x float32 [T, in] to a new float32 [T, out], on the caller's thread."""
        y: Floats = x @ self.transposed
        if self.bias is not None:
            y += self.bias
        return y

    def rows(self, ids: npt.NDArray[np.int64]) -> mx.array:
        return mx.array(self.host_rows(ids))

    def host_rows(self, ids: npt.NDArray[np.int64]) -> Floats:
        return np.ascontiguousarray(self.transposed[:, ids].T)

    def add_bias(self, bias: mx.array) -> None:
        self.bias = host_view(bias).copy()

    def reorder(self, order: npt.NDArray[np.int64]) -> None:
        self.transposed = np.take(self.transposed, order, axis=1)


def host_view(x: mx.array) -> Floats:
    """`x` as float32 NumPy, without a copy when it is float32 and contiguous already."""
    x = x.astype(mx.float32)
    mx.eval(x)
    return cast(Floats, np.asarray(x))


def in_numpy(linear: Linear) -> HostLinear:
    if not isinstance(linear, HostLinear):
        raise TypeError(f"A matrix is held as {linear.form}, not in NumPy.")
    return linear


def _bias_or_zeros(linear: HostLinear) -> Floats:
    return np.zeros(linear.shape[0], np.float32) if linear.bias is None else linear.bias
