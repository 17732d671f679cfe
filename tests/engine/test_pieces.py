"""What is read from disk and kept in memory: it takes no place from what is worth more."""

from pathlib import Path

import pytest

from ds4tui.cache.timeline import Timeline
from ds4tui.engine import disk_store
from ds4tui.engine.pieces import Pieces
from tests.engine.disk_rigs import Desk, opened_rig
from tests.engine.histories import drain
from tests.engine.test_putting_away import branch, parked, tier_of
from tests.fake_state import FakeLayer, RecurrentLayer


@pytest.mark.parametrize(("others", "is_taken"), [(250, False), (20, False), (19, True)])
def test_a_snapshot_from_disk_displaces_only_what_is_worth_less(
    others: int, is_taken: bool
) -> None:
    memory = tier_of(others)
    parked(memory, others)
    read = branch(range(20), FakeLayer, RecurrentLayer)
    Pieces((), read.state.snapshot(), is_bounded_from_disk=True).keep_bounded(memory, read.timeline)
    assert memory.parked_tokens == (0 if is_taken else others)
    assert memory.snapshots_of(read.timeline) == ((20,) if is_taken else ())
    assert [note.kind for note in memory.drain_notes()] == ["evicted" if is_taken else "refused"]


def test_a_snapshot_from_disk_displaces_nothing_that_was_just_put_away() -> None:
    memory = tier_of(10)
    just = parked(memory, 10)
    read = branch(range(20), FakeLayer, RecurrentLayer)
    pieces = Pieces((), read.state.snapshot(), is_bounded_from_disk=True)
    pieces.keep_bounded(memory, read.timeline, {just})
    assert (memory.parked_tokens, memory.snapshot_count) == (10, 0)


@pytest.mark.parametrize("live", [250, 12])
def test_what_a_plan_parks_is_not_pushed_out_by_what_it_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, live: int
) -> None:
    """Also where the branch that is left is worth less than the snapshot is."""
    monkeypatch.setattr(disk_store, "MIN_TOKENS", 2)
    rig, stored, left = opened_rig("fake-recurrent"), list(range(20)), [39, *range(live - 1)]
    left = [token % 40 for token in left]
    before = Desk.of(rig, "kept", tmp_path)
    drain(before.session.sync(Timeline.of(stored)))
    before.session.end_turn()
    before.stored(is_over=True)
    assert before.settle()
    before.disk.close(5.0)
    desk = Desk.of(rig, "kept", tmp_path)
    drain(desk.session.sync(Timeline.of(left)))
    memory = desk.session._memory
    state = desk.session.state
    assert state is not None
    memory._budget = state.nbytes
    plan = desk.session.plan(Timeline.of([*stored, 1, 2]))
    assert (plan.kept, plan.source, plan.put_away) == (20, "disk", "whole")
    desk.session.sync(Timeline.of([*stored, 1, 2]), plan)
    assert memory.parked_tokens == live
    assert desk.session.plan(Timeline.of([*left, 5])).kept == live
    desk.disk.close(5.0)
