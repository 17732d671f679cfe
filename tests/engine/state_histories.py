"""Random histories of a whole state, and the judge who knows every row that was ever fed.

Each position has an id; what a layer is fed there is looked up by it. So the ids alone say, to
the bit, what each layer must hold, and what a query must find. Three kinds of layers stand side
by side; the windows are so small that rows move often (`small_buffers`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import strategies as st

from ds4tui.engine import capacity
from ds4tui.engine.state import (
    BoundedState,
    HostKVLayer,
    HostRecurrentLayer,
    HostWindowLayer,
    KVLayer,
    ModelState,
    RecurrentLayer,
    RowSegment,
    WindowLayer,
)

HEADS, KEY, VALUE = 2, 4, 3
IDS = 50
WINDOWS = (None, 6, 1, 50, None)  # of the layers that attend; a recurrent one follows
MATRICES, TAIL = (2, 3, 4), (3, 5)
MODULUS = 65_521  # 7 times as much is a whole number in float32

_random = np.random.default_rng(7)
_KEYS = _random.standard_normal((len(WINDOWS), IDS, HEADS, KEY), np.float32)
_VALUES = _random.standard_normal((len(WINDOWS), IDS, HEADS, VALUE), np.float32)


def small_buffers(patch: pytest.MonkeyPatch) -> None:
    for name, rows in (("MOVE_ROWS", 24), ("ALIGNED_ROWS", 4), ("BLOCK_ROWS", 8)):
        patch.setattr(capacity, name, rows)


@dataclass(frozen=True)
class Twin:
    """Layers that keep their rows in MLX, in NumPy, or in NumPy for a kernel that writes them."""

    in_numpy: bool
    writes_itself: bool = False

    def state(self) -> ModelState:
        full, window, recurrent = (
            (HostKVLayer, HostWindowLayer, HostRecurrentLayer)
            if self.in_numpy
            else (KVLayer, WindowLayer, RecurrentLayer)
        )
        layers = [full() if rows is None else window(rows) for rows in WINDOWS]
        return ModelState([*layers, recurrent(MATRICES, TAIL)])

    def extend(self, state: ModelState, ids: list[int], first: int) -> None:
        """Feed ids [first:] to the state, which holds those before, and look at what queries
        of attending layers find."""
        for i, window in enumerate(WINDOWS):
            layer: Any = state.layers[i]
            found = self._appended(layer, *kv_rows(i, ids[first:]))
            low = 0 if window is None else max(0, first + 1 - window)
            for array, wanted in zip(found, kv_rows(i, ids[low:]), strict=True):
                visible = np.asarray(array)[:, array.shape[1] - (len(ids) - low) :]
                assert visible.tobytes() == wanted.tobytes(), f"layer {i} from {first}"
        self._recur(state.layers[-1], ids, first)
        mx.eval([layer.buffers() for layer in state.layers if hasattr(layer, "buffers")])

    def _appended(self, layer: Any, keys: np.ndarray, values: np.ndarray) -> Sequence[Any]:
        if not self.in_numpy:
            return layer.append(mx.array(keys), mx.array(values))
        if not self.writes_itself:
            return layer.append(keys, values)
        count = keys.shape[1]
        key_buffer, value_buffer = layer.reserved(count, (HEADS, KEY), (HEADS, VALUE))
        at, base = layer.length - layer.base, layer.base
        key_buffer[:, :, at : at + count] = keys.swapaxes(1, 2)
        value_buffer[:, at : at + count] = values
        end = layer.length + count - base
        found = key_buffer[:, :, :end].swapaxes(1, 2).copy(), value_buffer[:, :end].copy()
        layer.written(count)
        return found

    def _recur(self, layer: Any, ids: list[int], first: int) -> None:
        matrices, tail = recurrent_arrays(ids)
        if not self.in_numpy:
            layer.replace(mx.array(matrices), mx.array(tail), len(ids) - first)
            return
        held = layer.held()
        for array, new in zip(held, (matrices, tail), strict=True):
            array[...] = new  # as the C++ kernel does it
        layer.replace(*held, len(ids) - first)


TWINS = {"mlx": Twin(False), "numpy": Twin(True), "c++": Twin(True, True)}


def kv_rows(layer: int, ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Keys [heads, n, key] and values [heads, n, value]."""
    return (
        np.ascontiguousarray(_KEYS[layer, ids].swapaxes(0, 1)),
        np.ascontiguousarray(_VALUES[layer, ids].swapaxes(0, 1)),
    )


def recurrent_arrays(ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    value = 0
    for number in ids:
        value = (value * 7 + number + 1) % MODULUS
    tail = np.array([0, 0, 0, *(number + 1 for number in ids)], np.float32)[-3:, None]
    return np.full(MATRICES, value, np.float32), np.broadcast_to(tail, TAIL).copy()


@dataclass(frozen=True)
class Kept:
    """What was put away, with the ids that it stands for."""

    ids: list[int]
    segment: RowSegment
    snapshot: BoundedState | None


@dataclass(frozen=True)
class Operation:
    """`share` (0 to 1) picks a place, `pick` one of what was put away, `seed` new ids."""

    kind: str
    share: float = 0.5
    count: int = 3
    seed: int = 0
    pick: int = 0


KINDS = ("extend", "step", "rewind", "put away", "rebuild", "fresh", "copy", "wrong")

operations = st.builds(
    Operation,
    kind=st.sampled_from(KINDS),
    share=st.one_of(st.floats(0, 1), st.floats(0.9, 1)),
    count=st.integers(1, 90),
    seed=st.integers(0, 3),
    pick=st.integers(0, 9),
)
histories = st.lists(operations, min_size=1, max_size=14)


class Judge:
    """Plays operations on one state; AssertionError when it holds or says something wrong."""

    def __init__(self, twin: Twin) -> None:
        self.twin, self.state, self.ids = twin, twin.state(), list[int]()
        self.kept: list[Kept] = []

    def play(self, history: list[Operation]) -> None:
        for operation in history:
            getattr(self, "_" + operation.kind.replace(" ", "_"))(operation)
            self.examine()

    def examine(self) -> None:
        """Everything live and everything put away is what its ids say."""
        assert self.state.length == len(self.ids)
        check_rows(self.state, self.ids, 0, len(self.ids))
        check_bounded(self.state.snapshot(), self.ids)
        assert self.state.nbytes == sum(allocated(layer) for layer in self.state.layers)
        for kept in self.kept:
            check_rows(kept.segment, kept.ids, kept.segment.start, kept.segment.end)
            check_bounded(kept.snapshot, kept.ids)

    def _extend(self, operation: Operation) -> None:
        random = np.random.default_rng(operation.seed)
        first = len(self.ids)
        self.ids = self.ids + random.integers(0, IDS, operation.count).tolist()
        self.twin.extend(self.state, self.ids, first)

    def _step(self, operation: Operation) -> None:
        for _ in range(operation.count % 40):
            self._extend(Operation("extend", count=1, seed=operation.seed))

    def _rewind(self, operation: Operation) -> None:
        """Never `None` of layers, never a part of them; refused where rows are gone."""
        to = round(operation.share * len(self.ids))
        recurrent, attending = self.state.layers[-1], ModelState(self.state.layers[:-1])
        if self.state.can_rewind(to):
            self.state.rewind(to)
            self.ids = self.ids[:to]
        elif attending.can_rewind(to):
            attending.rewind(to)  # as a model without a recurrent layer
            self.ids = self.ids[:to]
            recurrent.rewind(0)
            self.twin._recur(recurrent, self.ids, 0)
        else:
            with pytest.raises(ValueError):
                self.state.rewind(to)

    def _put_away(self, operation: Operation) -> None:
        start = round(operation.share * len(self.ids))
        segment = self.state.copy_rows(start, len(self.ids))
        assert segment.nbytes == self.state.rows_bytes(start, len(self.ids))
        snapshot = self.state.snapshot()
        assert snapshot is not None and snapshot.nbytes <= self.state.snapshot_bytes
        self.kept.append(Kept(list(self.ids), segment, snapshot))

    def _rebuild(self, operation: Operation) -> None:
        """Back to something that was put away, if what it starts behind is still here."""
        if not self.kept:
            return
        kept = self.kept[operation.pick % len(self.kept)]
        common = common_prefix(self.ids, kept.ids)
        keep = kept.segment.start + round(operation.share * (common - kept.segment.start))
        if common < kept.segment.start:
            return
        parts = [(kept.segment, keep, len(kept.ids))]
        if operation.count % 2 and keep < len(kept.ids):  # in two parts
            middle = (keep + len(kept.ids)) // 2
            parts = [(kept.segment, keep, middle), (kept.segment, middle, len(kept.ids))]
        self.state.rebuild(keep, parts, kept.snapshot)
        self.ids = list(kept.ids)

    def _fresh(self, operation: Operation) -> None:
        """Another state takes over from this one, by its rows and a snapshot."""
        state = self.twin.state()
        state.rebuild(0, [(self.state, 0, len(self.ids))], self.state.snapshot())
        self.state = state

    def _copy(self, operation: Operation) -> None:
        end = len(self.ids)
        start = round(operation.share * end)
        check_rows(self.state.copy_rows(start, end), self.ids, start, end)

    def _wrong(self, operation: Operation) -> None:
        """What cannot be is refused before anything changes (`examine` sees to that)."""
        end, snapshot = len(self.ids), self.state.snapshot()
        segment = self.state.copy_rows(0, end)
        late = BoundedState(end + 1, snapshot.layers) if snapshot else None
        for keep, parts, bounded in (
            (end + 1, [], late),
            (end, [], late),
            (0, [(segment, 0, end)], None) if end else (1, [], None),
            (0, [(segment, 0, end + 1)], late),
            (end, [(segment, end + 1, end + 1)], snapshot),
        ):
            with pytest.raises(ValueError):
                self.state.rebuild(keep, parts, bounded)


def common_prefix(a: list[int], b: list[int]) -> int:
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


def check_rows(source: Any, ids: list[int], start: int, end: int) -> None:
    for i, window in enumerate(WINDOWS):
        rows = source.rows(i, start, end)
        assert (rows is None) == (window is not None)
        if rows is None or not rows.arrays:
            continue
        for array, axis, wanted in zip(
            rows.arrays, rows.axes, kv_rows(i, ids[start:end]), strict=True
        ):
            own = np.asarray(array).swapaxes(1, axis)
            assert own.tobytes() == wanted.tobytes(), f"layer {i}, rows {start} to {end}"


def check_bounded(snapshot: BoundedState | None, ids: list[int]) -> None:
    assert snapshot is not None and snapshot.position == len(ids)
    for i, window in enumerate(WINDOWS):
        part = snapshot.layers[i]
        assert (part is None) == (window is None)
        if part is None or window is None:
            continue
        wanted = kv_rows(i, ids[max(0, len(ids) - (window - 1)) :] if window > 1 else [])
        assert part.nbytes == sum(array.nbytes for array in wanted)
        for j, (array, rows) in enumerate(zip(part.arrays, wanted, strict=bool(part.arrays))):
            # NumPy's keys lie as [heads, size, rows].
            transposed = isinstance(array, np.ndarray) and j == 0
            own = array.swapaxes(1, 2) if transposed else np.asarray(array)
            assert own.tobytes() == rows.tobytes(), f"layer {i}: the window at {len(ids)}"
    part = snapshot.layers[-1]
    assert part is not None
    for array, wanted in zip(part.arrays, recurrent_arrays(ids), strict=True):
        assert np.asarray(array).tobytes() == wanted.tobytes(), "the recurrent layer"


def allocated(layer: Any) -> int:
    if hasattr(layer, "_buffers"):
        return sum(b.array.nbytes for b in layer._buffers if b.array is not None)
    return sum(array.nbytes for array in layer._kept or ())
