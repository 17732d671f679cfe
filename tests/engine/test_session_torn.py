"""What fails between two branches: the old one is whole, the new one is not trusted."""

from typing import Any

import pytest

from ds4tui.cache.memory_tier import MemoryTier
from ds4tui.cache.timeline import Timeline
from ds4tui.engine.session import Session, SessionState
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


def test_a_tail_that_cannot_be_copied_is_given_up_and_nothing_else(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = list(range(200))
    fed(session, whole)
    edited = [*range(190), 240, 241]
    assert session.plan(Timeline.of(edited)).put_away == "tail"

    def fail(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(type(session._state), "copy_rows", fail)
    assert fed(session, edited) == 2
    monkeypatch.undo()
    assert session._memory.segment_count == 0
    assert fed(session, whole) == 10


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
    assert (plan.kept, plan.cause) == (99, "session poisoned")
    assert fed(session, first) == 1


def test_clearing_parks_what_was_live(session: Session) -> None:
    fed(session, list(range(100)))
    session.clear("as a test")
    assert (session.state_name, session.kv_bytes) == (SessionState.EMPTY, 0)
    assert fed(session, list(range(100))) == 1
    session.clear("as a test", park=False)
    assert fed(session, list(range(100))) == 100
