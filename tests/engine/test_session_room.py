"""What is put away and what goes where room is short, and that it is what was said."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.cache import memory_tier
from ds4tui.cache.candidates import covered_to
from ds4tui.cache.kvstore import DiskTier
from ds4tui.cache.memory_tier import MemoryTier
from ds4tui.cache.offers import HOLDER_LIVE, HeldRows, Rates
from ds4tui.cache.plan import SyncPlan
from ds4tui.cache.timeline import Timeline
from ds4tui.engine.loaded import LoadedModel
from ds4tui.engine.pool import Pool
from ds4tui.engine.session import Session
from ds4tui.errors import OutOfMemory
from tests.engine.histories import DeviceFault, FailingModel, drain, histories, outline_of
from tests.fake_model import ByteTokenizer, FakeModel
from tests.fake_state import FakeLayer, RecurrentLayer, WindowLayer
from tests.scale import scaled

ROW = 32  # bytes of a row in the fake model's state


def pool_of(room_rows: int, sessions: int = 1, context: int = 700, **loaded: Any) -> Pool:
    """Live states and what is put away share the room, as in the app."""
    model = FailingModel(FakeModel(vocab_size=3000, context_tokens=context))
    values = {"available_bytes": lambda: 1 << 40, "sessions": sessions, **loaded}
    made = LoadedModel("fake", model, ByteTokenizer(), **values)  # type: ignore[arg-type]
    pool = Pool(made, 1 << 40)
    pool._pools = pool._pools.__class__(room_rows * ROW, 0, 0, 0, 0, 0, 0)
    return pool


def asked(pool: Pool, ids: Sequence[int], number: int = 1, busy: Sequence[int] = ()) -> SyncPlan:
    session = pool.sessions[number - 1]
    wanted, outline = Timeline.of(ids), outline_of(len(ids), 40)
    pool.begin(session)
    plan = pool.admitted(session, wanted, outline, busy)
    prefill = session.sync(wanted, plan)
    while not prefill.finished:
        prefill.step(64)
        pool.stepped()
    session.end_turn()
    return plan


def notes(pool: Pool) -> list[tuple[str, int]]:
    return [(note.kind, note.tokens) for note in pool.memory.drain_notes()]


LONG, SHORT, NEXT = range(600), range(1000, 1150), range(2000, 2300)


# -- the wanted state grows ------------------------------------------------------------------------


@pytest.mark.parametrize("room_rows", [1000, 910])
def test_a_short_branch_does_not_push_out_a_long_one_when_the_next_prompt_needs_its_place(
    room_rows: int,
) -> None:
    """600 parked, 150 live, a prompt of 300: there is no place for the 150."""
    pool = pool_of(room_rows)
    asked(pool, LONG)
    asked(pool, SHORT)
    plan = asked(pool, NEXT)
    assert (plan.put_away, plan.lacking_bytes) == ("drop", 0)
    assert "150 tokens of the old branch dropped (no room)" in plan.reason
    assert notes(pool) == []
    assert pool.memory.parked_tokens == 600
    assert asked(pool, [*LONG, 5]).to_evaluate == 1
    assert asked(pool, [*SHORT, 5]).cause == "branch evicted"


def test_what_must_go_in_any_case_leaves_its_place_to_what_fits() -> None:
    """600 parked, 150 live, a prompt of 300, room for 850: the long branch cannot stay, so the
    short one can."""
    pool = pool_of(850)
    asked(pool, LONG)
    asked(pool, SHORT)
    plan = asked(pool, NEXT)
    assert notes(pool) == [("evicted", 600)]
    assert (plan.put_away, pool.memory.parked_tokens) == ("whole", 150)
    assert pool.memory.nbytes + pool.sessions[0].kv_bytes <= 850 * ROW


def test_with_room_for_all_all_is_kept() -> None:
    pool = pool_of(1051)
    for ids in (LONG, SHORT, NEXT):
        asked(pool, ids)
    assert pool.memory.parked_tokens == 750 and notes(pool) == []


def test_the_same_where_the_device_is_short_and_the_budget_is_not() -> None:
    capacity = [1000 * ROW]
    pool = pool_of(0, put_away_bytes=1 << 40, available_bytes=lambda: 0)

    def left() -> int:
        return capacity[0] - pool.memory.nbytes - pool.sessions[0].kv_bytes

    object.__setattr__(pool._loaded, "available_bytes", left)
    asked(pool, LONG)
    asked(pool, SHORT)
    assert asked(pool, NEXT).put_away == "drop"
    assert pool.memory.parked_tokens == 600 and notes(pool) == []
    # Something shorter than what comes makes way for it.
    capacity[0] = 1100 * ROW
    asked(pool, range(500, 700))
    assert notes(pool) == [] and pool.memory.parked_tokens in (600, 900)


def test_a_copied_end_is_counted_as_well() -> None:
    """There is room for the prompt, but not for the end of the old branch beside it."""
    pool = pool_of(300)
    asked(pool, range(250))
    edited = [*range(200), *range(1000, 1080)]
    assert asked(pool, edited).put_away == "drop"
    roomy = pool_of(340)
    asked(roomy, range(250))
    plan = asked(roomy, edited)
    assert (plan.put_away, plan.put_away_bytes) == ("tail", 50 * ROW)
    session = roomy.sessions[0]
    assert session.growth_bytes(281, session.plan(Timeline.of([*edited, 1]))) == ROW * 1


def test_growth_is_what_the_plan_takes_besides_what_it_gives() -> None:
    session = Session(FakeModel(vocab_size=3000), (64,), memory=MemoryTier(1 << 40))
    drain(session.sync(Timeline.of(SHORT)))
    wanted = Timeline.of(NEXT)
    whole = session.plan(wanted)
    assert (whole.put_away, session.growth_bytes(301, whole)) == ("whole", 301 * ROW)
    bare = session.plan(wanted, puts_away=False)
    assert (bare.put_away, session.growth_bytes(301, bare)) == ("drop", 151 * ROW)
    assert session.growth_bytes(100, bare) == 0  # less is taken than the old state gives
    drain(session.sync(wanted))
    back = session.plan(Timeline.of([*SHORT, 5]))
    assert (back.base, back.put_away) == ("parked", "whole")
    assert session.growth_bytes(152, back) == 2 * ROW
    assert session.growth_bytes(100, back) == 0
    tail = session.plan(Timeline.of([*range(2000, 2290), 5]))
    assert (tail.base, session.growth_bytes(292, tail)) == ("live", 10 * ROW)


# -- several sessions ------------------------------------------------------------------------------


def test_each_session_may_have_the_whole_context_and_bytes_decide() -> None:
    """Room for one context: the second conversation parks or displaces the first, which rests."""
    pool = pool_of(700, sessions=2)
    asked(pool, LONG, number=1)
    plan = asked(pool, range(1000, 1500), number=2)
    assert (plan.to_evaluate, len(pool.sessions[0].timeline)) == (500, 0)
    assert notes(pool) == [("evicted", 600)]
    assert asked(pool, [*LONG, 5], number=1).cause == "branch evicted"


def test_a_resting_session_is_parked_and_stays_where_something_else_is_worth_less() -> None:
    pool = pool_of(1000, sessions=2)
    asked(pool, SHORT, number=2)
    asked(pool, range(1200, 1300), number=2)  # the short one is parked
    asked(pool, LONG, number=1)
    asked(pool, range(2000, 2250), number=2)
    assert ("evicted", 600) not in notes(pool)
    assert asked(pool, [*LONG, 5], number=1).to_evaluate == 1


def test_a_session_at_work_is_not_displaced_and_the_refusal_has_both_numbers() -> None:
    pool = pool_of(700, sessions=2)
    on_device(pool, 700)
    asked(pool, LONG, number=1)
    with pytest.raises(OutOfMemory) as raised:
        asked(pool, range(1000, 1500), number=2, busy=[1])
    assert (raised.value.needed_bytes, raised.value.available_bytes) == (501 * ROW, 99 * ROW)
    assert len(pool.sessions[0].timeline) == 600
    assert notes(pool) == []


def on_device(pool: Pool, rows: int) -> None:
    """What `pool` can allocate: a device with room for so many rows."""

    def left() -> int:
        live = sum(session.kv_bytes for session in pool.sessions)
        return rows * ROW - pool.memory.nbytes - live

    object.__setattr__(pool._loaded, "available_bytes", left)


def test_what_a_session_at_work_was_promised_is_not_there_for_others() -> None:
    pool = pool_of(2000, sessions=2)
    on_device(pool, 1000)
    first, second = pool.sessions
    wanted = Timeline.of(range(690))
    prefill = first.sync(wanted, pool.admitted(first, wanted, ()))
    prefill.step(64)
    other = Timeline.of(range(1000, 1400))
    with pytest.raises(OutOfMemory) as raised:
        pool.admitted(second, other, (), busy=[1])
    assert (raised.value.needed_bytes, raised.value.available_bytes) == (401 * ROW, 309 * ROW)
    drain(second.sync(other.prefix(308), pool.admitted(second, other.prefix(308), (), busy=[1])))
    drain(prefill)
    assert pool._loaded.available_bytes() >= 0
    # What was promised to a session that rests by now is promised no more.
    first.clear("as a test", park=False)
    drain(second.sync(other, pool.admitted(second, other, ())))


def test_what_is_parked_makes_way_before_a_reply_grows_into_it() -> None:
    pool = pool_of(2000, sessions=1)
    on_device(pool, 310)
    asked(pool, SHORT)
    asked(pool, range(2000, 2150))
    session = pool.sessions[0]
    assert pool.memory.parked_tokens == 150
    for token in range(20):
        pool.admit_token(session)
        session.append(token)
        assert pool._loaded.available_bytes() >= 0
    assert pool.memory.parked_tokens == 0 and notes(pool) == [("evicted", 150)]


def test_resting_sessions_make_way_before_a_reply_is_refused_those_at_work_do_not() -> None:
    pool = pool_of(2000, sessions=3)
    on_device(pool, 311)
    for number, ids in enumerate(([1, 2, 3] * 30, [4, 5] * 50, [6, 7, 8] * 40), start=1):
        asked(pool, ids, number)
    first, second, third = pool.sessions
    on_device(pool, 310)
    pool.admit_token(first, busy=[3])
    assert (len(first.timeline), len(second.timeline), len(third.timeline)) == (90, 0, 120)
    assert notes(pool) == [("evicted", 100)]
    on_device(pool, 210)
    with pytest.raises(OutOfMemory) as raised:
        pool.admit_token(first, busy=[3])
    assert (raised.value.needed_bytes, raised.value.available_bytes) == (ROW, 0)
    assert (len(first.timeline), first.state_name) == (90, "READY")
    pool.admit_token(first)
    assert len(third.timeline) == 0


def test_what_a_session_at_work_was_promised_is_not_there_for_a_reply() -> None:
    pool = pool_of(2000, sessions=2)
    on_device(pool, 301)
    first, second = pool.sessions
    asked(pool, SHORT)
    wanted = Timeline.of(range(2000, 2149))
    pool.admitted(second, wanted, (), busy=[1])
    on_device(pool, 300)
    pool.admit_token(first)
    with pytest.raises(OutOfMemory):
        pool.admit_token(first, busy=[2])


@pytest.mark.parametrize("rows", [100, 700])
def test_a_refused_prompt_holds_nothing_on_disk(tmp_path: Path, rows: int) -> None:
    """Because it can never fit, and because something at work leaves too little."""
    disk = DiskTier(tmp_path, 1 << 26, b"fake", floor_bytes=0)
    pool = pool_of(2000, sessions=2, disk=disk)
    assert pool.storing is not None
    asked(pool, LONG)
    first = pool.sessions[0]
    pool.storing.stepped(first, 1.0, is_prefilled=True, is_over=True)
    while pool.storing.is_pending:
        pool.storing.idle()
    assert disk.flush(20.0)
    first.clear("as a test", park=False)
    on_device(pool, rows)
    if rows > 100:
        asked(pool, range(1000, 1200), number=2)
    assert first.plan(Timeline.of(LONG)).uses and disk._keeper.uses.held
    with pytest.raises(OutOfMemory):
        pool.admitted(first, Timeline.of(LONG), (), busy=[2])
    assert not disk._keeper.uses.held
    assert disk.close(5.0)


def test_what_a_cleared_session_held_is_noted_and_told_to_who_comes_back() -> None:
    for put_away_bytes in (0, 1 << 40):
        session = pool_of(0, put_away_bytes=put_away_bytes).sessions[0]
        drain(session.sync(Timeline.of(LONG)))
        session.clear("as a test", park=False)
        said = "tokens 0 to 600 of a live branch: as a test"
        assert [n.reason for n in session._memory.drain_notes()] == [said]
        assert session.plan(Timeline.of([*LONG, 5])).cause == "branch evicted"


def test_another_session_tells_what_a_poisoned_one_lost() -> None:
    pool = pool_of(2000, sessions=2)
    asked(pool, LONG, number=1)
    model: Any = pool.sessions[0]._model
    model.passes_left = 0
    with pytest.raises(DeviceFault):
        asked(pool, [*LONG, 5, 6], number=1)
    session = pool.sessions[1]
    assert session.plan(Timeline.of([*LONG, 5, 6])).cause == "session poisoned"
    assert session.plan(Timeline.of(SHORT)).cause is None
    assert pool.sessions[0].plan(Timeline.of(SHORT)).cause is None
    asked(pool, [*LONG, 5, 6], number=2)
    assert pool.sessions[0].plan(Timeline.of([*LONG, 7])).cause != "session poisoned"


# -- what is dropped -------------------------------------------------------------------------------


def test_what_a_plan_drops_is_told_to_who_wants_it_again() -> None:
    pool = pool_of(0, put_away_bytes=0)
    asked(pool, LONG)
    assert asked(pool, SHORT).put_away == "drop"
    plan = asked(pool, [*LONG, 5])
    assert (plan.cause, plan.to_evaluate) == ("branch evicted", 601)


def test_the_end_of_a_parked_branch_that_is_dropped_is_told_too() -> None:
    memory = MemoryTier(620 * ROW, Rates(copy_bytes_per_s=1e5))  # cutting beats copying
    session = Session(FakeModel(vocab_size=3000), (64,), memory=memory)
    drain(session.sync(Timeline.of(LONG)))
    drain(session.sync(Timeline.of(range(1000, 1020))))
    plan = session.plan(Timeline.of([*range(500), 7]))
    assert (plan.base, plan.put_away, plan.base_tail) == ("parked", "whole", "tail")
    memory._budget = 20 * ROW
    plan = session.plan(Timeline.of([*range(500), 7]))
    assert (plan.base, plan.base_tail) == ("parked", "drop")
    drain(session.sync(Timeline.of([*range(500), 7]), plan))
    assert session.plan(Timeline.of([*LONG, 5])).cause == "branch evicted"


def test_a_branch_that_is_held_already_is_neither_copied_nor_dropped() -> None:
    session = Session(FakeModel(vocab_size=3000), (64,), memory=MemoryTier(1 << 40))
    for ids in (LONG, [*range(20), 7], range(500)):
        drain(session.sync(Timeline.of(ids)))
    held = session._memory.nbytes
    plan = session.plan(Timeline.of(SHORT))
    drain(session.sync(Timeline.of(SHORT), plan))
    assert (plan.put_away, session._memory.nbytes >= held) == ("whole", True)
    drain(session.sync(Timeline.of(range(550))))
    assert session.plan(Timeline.of([*LONG, 1])).kept == 600


def test_nothing_that_a_plan_uses_makes_way_where_things_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = Session(FakeModel(vocab_size=3000), (64,), memory=MemoryTier(1 << 40))
    for ids in (range(30), range(1000, 1060), range(2000, 2100)):
        drain(session.sync(Timeline.of(ids)))
    monkeypatch.setattr(memory_tier, "MAX_ENTRIES", 2)
    wanted = Timeline.of([*range(10), 7])
    plan = session.plan(wanted)
    assert (plan.base, plan.put_away, len(plan.parts)) == ("fresh", "whole", 1)
    drain(session.sync(wanted, plan))
    assert [(n.kind, n.tokens) for n in session._memory.drain_notes()] == [("evicted", 60)]
    assert session.plan(Timeline.of([*range(30), 7])).kept == 30


# -- words -----------------------------------------------------------------------------------------

KINDS = st.sampled_from([(FakeLayer,), (FakeLayer, WindowLayer), (FakeLayer, RecurrentLayer)])


class Told:
    """A session that checks after each sync that what the plan said of branches has happened."""

    def __init__(self, layers: Any, budget_bytes: int, copy_bytes_per_s: float) -> None:
        model = FakeModel(vocab_size=40, context_tokens=4000, layer_types=layers)
        self.now = 0.0
        rates = Rates(copy_bytes_per_s=copy_bytes_per_s)
        self.memory = MemoryTier(budget_bytes, rates, lambda: self.now)
        self.session = Session(model, (64, 16, 4), None, self.memory)
        self.branches: list[list[int]] = [[1]]

    def play(self, operation: Any) -> None:
        self.now += 60.0 * operation.count**2
        old = self.branches[int(operation.share * (len(self.branches) - 1))]
        ids = old[: 1 + int(operation.share * len(old))] + operation.new_ids(40) * 3
        self.branches = [*self.branches[-8:], ids]
        session, left = self.session, self.session.timeline
        outline = outline_of(len(ids), 7)
        plan = session.plan(Timeline.of(ids), outline)
        self.memory.drain_notes()
        prefill = session.sync(Timeline.of(ids), plan)
        refused = [n for n in self.memory.drain_notes() if n.kind in ("refused", "dropped")]
        assert not refused, f"{plan.reason}: {refused}"
        if plan.put_away in ("whole", "tail"):
            live = HeldRows(HOLDER_LIVE, "live", 0, plan.kept, session.timeline.common_prefix(left))
            assert covered_to((live, *self.memory.offers(left).rows)) == len(left), plan.reason
        parked = [h for h in self.memory.offers(left).rows if h.kind == "parked"]
        if plan.put_away == "whole":
            assert any(h.end == h.common == len(left) for h in parked), plan.reason
        assert plan.cause is None or plan.to_evaluate > 1
        drain(prefill)
        session.end_turn()


@given(
    history=st.lists(histories, min_size=2, max_size=4),
    layers=KINDS,
    budget_bytes=st.sampled_from([800, 2000, 6000]),
    copy_bytes_per_s=st.sampled_from([5e9, 1e5]),
)
@settings(max_examples=scaled(60), deadline=None)
def test_what_a_plan_says_of_branches_is_what_happens(
    history: list[list[Any]], layers: Any, budget_bytes: int, copy_bytes_per_s: float
) -> None:
    told = Told(layers, budget_bytes, copy_bytes_per_s)
    for operation in (o for part in history for o in part):
        told.play(operation)
