"""Planted faults of windows, snapshots and segments: what a broken layer state would do.

Each reports what a right one would, so that only the rows can tell (test_state_histories.py), or
what a model makes of them (tests/parity/test_faults.py).
"""

from collections.abc import Callable
from typing import Any

import pytest

from ds4tui.engine.state import BoundedState, HostKVLayer, KVLayer, LayerBounded, ModelState
from ds4tui.engine.state.buffers import DeviceBuffer, HostBuffer
from ds4tui.engine.state.window import _Window

Plant = Callable[[pytest.MonkeyPatch], None]


def row_off_by_one(patch: pytest.MonkeyPatch) -> None:
    """A window's rows are put back one place further than they were."""
    restore = _Window.restore

    def faulty(layer: _Window, bounded: LayerBounded, length: int) -> None:
        restore(layer, bounded, length)
        layer.base += 1

    patch.setattr(_Window, "restore", faulty)


def forgotten_offset(patch: pytest.MonkeyPatch) -> None:
    """A window that moved is read as if its first row were that of position 0."""
    move = _Window._begin_at

    def faulty(layer: _Window, base: int) -> None:
        move(layer, 0 if base > 0 and layer.held_from == 0 else base)

    patch.setattr(_Window, "_begin_at", faulty)


def rewind_beyond_the_slack(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Window, "can_rewind", lambda layer, to: 0 <= to <= layer.length)


def moved_in_the_wrong_order(patch: pytest.MonkeyPatch) -> None:
    """Rows that move to the front overwrite what is still to move."""

    def from_behind(buffer: HostBuffer, start: int, end: int) -> None:
        view = buffer.view(0, end).swapaxes(0, buffer.axis)
        for row in reversed(range(start, end)):
            view[row - start] = view[row].copy()

    def ring(buffer: DeviceBuffer, start: int, end: int) -> None:
        """As a ring has them: the newest before the oldest."""
        make(buffer, buffer.capacity, buffer.array, start, end)
        newest = buffer.view(end - start - 1, end - start)
        buffer.write(buffer.view(0, end - start - 1), 1)
        buffer.write(newest, 0)

    make = DeviceBuffer.make
    patch.setattr(HostBuffer, "move", from_behind)
    patch.setattr(DeviceBuffer, "move", ring)


def snapshot_one_row_late(patch: pytest.MonkeyPatch) -> None:
    """What is said to be of one position is taken a row later."""
    snapshot = ModelState.snapshot

    def faulty(state: ModelState) -> BoundedState | None:
        taken = snapshot(state)
        return taken and BoundedState(max(0, taken.position - 1), taken.layers)

    patch.setattr(ModelState, "snapshot", faulty)


def snapshot_that_aliases(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        "ds4tui.engine.state.window.own_copies", lambda pairs: tuple(view for view, _ in pairs)
    )


def segment_that_aliases(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("ds4tui.engine.state.layer.own_copies", lambda pairs: tuple(v for v, _ in pairs))


def part_one_row_early(patch: pytest.MonkeyPatch) -> None:
    """Rows are copied behind one that should have gone."""
    for kind in (KVLayer, HostKVLayer):
        patch.setattr(kind, "put", _putting_early(kind.put))


def _putting_early(put: Callable[..., None]) -> Callable[..., None]:
    def faulty(layer: Any, rows: Any) -> None:
        layer.length -= 1 if layer.length and rows.count else 0
        put(layer, rows)
        layer.length += 1 if layer.length and rows.count else 0

    return faulty


FAULTS: dict[str, Plant] = {
    "a window's row off by one": row_off_by_one,
    "a moved window read from 0": forgotten_offset,
    "a rewind beyond the slack": rewind_beyond_the_slack,
    "rows moved in the wrong order": moved_in_the_wrong_order,
    "a snapshot one row late": snapshot_one_row_late,
    "a snapshot that aliases the live buffer": snapshot_that_aliases,
    "a segment that aliases the live buffer": segment_that_aliases,
    "a part put back one row early": part_one_row_early,
}
