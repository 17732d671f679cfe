"""What every kind of layer state answers, and the values that go in and out of one.

Append-only kinds hold a row for each position; bounded kinds hold what does not grow with the
sequence (a window's last rows, a recurrent matrix). Arrays are MLX's or NumPy's: who passes them
on does not look inside.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx
import numpy as np

from ds4tui.cache.kvarrays import Pooled

Array = Any  # mx.array or a NumPy array


@dataclass(frozen=True, slots=True)
class LayerRows:
    """Rows of consecutive positions: in each of `arrays` they lie along its axis of `axes`.
    `pooled`: None for a row a position."""

    arrays: tuple[Array, ...]
    axes: tuple[int, ...]
    pooled: Pooled | None = None

    @property
    def count(self) -> int:
        """Positions."""
        if self.pooled is not None:
            return self.pooled.positions
        return int(self.arrays[0].shape[self.axes[0]]) if self.arrays else 0

    @property
    def nbytes(self) -> int:
        return sum(int(array.nbytes) for array in self.arrays)

    def copied(self) -> "LayerRows":
        """The same rows in memory of their own, computed on return."""
        pairs = zip(self.arrays, self.axes, strict=True)
        return LayerRows(own_copies(pairs), self.axes, self.pooled)

    def part(self, start: int, end: int) -> "LayerRows":
        """Those of positions `start` to `end` of these, as views. ValueError if they are not all
        there."""
        if not 0 <= start <= end <= self.count:
            raise ValueError(f"There are no rows {start} to {end} among {self.count}.")
        pooled = None if self.pooled is None else self.pooled.part(start, end)
        low, high = (start, end) if self.pooled is None else self.pooled.rows_of(start, end)
        pairs = zip(self.arrays, self.axes, strict=True)
        return LayerRows(tuple(along(a, axis, low, high) for a, axis in pairs), self.axes, pooled)


@dataclass(frozen=True, slots=True)
class LayerBounded:
    """The bounded part of one layer at one position; nothing ever writes to its arrays."""

    arrays: tuple[Array, ...]

    @property
    def nbytes(self) -> int:
        return sum(int(array.nbytes) for array in self.arrays)


class LayerState(Protocol):
    """One layer of a live sequence. Append-only and bounded kinds answer the same questions."""

    @property
    def length(self) -> int:
        """Positions that it stands for."""

    @property
    def nbytes(self) -> int:
        """Allocated bytes."""

    @property
    def is_bounded(self) -> bool:
        """Whether it has a bounded part, which rows alone cannot rebuild."""

    @property
    def bounded_bytes(self) -> int:
        """Of what `bounded` would return now; 0 for an append-only layer."""

    def can_rewind(self, to: int) -> bool:
        """Whether it can go back to exactly `to` positions. Changes nothing."""

    def rewind(self, to: int) -> None:
        """ValueError, and nothing changed, if it cannot."""

    def rows(self, start: int, end: int) -> LayerRows | None:
        """Views of the append-only rows, to be copied at once; None if the layer has none.
        ValueError if it does not hold them all."""

    def has_room(self, count: int) -> bool:
        """Whether `count` rows more fit into what is allocated, which does not grow then."""

    def reserve(self, length: int) -> None:
        """Make room for `length` positions in one go, before several `put`s."""

    def put(self, rows: LayerRows) -> None:
        """Append copies of append-only rows; the copies are made on return."""

    def bounded(self) -> LayerBounded | None:
        """The bounded part at `length`, computed; None for an append-only layer."""

    def can_restore(self, bounded: LayerBounded, length: int) -> bool:
        """Whether `bounded` is one of this kind of layer at `length`. Changes nothing."""

    def restore(self, bounded: LayerBounded, length: int) -> None:
        """Stand for `length` positions, of which `bounded` is the bounded part. `bounded` can be
        used again. ValueError, and nothing changed, if it cannot be of that length."""


def along(array: Array, axis: int, start: int, end: int) -> Array:
    """Rows `start` to `end` along `axis`: a view."""
    return array[(slice(None),) * axis + (slice(start, end),)]


def own_copies(arrays: Iterator[tuple[Array, int]]) -> tuple[Array, ...]:
    """Copies of (array, row axis), computed on return."""
    copies = tuple(_own_copy(array, axis) for array, axis in arrays)
    mx.eval([copy for copy in copies if isinstance(copy, mx.array)])
    return copies


def _own_copy(array: Array, axis: int) -> Array:
    if not isinstance(array, mx.array):
        return np.array(array, order="C")
    # mx.contiguous, copy and array may share the memory; a concatenation never does.
    return mx.concatenate([array, along(array, axis, 0, 0)], axis=axis)
