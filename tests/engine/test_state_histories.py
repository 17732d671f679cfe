"""States of all kinds of layers through any history, against the ids that were fed."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from ds4tui.engine.state import BoundedState, HostKVLayer, KVLayer, LayerBounded, ModelState
from ds4tui.engine.state.buffers import DeviceBuffer, HostBuffer
from ds4tui.engine.state.window import _Window
from tests.engine.state_histories import TWINS, Judge, Operation, histories, small_buffers
from tests.scale import scaled


@pytest.fixture(params=TWINS, autouse=True)
def twin(request: pytest.FixtureRequest) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        small_buffers(patch)
        yield TWINS[request.param]


@settings(
    max_examples=scaled(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(history=histories)
def test_any_history_leaves_what_its_ids_say(twin: Any, history: list[Operation]) -> None:
    Judge(twin).play(history)


# Every operation after every other, with windows that have moved many times.
LONG = [
    Operation("extend", count=10),
    Operation("put away", share=0.5),
    Operation("step", count=39),
    Operation("put away", share=0.3),
    Operation("rewind", share=0.95),
    Operation("step", count=5, seed=1),
    Operation("extend", count=90, seed=2),
    Operation("step", count=35, seed=3),
    Operation("put away", share=0.0),
    Operation("rewind", share=0.98),
    Operation("step", count=30, seed=2),
    Operation("rewind", share=0.2),
    Operation("copy", share=0.5),
    Operation("rebuild", pick=1, share=0.0),
    Operation("step", count=33, seed=1),
    Operation("rebuild", pick=2, share=0.7, count=3),
    Operation("step", count=20, seed=1),
    Operation("fresh"),
    Operation("rewind", share=0.9),
    Operation("step", count=20, seed=2),
    Operation("wrong"),
    Operation("rewind", share=0.0),
    Operation("rebuild", pick=2, share=0.0),
    Operation("step", count=39, seed=0),
    Operation("step", count=39, seed=2),
]


def test_a_long_history_leaves_what_its_ids_say(twin: Any) -> None:
    Judge(twin).play(LONG)


# -- planted faults ----------------------------------------------------------------------------

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


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(twin: Any, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS[fault](monkeypatch)
    if not twin.in_numpy and "aliases" in fault:
        Judge(twin).play(LONG)  # who holds an MLX array never sees it change: it costs memory
        return
    with pytest.raises((AssertionError, ValueError)):  # seen by the judge, or by the state itself
        Judge(twin).play(LONG)
