"""The CPU twin of `kernels.stack`: one NumPy matrix an expert."""

from collections.abc import Callable
from typing import Self

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.kernels.cpu.linear import HostLinear, host_view
from ds4tui.kernels.stack import Stack

Floats = npt.NDArray[np.float32]


class HostStack(Stack):
    form = HostLinear.form

    def __init__(self, matrices: list[HostLinear]) -> None:
        out, columns = matrices[0].shape
        super().__init__((len(matrices), out, columns), sum(m.nbytes for m in matrices))
        self.matrices = matrices

    @classmethod
    def read(cls, count: int, experts: Callable[[slice], Floats]) -> Self:
        """The matrices [count, out, in] that `experts` hands out, one at a time."""
        parts = (experts(slice(i, i + 1))[0] for i in range(count))
        return cls([HostLinear(np.ascontiguousarray(part.T)) for part in parts])

    def __call__(self, x: mx.array, experts: mx.array) -> mx.array:
        rows, chosen = host_view(x), np.asarray(experts)
        y = np.empty((len(rows), self.shape[1]), np.float32)
        for expert in np.unique(chosen):
            own = chosen == expert
            y[own] = self.matrices[expert].apply(rows[own])
        return mx.array(y).astype(x.dtype)


def in_numpy_stack(stack: Stack) -> HostStack:
    if not isinstance(stack, HostStack):
        raise TypeError(f"Matrices are held as {stack.form}, not in NumPy.")
    return stack
