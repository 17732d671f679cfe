"""Keys and values of attention layers whose queries see no more than the last `window` rows.

The rows lie in a buffer in the order of their positions. When it is full, those that are still
wanted move to its front: no query ever finds its rows out of order, and a kernel needs to know
no more than the position of the buffer's first row.
How long it is: engine/capacity.py.
"""

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.engine.capacity import aligned, layer_capacity, slack_rows, window_capacity
from ds4tui.engine.state.append_only import like_host_rows
from ds4tui.engine.state.buffers import DeviceBuffer, HostBuffer, RowBuffer
from ds4tui.engine.state.layer import Array, LayerBounded, LayerRows, own_copies

Floats = npt.NDArray[np.float32]


class _Window:
    """Rows [held_from, length) in buffers whose first row is that of position `base`; rows of the
    buffers before `held_from` hold nothing that a query may see."""

    is_bounded = True

    def __init__(self, window: int, *buffers: RowBuffer, slack: int | None = None) -> None:
        """ValueError for a window in which a query does not even see itself. `slack`: None for
        slack_rows."""
        if window < 1:
            raise ValueError(f"A window has at least one row, not {window}.")
        self.window = window
        self.length = self.base = self.held_from = 0
        self._buffers = buffers
        self._slack = slack_rows(window) if slack is None else slack

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._buffers)

    @property
    def bounded_bytes(self) -> int:
        rows = self._seen_rows(self.length)
        return sum(rows * (b.nbytes // b.capacity) for b in self._buffers) if rows else 0

    def can_rewind(self, to: int) -> bool:
        """Whether all rows that a query at position `to` sees are still here."""
        if not 0 <= to <= self.length:
            return False
        seen = self._seen_rows(to)
        return seen == 0 or to - seen >= self.held_from

    def rewind(self, to: int) -> None:
        """Forget the rows from `to` on; at 0 the buffers go too. ValueError for a length that was
        never reached, or so far back that rows to be seen there are gone."""
        if not self.can_rewind(to):
            raise ValueError(
                f"Cannot rewind to {to}: the layer holds rows {self.held_from} to {self.length}."
            )
        self.length = to
        self.held_from = min(self.held_from, to)
        self.base = aligned(self.held_from)
        if to == 0:
            for buffer in self._buffers:
                buffer.release()

    def rows(self, start: int, end: int) -> LayerRows | None:
        """None: what is here says nothing about earlier positions."""
        return None

    def has_room(self, count: int) -> bool:
        return not self._lacks_room(count)

    def reserve(self, length: int) -> None:
        pass

    def put(self, rows: LayerRows) -> None:
        raise TypeError("The rows of a window come from its bounded part.")

    def bounded(self) -> LayerBounded:
        """The last window - 1 rows, or as many as there are, as copies."""
        seen, end = self._seen_rows(self.length), self.length - self.base
        if seen == 0:
            return LayerBounded(())
        return LayerBounded(own_copies((b.view(end - seen, end), b.axis) for b in self._buffers))

    def can_restore(self, bounded: LayerBounded, length: int) -> bool:
        rows = self._seen_rows(length)
        if length < 0 or len(bounded.arrays) != (len(self._buffers) if rows else 0):
            return False
        return all(
            array.shape[buffer.axis] == rows
            for array, buffer in zip(bounded.arrays, self._buffers, strict=False)
        )

    def restore(self, bounded: LayerBounded, length: int) -> None:
        if not self.can_restore(bounded, length):
            raise ValueError(
                f"These are not the rows that a window of {self.window} has at {length}."
            )
        self.length, self.held_from = length, length - self._seen_rows(length)
        self.base = aligned(self.held_from)
        for buffer, rows in zip(self._buffers, bounded.arrays, strict=False):
            if length - self.base > buffer.capacity:
                buffer.make(self._grown(length - self.base), rows, 0, 0)
            buffer.write(rows, self.held_from - self.base)
        mx.eval(self.buffers())  # pending writes would keep what they copy from

    def buffers(self) -> list[mx.array]:
        """What `mx.eval` has to finish before a step is over."""
        held = (b.array for b in self._buffers if isinstance(b, DeviceBuffer))
        return [array for array in held if array is not None]

    def _seen_rows(self, position: int) -> int:
        """How many rows a query at `position` sees besides its own."""
        return min(self.window - 1, position)

    def _write(self, *rows: Array) -> tuple[Array, ...]:
        """Append rows; views of all that their queries see, up to the last row."""
        count = rows[0].shape[self._buffers[0].axis]
        if self._lacks_room(count):
            self._make_room(count, rows)
        for buffer, new in zip(self._buffers, rows, strict=True):
            buffer.write(new, self.length - self.base)
        self.length += count
        views = tuple(buffer.view(0, self.length - self.base) for buffer in self._buffers)
        self._trim()
        return views

    def _lacks_room(self, count: int) -> bool:
        return self.length + count - self.base > self._buffers[0].capacity

    def _make_room(self, count: int, like: tuple[Array, ...]) -> None:
        """For `count` rows behind the last; those that are wanted no more make place. Buffers
        become longer than they may stay only for a chunk that does not fit otherwise."""
        end, used, base = self.length + count, self.length - self.base, self.base
        if end - base > window_capacity(self.window, self._slack):
            base = self._base_after_move()
        for buffer, rows in zip(self._buffers, like, strict=True):
            if end - base > buffer.capacity:
                capacity = max(end - base, self._grown(end - base))
                # A window of one row is restored without buffers: there is nothing to take over.
                buffer.make(capacity, rows, base - self.base, min(used, buffer.capacity))
            elif base > self.base:
                buffer.move(base - self.base, used)
        self._begin_at(base)

    def _trim(self) -> None:
        """After a long chunk, back to the length that buffers may have between steps."""
        most, base, used = (
            window_capacity(self.window, self._slack),
            self._base_after_move(),
            self.length - self.base,
        )
        if self._buffers[0].capacity <= most:
            return
        for buffer in self._buffers:
            buffer.make(most, buffer.view(0, 0), base - self.base, used)
        self._begin_at(base)

    def _base_after_move(self) -> int:
        wanted = self.window - 1 + self._slack
        return aligned(max(self.held_from, self.length - wanted))

    def _grown(self, rows: int) -> int:
        return layer_capacity(rows, self.window, self._slack)

    def _begin_at(self, base: int) -> None:
        self.base, self.held_from = base, max(base, self.held_from)


class WindowLayer(_Window):
    """As KVLayer, of the last rows only."""

    def __init__(self, window: int) -> None:
        super().__init__(window, DeviceBuffer(), DeviceBuffer())

    def append(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Add rows [heads, T, size]; views [heads, S, size] of the rows up to the last one, S >= T,
        with all that the new rows' queries see among them."""
        keys, values = self._write(keys, values)
        return keys, values


class HostWindowLayer(_Window):
    """As HostKVLayer, of the last rows only."""

    def __init__(self, window: int) -> None:
        self._keys, self._values = HostBuffer(axis=2), HostBuffer(axis=1)
        super().__init__(window, self._keys, self._values)

    def append(self, keys: Floats, values: Floats) -> tuple[Floats, Floats]:
        """As WindowLayer; the views are for the step that asked."""
        keys, values = self._write(keys.swapaxes(1, 2), values)
        return keys.swapaxes(1, 2), values

    def reserved(
        self, count: int, keys: tuple[int, int], values: tuple[int, int]
    ) -> tuple[Floats, Floats]:
        """As HostKVLayer; the buffers' first row is that of position `base`."""
        if self._lacks_room(count):
            self._make_room(count, like_host_rows(keys, values))
        assert self._keys.array is not None and self._values.array is not None
        return self._keys.array, self._values.array

    def written(self, count: int) -> None:
        """As HostKVLayer."""
        assert self.length + count - self.base <= self._values.capacity
        self.length += count
        self._trim()
