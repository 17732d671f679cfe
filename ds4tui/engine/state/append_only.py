"""Keys and values of attention layers that see all rows before them: they are only appended.

`KVLayer` keeps its rows in MLX, `HostKVLayer` in NumPy for the CPU kernels; nothing else
differs between them.
"""

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.cache.kvarrays import HostRoom, with_rows
from ds4tui.engine.capacity import grown_capacity
from ds4tui.engine.state.buffers import DeviceBuffer, HostBuffer, RowBuffer
from ds4tui.engine.state.layer import Array, LayerBounded, LayerRows

Floats = npt.NDArray[np.float32]


class _AppendOnly:
    """Rows of several buffers that are only ever appended."""

    is_bounded = False
    bounded_bytes = 0

    def __init__(self, *buffers: RowBuffer) -> None:
        self.length = 0
        self._buffers = buffers
        self._reserved = 0

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._buffers)

    def can_rewind(self, to: int) -> bool:
        return 0 <= to <= self.length

    def rewind(self, to: int) -> None:
        """Forget the rows from `to` on; at 0 the buffers go too. ValueError if that many
        rows were never there."""
        if not self.can_rewind(to):
            raise ValueError(f"Cannot rewind to {to}: the state holds {self.length} rows.")
        self.length = to
        if to == 0:
            for buffer in self._buffers:
                buffer.release()

    def rows(self, start: int, end: int) -> LayerRows | None:
        if not 0 <= start <= end <= self.length:
            raise ValueError(f"No rows {start} to {end}: the state holds {self.length}.")
        if self.length == 0:
            return LayerRows((), ())
        views = tuple(buffer.view(start, end) for buffer in self._buffers)
        return LayerRows(views, tuple(buffer.axis for buffer in self._buffers))

    def has_room(self, count: int) -> bool:
        return all(self.length + count <= buffer.capacity for buffer in self._buffers)

    def reserve(self, length: int) -> None:
        self._reserved = length

    def put(self, rows: LayerRows) -> None:
        if not rows.count:
            return
        self._write(rows.arrays, rows.count)
        written = [b.array for b in self._buffers if isinstance(b, DeviceBuffer)]
        mx.eval(written)  # pending writes would keep what they copy from

    def bounded(self) -> LayerBounded | None:
        return None

    def can_restore(self, bounded: LayerBounded, length: int) -> bool:
        return False

    def restore(self, bounded: LayerBounded, length: int) -> None:
        raise ValueError("An append-only layer has no bounded part.")

    def _write(self, arrays: tuple[Array, ...], count: int) -> None:
        self._make_room(self.length + count, arrays)
        for buffer, rows in zip(self._buffers, arrays, strict=True):
            buffer.write(rows, self.length)
        self.length += count

    def _make_room(self, end: int, like: tuple[Array, ...]) -> None:
        for buffer, rows in zip(self._buffers, like, strict=True):
            if end > buffer.capacity:
                capacity = grown_capacity(max(end, self._reserved))
                buffer.make(capacity, rows, 0, self.length)
        self._reserved = 0


class KVLayer(_AppendOnly):
    """Keys and values of one attention layer in MLX buffers [heads, capacity, size].

    Only this object refers to the buffers between forward passes. A second reference (a view
    kept by a caller) would make the next write copy the whole buffer.
    """

    def __init__(self) -> None:
        self._keys, self._values = DeviceBuffer(), DeviceBuffer()
        super().__init__(self._keys, self._values)

    def append(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Add rows [heads, T, size]; return views of all live rows [heads, length, size]."""
        self._write((keys, values), keys.shape[1])
        return self._keys.view(0, self.length), self._values.view(0, self.length)

    def buffers(self) -> list[mx.array]:
        """What `mx.eval` has to finish before a step is over."""
        return [b.array for b in (self._keys, self._values) if b.array is not None]


class HostKVLayer(_AppendOnly):
    """Keys and values of one attention layer in NumPy, float32.

    Keys lie as [heads, size, capacity], since OpenBLAS multiplies one query with that nearly
    three times as fast; values as [heads, capacity, size].
    """

    base = 0  # position of the buffers' first row

    def __init__(self) -> None:
        self._keys, self._values = HostBuffer(axis=2), HostBuffer(axis=1)
        super().__init__(self._keys, self._values)

    def append(self, keys: Floats, values: Floats) -> tuple[Floats, Floats]:
        """Add rows [heads, T, size]; return views of all live rows [heads, length, size].

        The views are for the step that asked: a later append may write elsewhere.
        """
        self._write((keys.swapaxes(1, 2), values), keys.shape[1])
        return self._keys.view(0, self.length).swapaxes(1, 2), self._values.view(0, self.length)

    def reserved(
        self, count: int, keys: tuple[int, int], values: tuple[int, int]
    ) -> tuple[Floats, Floats]:
        """The buffers, with room for `count` rows more, for a kernel that writes these itself:
        keys [heads, size, capacity], values [heads, capacity, size]. `keys` and `values` are
        (heads, size). The length stays until `written` is called."""
        if self.length + count > self._values.capacity:
            self._make_room(self.length + count, like_host_rows(keys, values))
        assert self._keys.array is not None and self._values.array is not None
        return self._keys.array, self._values.array

    def rooms(self, start: int, end: int, like: tuple[Floats, ...]) -> tuple[HostRoom, ...]:
        """Where rows [start, end) behind those that are held will lie, for others to write there
        before `written` is called; none moves until then, if room was reserved for all.
        `like` are arrays without rows. ValueError if they are not of this layer's sizes."""
        self._make_room(max(end, self._reserved), like)
        arrays = [(buffer.array, buffer.axis) for buffer in (self._keys, self._values)]
        rooms = tuple(HostRoom(a, axis, start, end) for a, axis in arrays if a is not None)
        for room, rows in zip(rooms, like, strict=True):
            if with_rows(room.array.shape, room.axis, 0) != rows.shape:
                raise ValueError(f"Rows of {rows.shape} do not belong into {room.array.shape}.")
        return rooms

    def written(self, count: int) -> None:
        """`count` rows behind the last one, in buffers that `reserved` or `rooms` gave, are there
        now."""
        assert self.length + count <= self._values.capacity
        self.length += count


def like_host_rows(keys: tuple[int, int], values: tuple[int, int]) -> tuple[Floats, Floats]:
    """No rows, of the sizes of keys [heads, size, rows] and values [heads, rows, size]."""
    empty = np.zeros((*keys, 0), np.float32), np.zeros((values[0], 0, values[1]), np.float32)
    return empty
