"""A cause for all that is computed again although it was there: also without turns, without room
for snapshots, and after many side requests."""

import pytest

from ds4tui.cache.memory_tier import MemoryTier
from ds4tui.cache.outline import Outline, Turn
from ds4tui.cache.timeline import Timeline
from ds4tui.engine.session import Session
from tests.engine.histories import FakeRig, drain
from tests.fake_state import FakeLayer, RecurrentLayer

LONG = [token % 40 for token in range(1000)]


def session_without_room(*layers: type[FakeLayer]) -> Session:
    return FakeRig(layer_types=layers or (FakeLayer,)).session(MemoryTier(0))


def fed(session: Session, ids: list[int], outline: Outline = ()) -> None:
    drain(session.sync(Timeline.of(ids), outline=outline))


@pytest.mark.parametrize("is_poisoned", [False, True], ids=["evicted", "poisoned"])
@pytest.mark.parametrize(
    "wanted",
    [[*LONG, 1], [*LONG[:990], 39, 1, 2], LONG[:990], [*LONG[:100], 39, 38]],
    ids=["goes on", "end edited", "ends inside", "start edited"],
)
def test_a_raw_prompt_misses_the_branch_that_it_shares(
    wanted: list[int], is_poisoned: bool
) -> None:
    session = session_without_room()
    fed(session, LONG)
    if is_poisoned:
        session.poison("as a test")
    else:
        fed(session, [39, 38, 37])
    cause = session.plan(Timeline.of(wanted)).cause
    assert cause == ("session poisoned" if is_poisoned else "branch evicted")
    assert session.plan(Timeline.of([38, *LONG])).cause != cause  # it shares nothing


def test_side_requests_do_not_make_the_long_branch_forgotten() -> None:
    session = session_without_room()
    system, question = Turn(0, 10, "system", b"s"), Turn(10, 1000, "user", b"q")
    fed(session, LONG, (system, question))
    for number in range(200):
        side = [*LONG[:10], 39, number % 40, number // 40, 3]
        fed(session, side, (system, Turn(10, 14, "user", b"side %d" % number)))
    opening = Turn(1000, 1001, "opening", b"")
    plan = session.plan(Timeline.of([*LONG, 1]), (system, question, opening))
    assert (plan.kept, plan.cause) == (10, "branch evicted")


def test_a_snapshot_that_there_was_no_room_for_is_the_cause() -> None:
    session = session_without_room(FakeLayer, RecurrentLayer)
    fed(session, LONG[:40])
    session.append(1)
    session.append(2)
    session.end_turn()
    again = session.plan(Timeline.of(LONG[:40]))
    assert (again.kept, again.replayed, again.cause) == (0, 39, "snapshot evicted")
    assert [note.kind for note in session._memory.drain_notes()] == ["refused"]
    assert session.plan(Timeline.of([*LONG[:40], 1, 2, 3])).cause is None
