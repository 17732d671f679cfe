"""Buffers of rows: how rows are written, moved and viewed.

`DeviceBuffer` keeps its rows in MLX, `HostBuffer` in NumPy for the CPU kernels; nothing else
differs between them.
"""

from typing import Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.cache.kvarrays import with_rows
from ds4tui.engine.state.layer import Array, along

Floats = npt.NDArray[np.float32]


class RowBuffer(Protocol):
    """Rows along one axis of an array that this object alone refers to."""

    axis: int

    @property
    def capacity(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def make(self, capacity: int, like: Array, start: int, end: int) -> None:
        """Go on in an array of `capacity` rows, computed on return, that begins with rows `start`
        to `end` of the old one; dtype and other sizes are those of `like`."""

    def move(self, start: int, end: int) -> None:
        """Rows `start` to `end` to the front."""

    def write(self, rows: Array, at: int) -> None: ...
    def view(self, start: int, end: int) -> Array: ...
    def release(self) -> None: ...


class DeviceBuffer:
    """In MLX. A second reference to the array (a view that is kept) would make the next write
    copy the whole of it. Writes are pending until `mx.eval`."""

    def __init__(self, axis: int = 1) -> None:
        self.axis = axis
        self.array: mx.array | None = None

    @property
    def capacity(self) -> int:
        return 0 if self.array is None else self.array.shape[self.axis]

    @property
    def nbytes(self) -> int:
        return 0 if self.array is None else int(self.array.nbytes)

    def make(self, capacity: int, like: mx.array, start: int, end: int) -> None:
        larger = mx.zeros(with_rows(like.shape, self.axis, capacity), like.dtype)
        if end > start:
            larger[self._at(0, end - start)] = self.view(start, end)
        mx.eval(larger)  # pending copies of all layers would hold all old buffers at once
        self.array = larger

    def move(self, start: int, end: int) -> None:
        assert self.array is not None
        self.make(self.capacity, self.array, start, end)

    def write(self, rows: mx.array, at: int) -> None:
        assert self.array is not None
        self.array[self._at(at, at + rows.shape[self.axis])] = rows

    def view(self, start: int, end: int) -> mx.array:
        assert self.array is not None
        return self.array[self._at(start, end)]

    def release(self) -> None:
        self.array = None

    def _at(self, start: int, end: int) -> tuple[slice, ...]:
        return (slice(None),) * self.axis + (slice(start, end),)


class HostBuffer:
    """In NumPy, float32."""

    def __init__(self, axis: int = 1) -> None:
        self.axis = axis
        self.array: Floats | None = None

    @property
    def capacity(self) -> int:
        return 0 if self.array is None else self.array.shape[self.axis]

    @property
    def nbytes(self) -> int:
        return 0 if self.array is None else self.array.nbytes

    def make(self, capacity: int, like: Floats, start: int, end: int) -> None:
        larger = np.zeros(with_rows(like.shape, self.axis, capacity), np.float32)
        if end > start:
            along(larger, self.axis, 0, end - start)[...] = self.view(start, end)
        self.array = larger

    def move(self, start: int, end: int) -> None:
        # NumPy sees that the two overlap.
        along(self.array, self.axis, 0, end - start)[...] = self.view(start, end)

    def write(self, rows: Floats, at: int) -> None:
        along(self.array, self.axis, at, at + rows.shape[self.axis])[...] = rows

    def view(self, start: int, end: int) -> Floats:
        view: Floats = along(self.array, self.axis, start, end)
        return view

    def release(self) -> None:
        self.array = None
