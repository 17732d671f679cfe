"""Many matrices of one shape, of which each row of a product chooses one: experts.

`DenseStack` and `QuantisedStack` are the plain MLX reference; `kernels.cpu.stack.HostStack` is
the CPU twin.
"""

from abc import ABC, abstractmethod

import mlx.core as mx

from ds4tui.kernels.linear import QuantisedMatrix, array_form, quantised_form


class Stack(ABC):
    """y_n = W[experts[n]] x_n with W of `shape` (experts, out, in)."""

    form: str  # how the matrices are held, in words

    def __init__(self, shape: tuple[int, int, int], nbytes: int) -> None:
        self.shape = shape
        self.nbytes = nbytes

    @abstractmethod
    def __call__(self, x: mx.array, experts: mx.array) -> mx.array:
        """x [N, in] and experts [N], in ascending order, to [N, out]."""


class DenseStack(Stack):
    """The reference over a plain MLX array [experts, out, in]."""

    def __init__(self, weight: mx.array) -> None:
        super().__init__((weight.shape[0], weight.shape[1], weight.shape[2]), int(weight.nbytes))
        self.form = array_form(weight)
        self._weight = weight

    def __call__(self, x: mx.array, experts: mx.array) -> mx.array:
        # Not told that `experts` ascend: with sorted_indices MLX 0.32.4 gives wrong products on
        # CUDA (every dtype; off by as much as the values), without they are right.
        y = mx.gather_mm(x[:, None], self._weight.swapaxes(1, 2), rhs_indices=experts)
        return y[:, 0]


class QuantisedStack(Stack):
    """The reference over MLX's own quantised product; scales and biases are in `dtype` where
    that is exact."""

    def __init__(self, matrix: QuantisedMatrix, dtype: mx.Dtype) -> None:
        self._matrix = matrix.held_for(dtype)
        count, out, columns = matrix.shape
        super().__init__((count, out, columns), self._matrix.nbytes)
        self.form = quantised_form(self._matrix)

    def __call__(self, x: mx.array, experts: mx.array) -> mx.array:
        m = self._matrix
        y = mx.gather_qmm(
            x[:, None],
            m.packed,
            m.scales,
            m.biases,
            rhs_indices=experts,
            transpose=True,
            **m.form,
            sorted_indices=True,
        )
        return y[:, 0].astype(x.dtype)
