"""Layers of every kind without arithmetic, for the fake model: what they hold is the rows (id and
position) themselves, so anything wrong in them is seen.

They stand in engine.state.ModelState beside nothing else, so rebuilding, copying and snapshots
are the real ones.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import xxhash

from ds4tui.engine.state import LayerBounded, LayerRows

Row = tuple[int, int]
Ints = npt.NDArray[np.int64]


def as_array(rows: Sequence[Row]) -> Ints:
    """int64 [n, 2]."""
    return np.array(rows, dtype=np.int64).reshape(-1, 2)


class FakeLayer:
    """Append-only: all rows. A token takes 16 bytes."""

    is_bounded = False
    bounded_bytes = 0

    def __init__(self) -> None:
        self.held: list[Row] = []

    @property
    def length(self) -> int:
        return len(self.held)

    @property
    def nbytes(self) -> int:
        return 16 * len(self.held)

    def feed(self, rows: Sequence[Row]) -> None:
        self.held.extend(rows)

    def content(self) -> Ints:
        """What it holds, int64 [n, 2]; the same for equal prefixes, however they were reached."""
        return as_array(self.held)

    @classmethod
    def expected(cls, rows: Sequence[Row]) -> Ints:
        """The content after `rows` have been fed."""
        layer = cls()
        layer.feed(rows)
        return layer.content()

    def can_rewind(self, to: int) -> bool:
        return 0 <= to <= self.length

    def rewind(self, to: int) -> None:
        del self.held[to:]

    def rows(self, start: int, end: int) -> LayerRows | None:
        if not 0 <= start <= end <= self.length:
            raise ValueError(f"No rows {start} to {end} of {self.length}.")
        return LayerRows((as_array(self.held[start:end]),), (0,))

    def has_room(self, count: int) -> bool:
        return False  # each row is allocated when it comes

    def reserve(self, length: int) -> None:
        pass

    def put(self, rows: LayerRows) -> None:
        self.held.extend((int(i), int(p)) for i, p in rows.arrays[0])

    def bounded(self) -> LayerBounded | None:
        return None

    def can_restore(self, bounded: LayerBounded, length: int) -> bool:
        return False

    def restore(self, bounded: LayerBounded, length: int) -> None:
        raise ValueError("nothing bounded here")


class BoundedLayer(FakeLayer):
    """What every bounded kind has in common: no rows to give or to take."""

    is_bounded = True

    def rows(self, start: int, end: int) -> LayerRows | None:
        return None

    def put(self, rows: LayerRows) -> None:
        raise ValueError("a bounded layer takes no rows")


class WindowLayer(BoundedLayer):
    """The last `window` rows count; SLACK more are kept to go back by."""

    window = 3
    SLACK = 4

    def __init__(self) -> None:
        super().__init__()
        self._length = 0

    @property
    def length(self) -> int:
        return self._length

    @property
    def bounded_bytes(self) -> int:
        return 16 * min(self.length, self.window)

    def feed(self, rows: Sequence[Row]) -> None:
        self._length += len(rows)
        self.held = [*self.held, *rows][-self.window - self.SLACK :]

    def content(self) -> Ints:
        return as_array(self.held[-self.window :])

    def can_rewind(self, to: int) -> bool:
        first = self._length - len(self.held)
        return 0 <= to <= self._length and max(0, to - self.window) >= first

    def rewind(self, to: int) -> None:
        if not self.can_rewind(to):
            raise ValueError(f"the window cannot go back from {self._length} to {to}")
        del self.held[len(self.held) - (self._length - to) :]
        self._length = to

    def bounded(self) -> LayerBounded | None:
        return LayerBounded((self.content(),))

    def can_restore(self, bounded: LayerBounded, length: int) -> bool:
        return len(bounded.arrays[0]) == min(length, self.window)

    def restore(self, bounded: LayerBounded, length: int) -> None:
        if not self.can_restore(bounded, length):
            raise ValueError(f"no bounded part of {length} rows")
        self.held = [(int(i), int(p)) for i, p in bounded.arrays[0]]
        self._length = length


class RecurrentLayer(BoundedLayer):
    """One number that all rows went into; it can only stay where it is, or begin anew."""

    def __init__(self) -> None:
        super().__init__()
        self._length = 0
        self.number = 0

    @property
    def length(self) -> int:
        return self._length

    @property
    def nbytes(self) -> int:
        return 16

    @property
    def bounded_bytes(self) -> int:
        return 16

    def feed(self, rows: Sequence[Row]) -> None:
        for token, position in rows:
            one = np.array([self.number, token, position], dtype="<i8").tobytes()
            self.number = xxhash.xxh3_64_intdigest(one) >> 1
        self._length += len(rows)

    def content(self) -> Ints:
        return as_array([(self.number, self._length)])

    def can_rewind(self, to: int) -> bool:
        return to in (0, self._length)

    def rewind(self, to: int) -> None:
        if not self.can_rewind(to):
            raise ValueError(f"a recurrent state cannot go back from {self._length} to {to}")
        if to == 0:
            self.number = self._length = 0

    def bounded(self) -> LayerBounded | None:
        return LayerBounded((self.content(),))

    def can_restore(self, bounded: LayerBounded, length: int) -> bool:
        return int(bounded.arrays[0][0, 1]) == length

    def restore(self, bounded: LayerBounded, length: int) -> None:
        if not self.can_restore(bounded, length):
            raise ValueError(f"no bounded part of {length} rows")
        self.number, self._length = (int(value) for value in bounded.arrays[0][0])
