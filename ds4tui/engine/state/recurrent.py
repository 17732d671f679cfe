"""What a gated delta layer keeps: a matrix a value head, and the convolution's last rows.

Nothing of it grows, and nothing says what it was a step ago: such a layer goes back to nothing,
or to what a snapshot of it held. `RecurrentLayer` replaces its MLX arrays at every step and never
writes to them, so a snapshot shares them; `HostRecurrentLayer` lets the CPU kernels write to its
NumPy arrays, so a snapshot copies.
"""

import math
from typing import Generic, TypeVar

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.engine.state.layer import Array, LayerBounded, LayerRows

Floats = npt.NDArray[np.float32]
Kept = TypeVar("Kept", mx.array, Floats)


class _Recurrent(Generic[Kept]):
    """Matrices [value heads, value size, key size] and tail [rows, channels], float32."""

    is_bounded = True

    def __init__(self, matrices_shape: tuple[int, int, int], tail_shape: tuple[int, int]) -> None:
        self.length = 0
        self._shapes = matrices_shape, tail_shape
        self._kept: tuple[Kept, Kept] | None = None

    @property
    def nbytes(self) -> int:
        return sum(int(array.nbytes) for array in self._kept or ())

    @property
    def bounded_bytes(self) -> int:
        return 4 * sum(math.prod(shape) for shape in self._shapes)

    def can_rewind(self, to: int) -> bool:
        """To where it is, and to the start: how it was in between nobody knows."""
        return to in (0, self.length)

    def rewind(self, to: int) -> None:
        """ValueError for anything but its own length and 0, where the arrays go too."""
        if not self.can_rewind(to):
            raise ValueError(f"A recurrent state of {self.length} rows cannot go back to {to}.")
        if to == 0:
            self.length, self._kept = 0, None

    def rows(self, start: int, end: int) -> LayerRows | None:
        return None

    def has_room(self, count: int) -> bool:
        return self._kept is not None

    def reserve(self, length: int) -> None:
        """Nothing grows."""

    def put(self, rows: LayerRows) -> None:
        raise ValueError("A recurrent layer has no rows.")

    def can_restore(self, bounded: LayerBounded, length: int) -> bool:
        return length >= 0 and tuple(a.shape for a in bounded.arrays) == self._shapes

    def restore(self, bounded: LayerBounded, length: int) -> None:
        if not self.can_restore(bounded, length):
            shapes = [tuple(array.shape) for array in bounded.arrays]
            raise ValueError(f"Arrays of {shapes} are no state of this layer, or not at {length}.")
        self._kept, self.length = self._taken(bounded.arrays), length

    def replace(self, matrices: Kept, tail: Kept, count: int) -> None:
        """What is kept after `count` rows more."""
        self._kept = matrices, tail
        self.length += count

    def held(self) -> tuple[Kept, Kept]:
        """Matrices and tail; zeros before the first row."""
        if self._kept is None:
            self._kept = self._zeros()
        return self._kept

    def _zeros(self) -> tuple[Kept, Kept]:
        raise NotImplementedError

    def _taken(self, arrays: tuple[Array, ...]) -> tuple[Kept, Kept]:
        raise NotImplementedError


class RecurrentLayer(_Recurrent[mx.array]):
    """In MLX. Each step leaves a graph until `buffers` are evaluated."""

    def buffers(self) -> list[mx.array]:
        """What `mx.eval` has to finish before a step is over."""
        return list(self._kept or ())

    def bounded(self) -> LayerBounded:
        """The arrays themselves: the next step makes others."""
        arrays = self.held()
        mx.eval(arrays)
        return LayerBounded(arrays)

    def _zeros(self) -> tuple[mx.array, mx.array]:
        matrices, tail = (mx.zeros(shape) for shape in self._shapes)
        return matrices, tail

    def _taken(self, arrays: tuple[Array, ...]) -> tuple[mx.array, mx.array]:
        matrices, tail = arrays
        return matrices, tail


class HostRecurrentLayer(_Recurrent[Floats]):
    """In NumPy. A step may write to what `held` gives, and hands it to `replace`."""

    def bounded(self) -> LayerBounded:
        """Copies."""
        return LayerBounded(tuple(array.copy() for array in self.held()))

    def _zeros(self) -> tuple[Floats, Floats]:
        matrices, tail = (np.zeros(shape, np.float32) for shape in self._shapes)
        return matrices, tail

    def _taken(self, arrays: tuple[Array, ...]) -> tuple[Floats, Floats]:
        matrices, tail = (np.array(array, np.float32) for array in arrays)
        return matrices, tail
