"""KV rows and bounded parts as host memory: what the disk tier takes and gives. NumPy only.

They answer as the engine's own do (`rows(layer, start, end)`, arrays with their row axes), so a
session copies from a page as it copies from a segment. A dtype that NumPy does not have travels
as the unsigned integer of its size, beside its name: "bfloat16" as uint16.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# By name: how the numbers lie in memory and in a file, little-endian.
DTYPES: dict[str, np.dtype[Any]] = {
    "bfloat16": np.dtype("<u2"),
    "float16": np.dtype("<f2"),
    "float32": np.dtype("<f4"),
    "float64": np.dtype("<f8"),
    "bool": np.dtype("|b1"),
    "int8": np.dtype("|i1"),
    "int16": np.dtype("<i2"),
    "int32": np.dtype("<i4"),
    "int64": np.dtype("<i8"),
    "uint8": np.dtype("|u1"),
    "uint16": np.dtype("<u2"),
    "uint32": np.dtype("<u4"),
    "uint64": np.dtype("<u8"),
}


def dtype_name(array: Array) -> str:
    """Of an array whose dtype NumPy has. ValueError for one that no record can hold."""
    name = array.dtype.name
    if name not in DTYPES:
        raise ValueError(f"arrays of {name} cannot be stored")
    return name


def with_rows(shape: tuple[int, ...], axis: int, count: int) -> tuple[int, ...]:
    """The shape of as many rows along `axis`."""
    return (*shape[:axis], count, *shape[axis + 1 :])


def _along(array: Array, axis: int, start: int, end: int) -> Array:
    """Rows `start` to `end`: a view."""
    return array[(slice(None),) * axis + (slice(start, end),)]


@dataclass(frozen=True, slots=True)
class Pooled:
    """Of which positions [start, end) rows are that stand for `size` positions each. Such a row
    belongs to the last of its positions: what is not whole has none yet."""

    size: int
    start: int
    end: int

    @property
    def positions(self) -> int:
        return self.end - self.start

    @property
    def count(self) -> int:
        """Rows."""
        return self.end // self.size - self.start // self.size

    def part(self, start: int, end: int) -> "Pooled":
        """Positions `start` to `end` of these."""
        return Pooled(self.size, self.start + start, self.start + end)

    def rows_of(self, start: int, end: int) -> tuple[int, int]:
        """From which row to which those of positions `start` to `end` of these lie."""
        before = self.start // self.size
        return (
            (self.start + start) // self.size - before,
            (self.start + end) // self.size - before,
        )


@dataclass(frozen=True, slots=True)
class HostRows:
    """Rows of consecutive positions of one layer: in each of `arrays` they lie along its axis of
    `axes`. `dtypes` are the names of what the arrays hold. `pooled`: None for a row a position."""

    arrays: tuple[Array, ...]
    axes: tuple[int, ...]
    dtypes: tuple[str, ...]
    pooled: Pooled | None = None

    @classmethod
    def of(cls, *arrays: Array, axes: tuple[int, ...]) -> "HostRows":
        """Of arrays whose dtypes NumPy has."""
        return cls(arrays, axes, tuple(dtype_name(array) for array in arrays))

    @property
    def count(self) -> int:
        """Positions."""
        if self.pooled is not None:
            return self.pooled.positions
        return int(self.arrays[0].shape[self.axes[0]]) if self.arrays else 0

    @property
    def nbytes(self) -> int:
        return sum(int(array.nbytes) for array in self.arrays)

    def part(self, start: int, end: int) -> "HostRows":
        """Those of positions `start` to `end` of these, as views. ValueError if they are not all
        there."""
        if not 0 <= start <= end <= self.count:
            raise ValueError(f"There are no rows {start} to {end} among {self.count}.")
        pooled = None if self.pooled is None else self.pooled.part(start, end)
        low, high = (start, end) if self.pooled is None else self.pooled.rows_of(start, end)
        pairs = zip(self.arrays, self.axes, strict=True)
        views = tuple(_along(array, axis, low, high) for array, axis in pairs)
        return HostRows(views, self.axes, self.dtypes, pooled)


@dataclass(frozen=True, slots=True)
class HostRoom:
    """Where rows [start, end) along `axis` of an array will lie; the array is contiguous, and
    whoever has the room may write there, and nowhere else in it."""

    array: Array
    axis: int
    start: int
    end: int

    @property
    def shape(self) -> tuple[int, ...]:
        return with_rows(self.array.shape, self.axis, self.end - self.start)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.array.itemsize

    def fill(self, rows: Array) -> None:
        """Copy rows of that shape."""
        _along(self.array, self.axis, self.start, self.end)[...] = rows

    def runs(self) -> Iterator[memoryview]:
        """Its bytes, in the order of an array of that shape."""
        whole = self.array.shape
        row = math.prod(whole[self.axis + 1 :]) * self.array.itemsize
        begin, nbytes = self.start * row, (self.end - self.start) * row
        flat = self.array.reshape(-1).view(np.uint8).data
        for outer in range(math.prod(whole[: self.axis])):
            at = outer * whole[self.axis] * row + begin
            yield flat[at : at + nbytes]


@dataclass(frozen=True, slots=True)
class HostBounded:
    """The bounded part of one layer at one position."""

    arrays: tuple[Array, ...]
    dtypes: tuple[str, ...]

    @classmethod
    def of(cls, *arrays: Array) -> "HostBounded":
        """Of arrays whose dtypes NumPy has."""
        return cls(arrays, tuple(dtype_name(array) for array in arrays))

    @property
    def nbytes(self) -> int:
        return sum(int(array.nbytes) for array in self.arrays)


@dataclass(frozen=True, slots=True)
class HostPage:
    """Rows [start, end) of all append-only layers; None for a layer that has none."""

    start: int
    end: int
    layers: tuple[HostRows | None, ...]

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers if layer is not None)

    def has_rows(self, layer: int) -> bool:
        return self.layers[layer] is not None

    def rows(self, layer: int, start: int, end: int) -> HostRows | None:
        """Views; positions are those of the sequence. ValueError if they are not all there."""
        held = self.layers[layer]
        if not self.start <= start <= end <= self.end:
            raise ValueError(f"No rows {start} to {end} in a page {self.start}..{self.end}.")
        return None if held is None else held.part(start - self.start, end - self.start)

    def from_row(self, start: int) -> "HostPage":
        """The same page without its rows before `start`, as views."""
        held = (self.rows(layer, start, self.end) for layer in range(len(self.layers)))
        return HostPage(start, self.end, tuple(held))


@dataclass(frozen=True, slots=True)
class HostSnapshot:
    """The bounded parts of all layers at one position (None for append-only layers), and the
    logits of the next token [vocabulary] if they were stored."""

    position: int
    layers: tuple[HostBounded | None, ...]
    logits: Array | None = None

    @property
    def nbytes(self) -> int:
        held = sum(layer.nbytes for layer in self.layers if layer is not None)
        return held + (0 if self.logits is None else int(self.logits.nbytes))
