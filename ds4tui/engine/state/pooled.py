"""What a layer keeps whose queries see a window of rows, and pools of all before (DeepSeek V4).

Two states side by side. Pools are append-only, and belong to the last of their positions. What
they are made of is needed for a while only: `RawRowsLayer` keeps the last rows of each kind as a
window keeps its own, with a slack to go back by. So an open pool has no state of its own: after a
rewind it is made anew, from the same numbers. A snapshot has of each kind the rows that the next
step looks at, which are fewest where pools end.
"""

from dataclasses import dataclass

import mlx.core as mx

from ds4tui.cache.kvarrays import Pooled
from ds4tui.engine.capacity import RAW_SLACK_ROWS, aligned, grown_capacity
from ds4tui.engine.state.append_only import _AppendOnly
from ds4tui.engine.state.buffers import DeviceBuffer
from ds4tui.engine.state.layer import Array, LayerBounded, LayerRows, own_copies
from ds4tui.engine.state.window import _Window


@dataclass(frozen=True, slots=True)
class Needed:
    """Which rows of a kind a step looks at that were there before: the `last` ones; or those of
    the open pool of `pool` rows, and of the one before, if pools overlap (`before`)."""

    last: int = 0
    pool: int = 0
    before: bool = False

    @property
    def most(self) -> int:
        return self.last + (self.pool - 1 if self.pool else 0) + self.pool * self.before

    def at(self, position: int) -> int:
        """How many, for a step from `position` on."""
        if not self.pool:
            return min(self.last, position)
        before = self.pool if self.before and position >= self.pool else 0
        return position % self.pool + before


class RawRowsLayer(_Window):
    """Rows of a kind each of `needed`, in MLX buffers [1, capacity, values]."""

    def __init__(self, *needed: Needed, slack: int = RAW_SLACK_ROWS) -> None:
        buffers = (DeviceBuffer() for _ in needed)
        super().__init__(1 + max(kind.most for kind in needed), *buffers, slack=slack)
        self._needed = needed
        self._held = [0] * len(needed)  # of each kind, from which position on

    @property
    def bounded_bytes(self) -> int:
        rows = (kind.at(self.length) for kind in self._needed)
        pairs = zip(rows, self._buffers, strict=True)
        return sum(n * (buffer.nbytes // buffer.capacity) for n, buffer in pairs if n)

    def can_rewind(self, to: int) -> bool:
        """Whether all rows that a step at position `to` looks at are still here."""
        if not 0 <= to <= self.length:
            return False
        pairs = zip(self._needed, self._held, strict=True)
        return all(to - kind.at(to) >= min(held, to) for kind, held in pairs)

    def rewind(self, to: int) -> None:
        """As WindowLayer."""
        if not self.can_rewind(to):
            raise ValueError(
                f"Cannot rewind to {to}: the layer holds rows {self._held} to {self.length}."
            )
        self.length = to
        self._held = [min(held, to) for held in self._held]
        if to == 0:
            self.base = 0
            for buffer in self._buffers:
                buffer.release()

    def bounded(self) -> LayerBounded:
        """Of each kind the rows that a step looks at, as copies."""
        if not self.length:
            return LayerBounded(())
        end = self.length - self.base
        pairs = zip(self._buffers, self._needed, strict=True)
        views = ((b.view(end - kind.at(self.length), end), b.axis) for b, kind in pairs)
        return LayerBounded(own_copies(views))

    def can_restore(self, bounded: LayerBounded, length: int) -> bool:
        if length < 0 or len(bounded.arrays) != (len(self._buffers) if length else 0):
            return False
        pairs = zip(bounded.arrays, self._needed, strict=False)
        return all(array.shape[1] == kind.at(length) for array, kind in pairs)

    def restore(self, bounded: LayerBounded, length: int) -> None:
        if not self.can_restore(bounded, length):
            raise ValueError(f"These are not the rows that are looked at from {length} on.")
        if not length:
            self.rewind(0)
            return
        self.length, self._held = length, [length - kind.at(length) for kind in self._needed]
        self.base = aligned(min(self._held))
        for buffer, rows, held in zip(self._buffers, bounded.arrays, self._held, strict=True):
            if length - self.base > buffer.capacity:
                buffer.make(self._grown(length - self.base), rows, 0, 0)
            if held < length:
                buffer.write(rows, held - self.base)
        mx.eval(self.buffers())  # pending writes would keep what they copy from

    def append(self, *rows: mx.array) -> tuple[mx.array, ...]:
        """Add rows [1, T, values] of each kind; views of these and, before them, of those that are
        needed for them."""
        first = self.length
        views = self._write(*rows)
        sizes = (rows[0].shape[1] + kind.at(first) for kind in self._needed)
        return tuple(view[:, view.shape[1] - n :] for view, n in zip(views, sizes, strict=True))

    def _base_after_move(self) -> int:
        return aligned(max(min(self._held), self.length - (self.window - 1 + self._slack)))

    def _begin_at(self, base: int) -> None:
        self.base, self._held = base, [max(base, held) for held in self._held]


@dataclass(frozen=True, slots=True)
class RawAndPools:
    """What one layer keeps, side by side."""

    raw: RawRowsLayer
    pools: "PoolLayer"

    def buffers(self) -> list[mx.array]:
        """What `mx.eval` has to finish before a step is over."""
        return [*self.raw.buffers(), *self.pools.buffers()]


class PoolLayer(_AppendOnly):
    """Pools of `size` positions each in MLX buffers [1, capacity, values], of so many `kinds`."""

    def __init__(self, size: int, kinds: int) -> None:
        self._pools = tuple(DeviceBuffer() for _ in range(kinds))
        super().__init__(*self._pools)
        self.size = size

    def rows(self, start: int, end: int) -> LayerRows | None:
        if not 0 <= start <= end <= self.length:
            raise ValueError(f"No rows {start} to {end}: the state holds {self.length}.")
        if self.length == 0:
            return LayerRows((), ())
        low, high = start // self.size, end // self.size
        views = tuple(buffer.view(low, high) for buffer in self._pools)
        return LayerRows(views, (1,) * len(views), Pooled(self.size, start, end))

    def has_room(self, count: int) -> bool:
        whole = (self.length + count) // self.size
        return all(whole <= buffer.capacity for buffer in self._pools)

    def put(self, rows: LayerRows) -> None:
        """ValueError for rows that are not of the next positions."""
        held = rows.pooled
        if rows.count and (held is None or (held.size, held.start) != (self.size, self.length)):
            raise ValueError(f"Pools {held} do not follow {self.length} rows in {self.size}s.")
        super().put(rows)

    def append(self, count: int, *pools: mx.array) -> tuple[mx.array, ...]:
        """Go on by `count` positions, and the pools [1, P, values] of each kind that end there;
        views of all pools of each."""
        self._write(pools, count)
        whole = self.length // self.size
        return tuple(buffer.view(0, whole) for buffer in self._pools)

    def buffers(self) -> list[mx.array]:
        """What `mx.eval` has to finish before a step is over."""
        return [buffer.array for buffer in self._pools if buffer.array is not None]

    def _write(self, arrays: tuple[Array, ...], count: int) -> None:
        """ValueError, and nothing changed, for another number of pools."""
        made, whole = self.length // self.size, (self.length + count) // self.size
        if any(array.shape[1] != whole - made for array in arrays):
            raise ValueError(f"{count} rows behind {self.length} end {whole - made} pools.")
        self._make_room(self.length + count, arrays)
        for buffer, rows in zip(self._pools, arrays, strict=True):
            if whole > made:
                buffer.write(rows, made)
        self.length += count

    def _make_room(self, end: int, like: tuple[Array, ...]) -> None:
        whole = max(end, self._reserved) // self.size
        for buffer, rows in zip(self._pools, like, strict=True):
            if end // self.size > buffer.capacity or buffer.array is None:
                buffer.make(grown_capacity(max(whole, 1)), rows, 0, self.length // self.size)
        self._reserved = 0
