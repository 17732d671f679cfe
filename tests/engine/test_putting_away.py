"""Copies of what is left of a branch: how much of it, for what price, and from whose room."""

from typing import Any

import pytest

from ds4tui.cache.causes import Cause, Lost
from ds4tui.cache.memory_tier import NO_ROOM, MemoryTier
from ds4tui.cache.offers import Rates
from ds4tui.cache.timeline import Timeline
from ds4tui.engine.putting_away import Branch, add_snapshot, copied_tail
from ds4tui.engine.state import ModelState
from tests.fake_state import FakeLayer, RecurrentLayer

ROW = 16  # bytes of a row, and of a snapshot


def branch(ids: range, *layers: type[FakeLayer]) -> Branch:
    state: Any = ModelState([layer() for layer in layers or (FakeLayer,)])
    for layer in state.layers:
        layer.feed([(token, place) for place, token in enumerate(ids)])
    return Branch(state, Timeline.of(ids), ())


def tier_of(rows: int) -> MemoryTier:
    return MemoryTier(rows * ROW, Rates(prefill_tokens_per_s=1000), lambda: 0.0)


def parked(memory: MemoryTier, rows: int, nbytes: int = 0) -> int:
    other = branch(range(500, 500 + rows))
    key = memory.park(other.timeline, (), other.state, nbytes or rows * ROW)
    assert key is not None
    return key


def test_only_what_nobody_holds_is_copied() -> None:
    memory = tier_of(1000)
    left = branch(range(30))
    memory.add_segment(left.timeline.prefix(20), (), 10, left.state.copy_rows(10, 20), 10 * ROW)
    tail = copied_tail(memory, left, 10)
    assert tail is not None
    assert (tail.start, tail.rows.start, tail.rows.nbytes) == (20, 20, 10 * ROW)
    tail.keep(memory)
    assert copied_tail(memory, left, 10) is None  # all of it is held
    assert memory.drain_notes() == ()


@pytest.mark.parametrize(("worth", "stays"), [(9, False), (10, True), (15, True)])
def test_a_copy_is_worth_what_nobody_holds(worth: int, stays: bool) -> None:
    """20 rows are cut off, 10 of them are held already."""
    memory = tier_of(20)
    left = branch(range(30))
    memory.add_segment(left.timeline.prefix(20), (), 10, left.state.copy_rows(10, 20), 10 * ROW)
    parked(memory, worth, 10 * ROW)
    holders = {h.holder_id for h in memory.holders() if h.kind == "segment"}
    tail = copied_tail(memory, left, 10, holders)
    assert (tail is None) is stays
    assert memory.parked_tokens == (worth if stays else 0)
    kinds = [note.kind for note in memory.drain_notes()]
    assert kinds == (["dropped"] if stays else ["evicted"])


def test_nothing_that_a_plan_uses_makes_way_for_a_copy() -> None:
    memory = tier_of(10)
    used = parked(memory, 5)
    assert copied_tail(memory, branch(range(30)), 22, {used}) is None
    assert memory.parked_tokens == 5
    assert copied_tail(memory, branch(range(30)), 22) is not None
    assert memory.parked_tokens == 0


def test_a_snapshot_displaces_only_what_is_worth_less_than_what_it_spares() -> None:
    memory = tier_of(30)
    left = branch(range(30), FakeLayer, RecurrentLayer)
    used = parked(memory, 30)  # spares as much as the snapshot of 30 tokens would
    add_snapshot(memory, left.state, left.timeline, "turn")
    assert (memory.snapshot_count, memory.parked_tokens) == (0, 30)
    memory.drop(used, "as a test")
    used = parked(memory, 30 - 1)
    memory._budget = 29 * ROW
    add_snapshot(memory, left.state, left.timeline, "turn", {used})
    assert (memory.snapshot_count, memory.parked_tokens) == (0, 29)
    add_snapshot(memory, left.state, left.timeline, "turn")
    assert (memory.snapshot_count, memory.parked_tokens) == (1, 0)


def test_no_snapshot_that_a_plan_uses_is_thinned_for_another() -> None:
    def thinned(uses: frozenset[int]) -> tuple[frozenset[int], tuple[int, ...]]:
        memory = tier_of(8)  # half of it is for the snapshots of a branch
        for position in (3, 5, 7, 9):
            part = branch(range(position), FakeLayer, RecurrentLayer)
            add_snapshot(memory, part.state, part.timeline, "chunk")
        before = {h.start: h.holder_id for h in memory.holders()}
        whole = branch(range(12), FakeLayer, RecurrentLayer)
        add_snapshot(memory, whole.state, whole.timeline, "chunk", uses)
        after = memory.snapshots_of(whole.timeline)
        return frozenset(key for at, key in before.items() if at not in after), after

    gone, after = thinned(frozenset())
    assert gone and 12 in after
    others, after = thinned(gone)
    assert not others & gone and 12 in after


@pytest.mark.parametrize("is_room", [False, True], ids=["no room", "no memory"])
def test_a_snapshot_that_is_not_taken_is_noted_once_and_missed_by_name(
    is_room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = tier_of(1000 if is_room else 0)
    whole = branch(range(30), FakeLayer, RecurrentLayer)

    def fail(_: ModelState) -> None:
        raise MemoryError

    if is_room:
        monkeypatch.setattr(ModelState, "snapshot", fail)
    for _ in range(3):
        add_snapshot(memory, whole.state, whole.timeline, "turn")
    (note,) = memory.drain_notes()
    said = "there is no memory for a copy" if is_room else NO_ROOM
    assert (note.kind, note.tokens, note.nbytes) == ("refused", 30, ROW)
    assert note.reason == f"snapshot at 30: {said}"
    assert memory.offers(Timeline.of(range(40))).lost == (Lost(Cause.SNAPSHOT_EVICTED, 30),)
    monkeypatch.undo()
    memory._budget = 1000 * ROW
    add_snapshot(memory, whole.state, whole.timeline, "turn")
    assert memory.drain_notes() == ()
    memory._budget = 0
    longer = branch(range(31), FakeLayer, RecurrentLayer)
    add_snapshot(memory, longer.state, longer.timeline, "turn")
    assert [note.tokens for note in memory.drain_notes()] == [1]  # it had been taken meanwhile
