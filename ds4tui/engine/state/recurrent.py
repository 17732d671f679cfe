"""What a gated delta layer keeps: a matrix a value head, and the convolution's last rows; and
what n-grams keep: a convolution's last rows, and the last tokens.

Nothing of it grows, and nothing says what it was a step ago: such a layer goes back to nothing,
or to what a snapshot of it held. `RecurrentLayer` replaces its MLX arrays at every step and never
writes to them, so a snapshot shares them; `HostRecurrentLayer` lets the CPU kernels write to its
NumPy arrays, so a snapshot copies.
"""

import math
from collections.abc import Sequence
from typing import Generic, TypeVar

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.engine.state.layer import Array, LayerBounded, LayerRows

Floats = npt.NDArray[np.float32]
Kept = TypeVar("Kept", mx.array, Floats)


class _Recurrent(Generic[Kept]):
    """Arrays of 4 bytes a number: matrices [value heads, value size, key size] and tail [rows,
    channels], float32."""

    is_bounded = True

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        self.length = 0
        self._shapes = shapes
        self._kept: tuple[Kept, ...] | None = None

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

    def replace(self, first: Kept, second: Kept, count: int) -> None:
        """What is kept after `count` rows more."""
        self._kept = first, second
        self.length += count

    def held(self) -> tuple[Kept, ...]:
        """Matrices and tail; zeros before the first row."""
        if self._kept is None:
            self._kept = self._first()
        return self._kept

    def _first(self) -> tuple[Kept, ...]:
        """Before the first row."""
        raise NotImplementedError

    def _taken(self, arrays: Sequence[Array]) -> tuple[Kept, ...]:
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

    def _first(self) -> tuple[mx.array, ...]:
        return tuple(mx.zeros(shape) for shape in self._shapes)

    def _taken(self, arrays: Sequence[Array]) -> tuple[mx.array, ...]:
        return tuple(arrays)


class NGramLayer(RecurrentLayer):
    """Rows [rows, channels], float32, and the last `tokens`, int32, of which those before the
    first row are `end`. The tokens are those of the timeline, so a snapshot of some position
    holds what the timeline says there."""

    def __init__(self, rows_shape: tuple[int, int], tokens: int, end: int) -> None:
        super().__init__(rows_shape, (tokens,))
        self._end = end

    def _first(self) -> tuple[mx.array, ...]:
        rows, tokens = self._shapes
        return mx.zeros(rows), mx.full(tokens, self._end, mx.int32)


class HostRecurrentLayer(_Recurrent[Floats]):
    """In NumPy. A step may write to what `held` gives, and hands it to `replace`."""

    def bounded(self) -> LayerBounded:
        """Copies."""
        return LayerBounded(tuple(array.copy() for array in self.held()))

    def _first(self) -> tuple[Floats, ...]:
        return tuple(np.zeros(shape, np.float32) for shape in self._shapes)

    def _taken(self, arrays: Sequence[Array]) -> tuple[Floats, ...]:
        return tuple(np.array(array, np.float32) for array in arrays)
