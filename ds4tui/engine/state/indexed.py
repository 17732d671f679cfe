"""What an attention layer keeps whose queries see some rows only, chosen by an index of pools.

The rows are append-only: keys and values, and what the index is made of. The pools, `size` rows
each, are worked out from these rows once they are whole, and no part of what is kept: a rewind
forgets those that are not whole any more, and after rows were put back they are made anew, from
the same numbers. So the rows of an open pool need no state of their own.
"""

from collections.abc import Callable

import mlx.core as mx

from ds4tui.engine.capacity import grown_capacity
from ds4tui.engine.state.append_only import _AppendOnly
from ds4tui.engine.state.buffers import DeviceBuffer

# From a pool to another, and views [heads, rows of these pools, ..] of each kind of rows, to what
# the index holds of each pool, [1, pools, values].
Pooling = Callable[[int, tuple[mx.array, ...]], mx.array]


class IndexedLayer(_AppendOnly):
    """`arrays` kinds of rows in MLX buffers [heads, capacity, values], the first of them keys."""

    def __init__(self, arrays: int, size: int) -> None:
        self._rows = tuple(DeviceBuffer() for _ in range(arrays))
        super().__init__(*self._rows)
        self._keys, self._size = self._rows[0], size
        self._pools, self._pooled = DeviceBuffer(), 0

    @property
    def nbytes(self) -> int:
        return super().nbytes + self._pools.nbytes

    def rewind(self, to: int) -> None:
        super().rewind(to)
        self._pooled = min(self._pooled, to // self._size)
        if to == 0:
            self._pools.release()

    def has_room(self, count: int) -> bool:
        pools = (self.length + count) // self._size
        return super().has_room(count) and pools <= self._pools.capacity

    def append(self, *rows: mx.array) -> tuple[mx.array, ...]:
        """Add rows [heads, T, values] of each kind; views of all live rows of each."""
        self._write(rows, rows[0].shape[1])
        return tuple(buffer.view(0, self.length) for buffer in self._rows)

    def pools(self, pooling: Pooling) -> mx.array | None:
        """A view [1, P, values] of the pools that are whole; None if there are none."""
        whole, made = self.length // self._size, self._pooled
        if made < whole:
            rows = (b.view(made * self._size, whole * self._size) for b in self._rows)
            new = pooling(made, tuple(rows))
            if whole > self._pools.capacity:
                self._pools.make(grown_capacity(whole), new, 0, made)
            self._pools.write(new, made)
            self._pooled = whole
        return self._pools.view(0, whole) if whole else None

    def buffers(self) -> list[mx.array]:
        """What `mx.eval` has to finish before a step is over."""
        held = (*self._rows, self._pools)
        return [buffer.array for buffer in held if buffer.array is not None]
