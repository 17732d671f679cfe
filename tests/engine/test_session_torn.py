"""What fails between two branches: the old one is whole, the new one is not trusted."""

from typing import Any

import pytest

from ds4tui.cache.memory_tier import MemoryTier
from ds4tui.cache.offers import Rates
from ds4tui.cache.timeline import Timeline
from ds4tui.engine.session import Session, SessionState
from ds4tui.engine.state import ModelState
from ds4tui.errors import EngineError
from tests.engine.histories import PLENTY, DeviceFault, FailingModel, drain
from tests.fake_model import FakeModel
from tests.fake_state import FakeLayer


class Brittle(FakeLayer):
    """Copies into it fail while `is_broken`."""

    is_broken = False

    def put(self, rows: Any) -> None:
        if Brittle.is_broken:
            raise MemoryError("no room for the copy")
        super().put(rows)


@pytest.fixture
def session() -> Session:
    Brittle.is_broken = False
    model = FakeModel(layer_types=(FakeLayer, Brittle))
    return Session(FailingModel(model), (64,), memory=MemoryTier(PLENTY))


def fed(session: Session, ids: list[int]) -> int:
    model: Any = session._model
    before = model.fed
    drain(session.sync(Timeline.of(ids)))
    return int(model.fed - before)


def test_a_copy_that_fails_leaves_the_old_branch_whole(session: Session) -> None:
    whole = list(range(200))
    fed(session, whole)
    fork = Timeline.of([*range(20), 240])
    assert session.plan(fork).put_away == "whole"
    Brittle.is_broken = True
    with pytest.raises(MemoryError):
        session.sync(fork)
    assert session.state_name is SessionState.POISONED
    assert len(session.timeline) == session.kv_bytes == 0
    Brittle.is_broken = False
    plan = session.plan(Timeline.of([*whole, 1]))
    assert plan.kept == 200  # the parked state is gone on with
    assert fed(session, [*whole, 1]) == 1


NO_MEMORY = [MemoryError(), RuntimeError("[malloc] Unable to allocate 4096 bytes.")]


@pytest.mark.parametrize("lack", NO_MEMORY, ids=["MemoryError", "MLX"])
def test_a_tail_that_cannot_be_copied_is_given_up_and_nothing_else(
    session: Session, monkeypatch: pytest.MonkeyPatch, lack: Exception
) -> None:
    whole = list(range(200))
    fed(session, whole)
    edited = [*range(190), 240, 241]
    assert session.plan(Timeline.of(edited)).put_away == "tail"

    def fail(*_: Any) -> None:
        raise lack

    monkeypatch.setattr(type(session._state), "copy_rows", fail)
    assert fed(session, edited) == 2
    monkeypatch.undo()
    assert session._memory.segment_count == 0
    notes = [(note.kind, note.tokens, note.reason) for note in session._memory.drain_notes()]
    said = "tokens 190 to 200 of a live branch: there is no room for a copy"
    assert notes == [("dropped", 10, said)]
    assert session.plan(Timeline.of(whole)).cause == "branch evicted"
    assert fed(session, whole) == 10


def parked_and_edited(session: Session) -> tuple[list[int], Timeline, Any]:
    """A parked branch of 200 tokens, whose last 10 are edited; the plan takes it and keeps its
    end aside."""
    whole = list(range(200))
    fed(session, whole)
    fed(session, [201, 202, 203])
    wanted = Timeline.of([*whole[:190], 240, 241])
    plan = session.plan(wanted)
    assert (plan.base, plan.base_rows, plan.base_tail) == ("parked", 190, "tail")
    return whole, wanted, plan


def test_a_parked_branch_is_parked_again_where_the_copy_of_its_end_fails(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, wanted, plan = parked_and_edited(session)

    def fail(*_: Any) -> None:
        raise DeviceFault("the device is gone")

    monkeypatch.setattr(ModelState, "copy_rows", fail)
    with pytest.raises(DeviceFault):
        session.sync(wanted, plan)
    monkeypatch.undo()
    assert session.state_name is SessionState.POISONED
    assert session._memory.parked_tokens == 200 + 3
    again = session.plan(Timeline.of([*whole, 1]))
    assert (again.kept, again.cause) == (200, None)
    assert fed(session, wanted.ids.tolist()) == 2
    assert fed(session, [*whole, 1]) == 1


@pytest.mark.parametrize("lack", NO_MEMORY, ids=["MemoryError", "MLX"])
def test_a_parked_branch_is_parked_again_where_nothing_of_it_was_changed(
    session: Session, monkeypatch: pytest.MonkeyPatch, lack: Exception
) -> None:
    whole, wanted, plan = parked_and_edited(session)

    def fail(*_: Any) -> None:
        raise lack

    monkeypatch.setattr(ModelState, "rebuild", fail)
    with pytest.raises(type(lack)):
        session.sync(wanted, plan)
    monkeypatch.undo()
    assert session._memory.parked_tokens == 200 + 3
    assert fed(session, [*whole, 1]) == 1


@pytest.mark.parametrize("is_cut", [True, False], ids=["cut", "a fault of the device"])
def test_a_parked_branch_that_may_be_torn_is_given_up_and_told(
    session: Session, monkeypatch: pytest.MonkeyPatch, is_cut: bool
) -> None:
    whole, wanted, plan = parked_and_edited(session)

    def fail(state: ModelState, *_: Any) -> None:
        if is_cut:
            state.layers[0].rewind(190)
            raise MemoryError
        raise DeviceFault("the device is gone")

    monkeypatch.setattr(ModelState, "rebuild", fail)
    with pytest.raises((MemoryError, DeviceFault)):
        session.sync(wanted, plan)
    monkeypatch.undo()
    assert session._memory.parked_tokens == 3
    # Nothing stands for the state that was taken: its rows are nobody's.
    held = [(held.kind, len(held.timeline)) for held in session._memory.holders()]
    assert held == [("parked", 3)]
    assert session.plan(Timeline.of([*whole, 1])).cause == "session poisoned"
    assert fed(session, [*whole, 1]) == 201


def test_the_end_of_a_parked_branch_that_finds_no_room_is_missed_by_name(session: Session) -> None:
    whole, wanted, _ = parked_and_edited(session)
    session._memory._budget = 0
    session._memory.rates = Rates(copy_bytes_per_s=1e4)  # nor would it be copied in time
    plan = session.plan(wanted)
    assert (plan.base, plan.base_rows, plan.base_tail) == ("parked", 190, "drop")
    drain(session.sync(wanted, plan))
    again = session.plan(Timeline.of([*whole, 1]))
    assert (again.kept, again.cause) == (190, "branch evicted")


def test_what_a_failed_switch_had_not_parked_is_told_as_lost(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The live branch is cut, not parked, and the cut fails."""
    whole = list(range(200))
    fed(session, whole)
    wanted = Timeline.of([*whole[:190], 240])
    plan = session.plan(wanted)
    assert (plan.base, plan.put_away) == ("live", "tail")

    def fail(*_: Any) -> None:
        raise DeviceFault("the device is gone")

    monkeypatch.setattr(ModelState, "rebuild", fail)
    with pytest.raises(DeviceFault):
        session.sync(wanted, plan)
    monkeypatch.undo()
    assert session.plan(Timeline.of([*whole, 1])).cause == "session poisoned"


def test_a_plan_whose_pieces_were_evicted_changes_nothing(session: Session) -> None:
    whole = list(range(200))
    fed(session, whole)
    fed(session, [*range(20), 240])
    wanted = Timeline.of([*whole, 1])
    plan = session.plan(wanted)
    assert plan.base == "parked"
    session._memory.drop(plan.base_id or 0, "as a test")
    before = session.timeline, session.state_name, session.kv_bytes
    with pytest.raises(EngineError, match="not held any more"):
        session.sync(wanted, plan)
    assert (session.timeline, session.state_name, session.kv_bytes) == before


def test_a_plan_is_executed_once_and_for_its_own_prompt(session: Session) -> None:
    fed(session, list(range(50)))
    wanted = Timeline.of(range(60))
    plan = session.plan(wanted)
    with pytest.raises(EngineError, match="another state"):
        session.sync(Timeline.of([*range(59), 5]), plan)
    plan = session.plan(wanted)
    drain(session.sync(wanted, plan))
    with pytest.raises(EngineError, match="another state"):
        session.sync(wanted, plan)


def test_a_torn_pass_after_a_switch_loses_the_new_branch_only(session: Session) -> None:
    first, second = list(range(100)), list(range(100, 200))
    fed(session, first)
    model: Any = session._model
    model.passes_left = 1
    with pytest.raises(DeviceFault):
        drain(session.sync(Timeline.of(second)))
    assert session.state_name is SessionState.POISONED
    plan = session.plan(Timeline.of(first))
    assert (plan.kept, plan.cause) == (99, None)  # nothing that it wants was lost
    assert session.plan(Timeline.of([*second, 1])).cause == "session poisoned"
    assert fed(session, first) == 1


def test_clearing_parks_what_was_live(session: Session) -> None:
    fed(session, list(range(100)))
    session.clear("as a test")
    assert (session.state_name, session.kv_bytes) == (SessionState.EMPTY, 0)
    assert fed(session, list(range(100))) == 1
    session.clear("as a test", park=False)
    assert fed(session, list(range(100))) == 100
