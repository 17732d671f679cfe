"""The memory tier: look-ups, what goes and what is said about it."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ds4tui.cache import memory_tier
from ds4tui.cache.causes import Cause, Lost
from ds4tui.cache.eviction import HALF_LIFE_S
from ds4tui.cache.memory_tier import MemoryTier
from ds4tui.cache.offers import HeldSnapshot, Rates
from ds4tui.cache.outline import Turn
from ds4tui.cache.timeline import Timeline

ROW = 10  # bytes of a row


class State:
    """A handle that is asked one thing only."""

    def can_rewind(self, to: int) -> bool:
        return False


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def branch(start: int, end: int, name: int = 1) -> Timeline:
    """`start` ids that all branches share, then those of branch `name`."""
    return Timeline.of(np.concatenate((np.arange(start), name * 10**6 + np.arange(start, end))))


def tier_of(rows: int, clock: Clock | None = None) -> MemoryTier:
    return MemoryTier(rows * ROW, Rates(prefill_tokens_per_s=1000), clock or Clock())


def park(tier: MemoryTier, timeline: Timeline, **others: Any) -> int | None:
    return tier.park(timeline, (), State(), len(timeline) * ROW, **others)


def segment(tier: MemoryTier, timeline: Timeline, start: int, **others: Any) -> int | None:
    nbytes = (len(timeline) - start) * ROW
    return tier.add_segment(timeline, (), start, object(), nbytes, **others)


def snapshot(tier: MemoryTier, timeline: Timeline, rows: int = 1, point: str = "turn") -> Any:
    return tier.add_snapshot(timeline, object(), rows * ROW, point)


def live(tier: MemoryTier, timeline: Timeline) -> Callable[[Timeline], None]:
    """Attach a session; the function that changes what it holds."""
    holds = [timeline]
    tier.attach(lambda: holds[0])
    return lambda now: holds.__setitem__(0, now)


# -- look-ups ------------------------------------------------------------------------------------


def test_an_empty_tier_offers_its_room() -> None:
    offers = tier_of(10).offers(branch(5, 9))
    assert (offers.rows, offers.snapshots, offers.free_bytes) == ((), (), 100)


def test_what_is_held_of_a_timeline() -> None:
    tier = tier_of(10_000)
    whole = park(tier, branch(100, 300))
    tail = segment(tier, branch(100, 200, 2), 100)
    at = snapshot(tier, branch(100, 100))
    snapshot(tier, branch(100, 130, 3))
    offers = tier.offers(branch(100, 250, 2))
    rows = {held.holder_id: (held.kind, held.start, held.end, held.common) for held in offers.rows}
    assert rows == {whole: ("parked", 0, 300, 100), tail: ("segment", 100, 200, 200)}
    assert offers.snapshots == (HeldSnapshot(at, 100, nbytes=10),)
    assert offers.free_bytes == 100_000 - 3_000 - 1_000 - 20
    assert (tier.parked_bytes, tier.segment_bytes, tier.snapshot_bytes) == (3_000, 1_000, 20)
    assert (tier.parked_count, tier.segment_count, tier.snapshot_count) == (1, 1, 2)


def test_a_look_up_changes_nothing() -> None:
    """Invariant 2."""
    clock = Clock()
    tier = tier_of(10_000, clock)
    park(tier, branch(100, 300))
    first = tier.offers(branch(100, 300))
    assert tier.offers(branch(100, 300)) == first
    assert tier.drain_notes() == ()


def test_a_look_up_compares_each_id_once_however_much_is_held() -> None:
    tier = tier_of(10**9)
    for name in range(1, 120):
        segment(tier, branch(3_000, 3_500, name), 3_000)
        snapshot(tier, branch(3_000, 3_100, name))
    wanted = branch(3_000, 9_000, 50)
    tier._tree.compared = 0
    tier.offers(wanted)
    assert tier._tree.compared <= len(wanted)


def test_only_rows_that_nobody_holds_need_a_copy() -> None:
    tier = tier_of(10_000)
    segment(tier, branch(100, 300), 100)
    assert tier.unheld_from(branch(100, 300), 100) == 300
    assert tier.unheld_from(branch(100, 350), 100) == 300
    assert tier.unheld_from(branch(100, 350), 90) == 90  # what is before the segment is nowhere
    assert tier.unheld_from(branch(100, 350, 2), 100) == 100


def test_a_snapshot_is_held_once() -> None:
    tier = tier_of(10_000)
    first = snapshot(tier, branch(100, 200), point="chunk")
    assert snapshot(tier, branch(100, 200), point="turn") == first
    assert tier.snapshot_count == 1


def test_handles_come_back_as_they_were_given() -> None:
    tier, state, timeline = tier_of(10_000), State(), branch(100, 200)
    outline = (Turn(0, 100, "user", b"a"),)
    key = tier.park(timeline, outline, state, 10)
    assert key is not None
    assert tier.handle(key) is state
    assert (tier.timeline(key), tier.outline(key)) == (timeline, outline)
    assert tier.take_parked(key) is state
    assert tier.offers(timeline).rows == ()
    with pytest.raises(KeyError):
        tier.take_parked(key)


def test_only_parked_states_can_be_taken() -> None:
    tier = tier_of(10_000)
    key = segment(tier, branch(100, 200), 100)
    assert key is not None
    with pytest.raises(KeyError):
        tier.take_parked(key)
    assert tier.segment_count == 1


def test_a_segment_has_rows() -> None:
    with pytest.raises(ValueError, match="segment"):
        segment(tier_of(9), branch(5, 9), 9)


# -- what goes -----------------------------------------------------------------------------------


def test_two_conversations_that_share_a_system_prompt_keep_what_is_theirs() -> None:
    """T47: B does not overwrite A's place."""
    tier = tier_of(6_000)
    a, b = park(tier, branch(2_000, 3_000, 1)), park(tier, branch(2_000, 2_900, 2))
    assert a is not None and b is not None
    for name, key in ((1, a), (2, b)):
        rows = {h.holder_id: h.common for h in tier.offers(branch(2_000, 3_500, name)).rows}
        assert rows[key] == (3_000 if name == 1 else 2_900)


def test_a_side_request_never_displaces_a_long_session() -> None:
    """Invariant 5. They share the system prompt; the side request is the newer one."""
    clock = Clock()
    tier = tier_of(165_755 + 100, clock)
    long = park(tier, branch(4_900, 165_755, 1))
    clock.now = 60.0
    assert park(tier, branch(4_900, 4_977, 2)) is None
    (note,) = tier.drain_notes()
    assert (note.kind, note.tokens) == ("refused", 77)
    assert note.reason == (
        "parked branch of 4,977 tokens: there is no room for it among what is worth more"
    )
    assert [held.holder_id for held in tier.offers(branch(4_900, 165_755, 1)).rows] == [long]


def test_a_long_session_displaces_side_requests() -> None:
    tier = tier_of(166_000)
    sides = [park(tier, branch(4_900, 4_977, name)) for name in range(2, 12)]
    assert park(tier, branch(4_900, 165_755, 1)) is not None
    assert None not in sides
    notes = tier.drain_notes()
    assert {note.kind for note in notes} == {"evicted"}
    assert len(notes) + tier.parked_count == 11


def test_what_was_left_alone_for_long_gives_way() -> None:
    clock = Clock()
    tier = tier_of(1_000, clock)
    park(tier, branch(0, 1_000, 1))
    clock.now = 1.5 * HALF_LIFE_S
    assert park(tier, branch(0, 300, 2)) is None
    clock.now = 2 * HALF_LIFE_S
    assert park(tier, branch(0, 300, 2)) is not None


def test_what_is_about_to_be_used_stays() -> None:
    """T114, invariant 2: the entry that is about to hit is not what makes room."""
    tier = tier_of(1_000)
    small = park(tier, branch(0, 100, 1))
    assert small is not None
    assert park(tier, branch(0, 950, 2), keep={small}) is None
    assert not tier.make_room(950 * ROW, keep={small})
    assert tier.parked_count == 1
    assert park(tier, branch(0, 950, 2)) is not None


def test_what_cannot_be_had_evicts_nothing() -> None:
    """Invariant 3."""
    tier = tier_of(1_000)
    for name in range(4):
        park(tier, branch(0, 200, name + 1))
    assert not tier.make_room(1_001 * ROW)
    assert park(tier, branch(0, 1_001, 9)) is None
    assert tier.parked_count == 4


def test_a_copy_adds_nothing_to_what_is_lost() -> None:
    """The segment's rows are the parked state's too: it goes before what is shorter."""
    tier = tier_of(1_500)
    park(tier, branch(0, 800, 1))
    copied = segment(tier, branch(0, 400, 1), 0)
    park(tier, branch(0, 200, 2))
    park(tier, branch(0, 300, 3))
    (note,) = tier.drain_notes()
    assert (note.kind, note.tokens) == ("evicted", 0)
    assert copied not in [held.holder_id for held in tier.offers(branch(0, 800, 1)).rows]


def test_leaves_go_before_stems() -> None:
    """Invariant 4: the old stem stays as long as something young leans on it."""
    clock = Clock()
    tier = tier_of(1_000, clock)
    stem = segment(tier, branch(0, 300, 1), 0)
    clock.now = 20 * HALF_LIFE_S
    leaf = segment(tier, branch(0, 600, 1), 300)
    other = park(tier, branch(0, 290, 2))
    assert None not in (stem, leaf, other)
    assert park(tier, branch(0, 295, 3)) is not None
    assert [held.holder_id for held in tier.offers(branch(0, 600, 1)).rows] == [stem, leaf]
    assert tier.offers(branch(0, 290, 2)).rows == ()


def test_beginning_where_another_begins_is_not_leaning_on_it() -> None:
    tier = tier_of(1_000)
    park(tier, branch(0, 100, 1))
    long = segment(tier, branch(0, 600, 1), 100)
    short = segment(tier, branch(0, 200, 1), 100)
    assert short is not None
    assert park(tier, branch(0, 750, 2), keep={short}) is not None
    held = [held.holder_id for held in tier.offers(branch(0, 600, 1)).rows]
    assert short in held and long not in held


def test_a_snapshot_is_worth_the_replay_that_it_saves() -> None:
    tier = tier_of(180)
    far = snapshot(tier, branch(0, 400, 1), rows=30)
    near = snapshot(tier, branch(0, 420, 1), rows=30)
    other = snapshot(tier, branch(0, 100, 2), rows=30)
    assert None not in (far, near, other)
    assert tier.make_room(100 * ROW)
    (note,) = tier.drain_notes()
    assert (note.kind, note.tokens) == ("evicted", 20)
    assert note.reason.startswith("snapshot at 420: ")


def test_a_copy_is_worth_its_rows_once_the_original_was_taken() -> None:
    tier = tier_of(1_000)
    key = park(tier, branch(0, 500, 1))
    copied = segment(tier, branch(0, 300, 1), 100)
    park(tier, branch(0, 50, 2))
    assert key is not None
    tier.take_parked(key)
    assert tier.make_room(751 * ROW)
    assert [note.tokens for note in tier.drain_notes()] == [50]
    assert tier.handle(copied or 0) is not None


def test_a_snapshot_where_branches_part_is_not_thinned() -> None:
    tier = tier_of(100)
    timeline = branch(4_000, 4_000)
    live(tier, timeline)
    for at in range(100, 2_001, 100):
        snapshot(tier, timeline.prefix(at), rows=5, point="chunk")
    fork = tier.snapshots_of(timeline)[-2]
    segment(tier, branch(fork, fork + 10, 3), fork)
    for at in range(2_100, 4_001, 100):
        snapshot(tier, timeline.prefix(at), rows=5, point="chunk")
    assert fork in tier.snapshots_of(timeline)
    assert len(tier.snapshots_of(timeline)) <= 10


def test_what_nothing_leads_up_to_is_pruned_with_a_reason() -> None:
    tier = tier_of(10_000)
    holds = live(tier, branch(100, 500))
    segment(tier, branch(100, 600), 500)
    kept = snapshot(tier, branch(100, 80))
    snapshot(tier, branch(100, 400))
    tier.settle()
    assert tier.drain_notes() == ()
    holds(branch(100, 100))  # the live state went back and its tail was given up
    tier.settle()
    notes = tier.drain_notes()
    assert {note.kind for note in notes} == {"pruned"}
    assert any("no rows lead up to it any more" in note.reason for note in notes)
    assert tier.segment_count == 0
    assert [s.snapshot_id for s in tier.offers(branch(100, 600)).snapshots] == [kept]


def test_one_missing_row_makes_no_orphan_of_a_long_branch() -> None:
    """The last token of a resident prompt is evaluated again while the long branch behind it is
    kept aside, and there was no room for one row more."""
    tier = tier_of(160_778 + 3)
    holds = live(tier, branch(4_977, 4_977))
    long = segment(tier, branch(4_977, 165_755), 4_977)
    end = snapshot(tier, branch(4_977, 165_755), rows=3)
    holds(branch(4_976, 4_976))
    tier.settle()
    assert tier.drain_notes() == ()
    holds(branch(4_977, 4_977))
    tier.settle()
    offers = tier.offers(branch(4_977, 165_755))
    assert [held.holder_id for held in offers.rows] == [long]
    assert [held.snapshot_id for held in offers.snapshots] == [end]


@pytest.mark.parametrize(("missing", "is_orphan"), [(49, False), (50, True), (51, True)])
def test_rows_behind_as_many_that_are_nowhere_are_an_orphan(missing: int, is_orphan: bool) -> None:
    """Invariant 4: a gap must be shorter than what is held behind it."""
    tier = tier_of(10_000)
    live(tier, branch(100, 100))
    segment(tier, branch(100, 100 + missing + 50), 100 + missing)
    tier.settle()
    assert tier.segment_count == (0 if is_orphan else 1)
    assert [note.kind for note in tier.drain_notes()] == (["pruned"] if is_orphan else [])


@pytest.mark.parametrize(("start", "is_orphan"), [(59, False), (60, True)])
def test_rows_before_an_earlier_gap_do_not_make_up_for_a_later_one(
    start: int, is_orphan: bool
) -> None:
    """Else to cover the earlier gap made an orphan of what is behind the later one."""
    tier = tier_of(10_000)
    holds = live(tier, branch(10, 10))
    segment(tier, branch(40, 40), 20)
    segment(tier, branch(80, 80), start)
    tier.settle()
    assert tier.segment_count == (1 if is_orphan else 2)
    holds(branch(20, 20))
    tier.settle()
    assert tier.segment_count == (1 if is_orphan else 2)


def test_rows_that_are_live_are_credited_to_nobody_wherever_the_live_state_ends() -> None:
    tier = tier_of(10_000)
    held = park(tier, branch(100, 300))
    live(tier, branch(100, 250))
    assert held is not None
    tier.drop(held, "as a test")
    assert [note.tokens for note in tier.drain_notes()] == [50]


def test_nothing_is_taken_for_an_orphan_while_a_session_changes_branches() -> None:
    """Between two timelines it holds none, and room is made for what it puts away."""
    tier = tier_of(250)
    holds = live(tier, branch(100, 300))
    at = [snapshot(tier, branch(100, end), rows=20) for end in (80, 300)]
    park(tier, branch(0, 20, 5))
    holds(Timeline.empty())
    assert segment(tier, branch(100, 300), 100) is not None
    holds(branch(100, 100))
    tier.settle()
    assert [s.snapshot_id for s in tier.offers(branch(100, 300)).snapshots] == at
    assert [note.kind for note in tier.drain_notes()] == ["evicted"]


def test_without_a_session_nothing_is_taken_for_an_orphan() -> None:
    tier = tier_of(10_000)
    segment(tier, branch(100, 600), 500)
    tier.settle()
    assert tier.segment_count == 1


def test_what_leans_on_a_state_that_was_taken_stays_until_it_is_live() -> None:
    tier = tier_of(10_000)
    holds = live(tier, branch(100, 150, 2))
    key = park(tier, branch(100, 500))
    assert key is not None
    at = snapshot(tier, branch(100, 300))
    tier.take_parked(key)
    park(tier, branch(100, 150, 2))
    assert tier.make_room(tier.budget_bytes - tier.nbytes)
    assert [s.snapshot_id for s in tier.offers(branch(100, 300)).snapshots] == [at]
    holds(branch(100, 500))
    tier.settle()
    assert [s.snapshot_id for s in tier.offers(branch(100, 300)).snapshots] == [at]
    assert "pruned" not in {note.kind for note in tier.drain_notes()}


def test_the_budget_is_asked_each_time() -> None:
    budget = [1_000 * ROW]
    tier = MemoryTier(lambda: budget[0], clock=Clock())
    park(tier, branch(0, 400, 1))
    park(tier, branch(0, 500, 2))
    budget[0] = 600 * ROW
    assert tier.make_room(0)
    assert (tier.parked_count, tier.nbytes) == (1, 500 * ROW)


def test_at_most_so_many_things_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 7."""
    monkeypatch.setattr(memory_tier, "MAX_ENTRIES", 20)
    tier = tier_of(10**9)
    for name in range(1, 60):
        segment(tier, branch(100, 200 + name, name), 100)
        snapshot(tier, branch(100, 150, name))
    assert tier.segment_count + tier.snapshot_count <= 20
    newest = tier.offers(branch(100, 300, 59)).rows
    assert [held.end for held in newest if held.start == 100] == [259]


def test_hundreds_of_forks_leave_nothing_behind() -> None:
    tier = tier_of(3_000)
    holds = live(tier, branch(1_000, 1_200, 0))
    for name in range(1, 400):
        segment(tier, branch(1_000, 1_200, name - 1), 1_000)
        holds(branch(1_000, 1_200, name))
        snapshot(tier, branch(1_000, 1_100, name))
        tier.settle()
        assert tier.nbytes <= tier.budget_bytes
    holds(Timeline.empty())
    tier.settle()
    assert (tier.nbytes, tier._tree.nbytes) == (0, 0)
    assert len(tier.drain_notes()) <= 256
    assert len(tier._tombstones) <= 64 + 128


def test_a_snapshot_that_is_refused_thins_nothing() -> None:
    """Invariant 3: half of the budget is for them, and each of three is worth more than it."""
    tier = tier_of(12)
    assert tier.park(branch(0, 400, 2), (), State(), 6 * ROW) is not None
    for at in (100, 200, 300):
        assert snapshot(tier, branch(0, at, 1), rows=2) is not None
    assert snapshot(tier, branch(0, 301, 1), rows=2) is None
    assert tier.snapshots_of(branch(0, 301, 1)) == (100, 200, 300)
    assert [note.kind for note in tier.drain_notes()] == ["refused"]


# -- what is said --------------------------------------------------------------------------------


def test_a_branch_that_was_evicted_is_missed_by_name() -> None:
    tier = tier_of(1_000)
    outline = (Turn(0, 300, "system", b"s"), Turn(300, 600, "user", b"u"))
    tier.park(branch(300, 900, 1), outline, State(), 900 * ROW)
    assert tier.offers(branch(300, 950, 1)).lost == ()
    park(tier, branch(0, 950, 2))
    assert tier.offers(branch(300, 950, 1)).lost == (Lost(Cause.BRANCH_EVICTED, 900),)
    fork = branch(300, 900, 1).prefix(700).extended(range(50))
    assert tier.offers(fork).lost == (Lost(Cause.BRANCH_EVICTED, 600),)
    assert tier.offers(branch(0, 950, 7)).lost == ()


def test_a_snapshot_that_was_evicted_is_missed_by_name() -> None:
    tier = tier_of(1_000)
    snapshot(tier, branch(0, 400), rows=300)
    park(tier, branch(0, 950, 2))
    assert Lost(Cause.SNAPSHOT_EVICTED, 400) in tier.offers(branch(0, 500)).lost


def test_a_branch_has_few_snapshots_however_much_room_there_is() -> None:
    tier = tier_of(10**9)
    live(tier, branch(0, 40_000))
    for end in range(50, 40_050, 50):
        snapshot(tier, branch(0, end))
        assert tier.snapshot_count <= memory_tier._SNAPSHOTS_MAX
    stands = tier.snapshots_of(branch(0, 40_000))
    gaps = [after - before for before, after in itertools.pairwise((0, *stands))]
    # Near the end as close as they were taken; never farther apart than a part of the way back.
    assert gaps[-1] == 50
    ends = [40_000 - stand for stand in stands]
    assert all(gap <= max(50, 0.15 * (way + gap)) for gap, way in zip(gaps, ends, strict=True))


def test_old_snapshots_are_thinned_and_the_worst_replay_is_known() -> None:
    tier = tier_of(100)
    timeline = branch(20_000, 20_000)
    holds = live(tier, timeline)
    for at in range(200, 20_001, 200):
        snapshot(tier, timeline.prefix(at), rows=5, point="chunk")
    positions = tier.snapshots_of(timeline)
    assert len(positions) <= 10
    assert positions[-1] == 20_000
    gaps = [after - before for before, after in zip((0, *positions), positions, strict=False)]
    assert tier.worst_replay(timeline) == max(gaps)
    notes = tier.drain_notes()
    assert {note.kind for note in notes} == {"thinned"}
    assert notes[0].reason.endswith("others stand near it, and room is short")
    holds(timeline)


def test_snapshots_along_what_is_live_are_in_use() -> None:
    """The system prompt's snapshot of a session that has lasted for hours."""
    clock = Clock()
    tier = tier_of(100, clock)
    live(tier, branch(5_000, 6_000))
    old = snapshot(tier, branch(5_000, 5_000), rows=50, point="system")
    clock.now = 10 * HALF_LIFE_S
    tier.settle()
    assert snapshot(tier, branch(5_000, 5_900), rows=60) is None
    assert [s.snapshot_id for s in tier.offers(branch(5_000, 6_000)).snapshots] == [old]


def test_dropping_says_why() -> None:
    tier = tier_of(100)
    key = park(tier, branch(0, 50))
    assert key is not None
    tier.drop(key, "the model is closed")
    tier.drop(key, "twice")
    assert [note.reason for note in tier.drain_notes()] == [
        "parked branch of 50 tokens: the model is closed"
    ]
