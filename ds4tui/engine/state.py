"""What a model keeps of the rows it has seen: one layer state a layer, owned by one session.

Invariants (tests name them):
  (1) Outside a forward pass all layers have the same length.
  (2) Rows below `length` are never rewritten: append writes behind them, growing copies them.
  (3) A rewind happens in all layers or in none: `can_rewind` is asked of each before.
  (4) Nothing clamps: a length that was never reached is an error.
  (5) `nbytes` is what is allocated, not what is in use.
Buffers grow a layer at a time, so the peak is the state plus one layer.

`KVLayer` keeps its rows in MLX, `HostKVLayer` in NumPy for the CPU kernels; nothing else
differs between them.
"""

from typing import Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

BLOCK_ROWS = 256  # buffers are whole blocks: a short chat grows them rarely
GROWTH_SHARE = 8  # a grown buffer is an eighth longer than needed, so copying stays amortised,
GROWTH_ROWS_MAX = 2048  # but no more rows than this lie idle in a long one


def grown_capacity(rows: int) -> int:
    """Rows to allocate when `rows` are needed. Monotone: a state that never held more than
    `rows` never allocates more than this."""
    slack = min(rows // GROWTH_SHARE, GROWTH_ROWS_MAX)
    return -(-(rows + slack) // BLOCK_ROWS) * BLOCK_ROWS


class LayerState(Protocol):
    @property
    def length(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def can_rewind(self, to: int) -> bool: ...
    def rewind(self, to: int) -> None: ...


class _AppendOnly:
    """Length and rewind of rows that are only ever appended."""

    def __init__(self) -> None:
        self.length = 0

    def can_rewind(self, to: int) -> bool:
        return 0 <= to <= self.length

    def rewind(self, to: int) -> None:
        """Forget the rows from `to` on; at 0 the buffers go too. ValueError if that many
        rows were never there."""
        if not self.can_rewind(to):
            raise ValueError(f"Cannot rewind to {to}: the state holds {self.length} rows.")
        self.length = to
        if to == 0:
            self._release()

    def _release(self) -> None:
        raise NotImplementedError


class KVLayer(_AppendOnly):
    """Keys and values of one attention layer in MLX buffers [heads, capacity, size].

    Only this object refers to the buffers between forward passes. A second reference (a view
    kept by a caller) would make the next write copy the whole buffer.
    """

    def __init__(self) -> None:
        super().__init__()
        self._keys: mx.array | None = None
        self._values: mx.array | None = None

    @property
    def nbytes(self) -> int:
        return sum(int(b.nbytes) for b in (self._keys, self._values) if b is not None)

    def append(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Add rows [heads, T, size]; return views of all live rows [heads, length, size]."""
        start, end = self.length, self.length + keys.shape[1]
        self._keys = _write(self._keys, keys, start, end)
        self._values = _write(self._values, values, start, end)
        self.length = end
        return self._keys[:, :end], self._values[:, :end]

    def buffers(self) -> list[mx.array]:
        """What `mx.eval` has to finish before a step is over."""
        return [b for b in (self._keys, self._values) if b is not None]

    def _release(self) -> None:
        self._keys = self._values = None


class HostKVLayer(_AppendOnly):
    """Keys and values of one attention layer in NumPy, float32.

    Keys lie as [heads, size, capacity], since OpenBLAS multiplies one query with that nearly
    three times as fast; values as [heads, capacity, size].
    """

    def __init__(self) -> None:
        super().__init__()
        self._keys: Floats | None = None
        self._values: Floats | None = None

    @property
    def nbytes(self) -> int:
        return sum(b.nbytes for b in (self._keys, self._values) if b is not None)

    def append(self, keys: Floats, values: Floats) -> tuple[Floats, Floats]:
        """Add rows [heads, T, size]; return views of all live rows [heads, length, size].

        The views are for the step that asked: a later append may write elsewhere.
        """
        start, end = self.length, self.length + keys.shape[1]
        self._keys = _host_write(self._keys, keys.swapaxes(1, 2), 2, start, end)
        self._values = _host_write(self._values, values, 1, start, end)
        self.length = end
        return self._keys[:, :, :end].swapaxes(1, 2), self._values[:, :end]

    def reserved(
        self, count: int, keys: tuple[int, int], values: tuple[int, int]
    ) -> tuple[Floats, Floats]:
        """The buffers, with room for `count` rows more, for a kernel that writes these itself:
        keys [heads, size, capacity], values [heads, capacity, size]. `keys` and `values` are
        (heads, size). The length stays until `written` is called."""
        end, (key_heads, key_size) = self.length + count, keys
        key_shape = (key_heads, key_size, 0)
        self._keys = _host_grown(self._keys, key_shape, 2, self.length, end)
        self._values = _host_grown(self._values, (values[0], 0, values[1]), 1, self.length, end)
        return self._keys, self._values

    def written(self, count: int) -> None:
        """`count` rows behind the last one, in buffers that `reserved` gave, are there now."""
        assert self._values is not None and self.length + count <= self._values.shape[1]
        self.length += count

    def _release(self) -> None:
        self._keys = self._values = None


class ModelState:
    """The layer states of one live sequence. Owned by the engine thread."""

    def __init__(self, layers: list[LayerState]) -> None:
        self.layers = layers

    @property
    def length(self) -> int:
        """Rows held by every layer; RuntimeError if a failed step left them uneven."""
        lengths = {layer.length for layer in self.layers}
        if len(lengths) > 1:
            raise RuntimeError(f"Layer lengths differ after a failed step: {sorted(lengths)}.")
        return lengths.pop() if lengths else 0

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)

    def can_rewind(self, to: int) -> bool:
        """Whether every layer can go back to exactly `to` rows. Changes nothing."""
        return all(layer.can_rewind(to) for layer in self.layers)

    def rewind(self, to: int) -> None:
        """Go back to `to` rows in all layers; ValueError, and nothing changed, if one cannot."""
        if not self.can_rewind(to):
            raise ValueError(f"Cannot rewind to {to}: a layer refuses.")
        for layer in self.layers:
            layer.rewind(to)


def _write(buffer: mx.array | None, rows: mx.array, start: int, end: int) -> mx.array:
    if buffer is None or end > buffer.shape[1]:
        buffer = _grown(buffer, rows, start, end)
    buffer[:, start:end] = rows
    return buffer


def _grown(buffer: mx.array | None, rows: mx.array, start: int, end: int) -> mx.array:
    heads, _, size = rows.shape
    larger = mx.zeros((heads, grown_capacity(end), size), rows.dtype)
    if buffer is not None:
        larger[:, :start] = buffer[:, :start]
    mx.eval(larger)  # pending copies of all layers would hold all old buffers at once
    return larger


def _host_write(buffer: Floats | None, rows: Floats, axis: int, start: int, end: int) -> Floats:
    """Rows `start` to `end` along `axis`, in `buffer` or in a larger copy of it."""
    buffer = _host_grown(buffer, rows.shape, axis, start, end)
    _along(buffer, axis, start, end)[...] = rows
    return buffer


def _host_grown(
    buffer: Floats | None, sizes: tuple[int, ...], axis: int, start: int, end: int
) -> Floats:
    """`buffer`, or a copy of its first `start` rows with room for `end`; `sizes` are those of
    the other axes."""
    if buffer is not None and end <= buffer.shape[axis]:
        return buffer
    shape = list(sizes)
    shape[axis] = grown_capacity(end)
    larger = np.zeros(shape, np.float32)
    if buffer is not None:
        _along(larger, axis, 0, start)[...] = _along(buffer, axis, 0, start)
    return larger


def _along(buffer: Floats, axis: int, start: int, end: int) -> Floats:
    return buffer[(slice(None),) * axis + (slice(start, end),)]
