"""Which session a request goes to, and what makes way for it."""

from collections.abc import Sequence
from typing import Any

import pytest

from ds4tui.cache.causes import Cause
from ds4tui.cache.outline import Turn
from ds4tui.cache.timeline import Timeline
from ds4tui.engine.loaded import LoadedModel
from ds4tui.engine.pool import Busy, Candidate, Pool, best, is_worth_waiting
from ds4tui.engine.session import Session
from ds4tui.errors import OutOfMemory
from tests.engine.histories import FailingModel, drain, outline_of
from tests.fake_model import ByteTokenizer, FakeModel
from tests.fake_state import FakeLayer, RecurrentLayer

SYSTEM = list(range(40))


def pool_of(sessions: int, layers: Sequence[Any] = (FakeLayer, FakeLayer), **loaded: Any) -> Pool:
    model = FailingModel(FakeModel(context_tokens=10_000, layer_types=layers))
    values: dict[str, Any] = {"available_bytes": lambda: 1 << 40, "put_away_bytes": 1 << 40}
    values |= {"sessions": sessions, **loaded}
    return Pool(LoadedModel("fake", model, ByteTokenizer(), **values), 1 << 40)  # type: ignore[arg-type]


def serve(pool: Pool, ids: list[int], busy: dict[int, Busy] | None = None) -> tuple[int, int]:
    """The number of the session that took a request, and how many rows were evaluated."""
    wanted, outline = Timeline.of(ids), outline_of(len(ids), 40)
    session = pool.route(wanted, outline, busy or {})
    assert session is not None
    pool.begin(session)
    plan = pool.admitted(session, wanted, outline)
    model: Any = session._model
    before = model.fed
    drain(session.sync(wanted, plan))
    return session.number, model.fed - before


def long(count: int, seed: int = 1) -> list[int]:
    return [*SYSTEM, *((i * (seed + 2) + seed) % 200 for i in range(count))]


KINDS = pytest.mark.parametrize(
    "layers",
    [(FakeLayer, FakeLayer), (FakeLayer, RecurrentLayer)],
    ids=["append-only", "recurrent"],
)


@KINDS
def test_a_side_request_gets_the_idle_session_and_copies_what_it_shares(layers: Any) -> None:
    pool = pool_of(2, layers)
    assert serve(pool, long(3000)) == (1, 3040)
    assert serve(pool, [*SYSTEM, 7, 8, 9]) == (2, 3)
    assert len(pool.sessions[0].timeline) == 3040
    assert serve(pool, [*long(3000), 5]) == (1, 1)


@KINDS
def test_a_side_request_never_displaces_the_long_session(layers: Any) -> None:
    pool = pool_of(2, layers)
    serve(pool, long(3000))
    for seed in range(3, 9):
        number, evaluated = serve(pool, long(20, seed))
        assert (number, evaluated) == (2, 20)
    assert len(pool.sessions[0].timeline) == 3040


@KINDS
def test_with_one_session_the_long_one_is_parked_and_comes_back_free(layers: Any) -> None:
    pool = pool_of(1, layers)
    serve(pool, long(3000))
    assert serve(pool, long(20, 3)) == (1, 20)
    assert pool.memory.parked_count == 1
    assert serve(pool, [*long(3000), 5]) == (1, 1)


def test_a_request_goes_where_its_own_plan_saves_most() -> None:
    """The first session shares more with it, but can go back to nothing of it."""
    pool = pool_of(2, (FakeLayer, RecurrentLayer))
    first, second = pool.sessions
    ids = long(1000)
    drain(first.sync(Timeline.of([*ids[:900], 201, 202])))
    pool.memory.make_room(pool.memory.budget_bytes)  # all its snapshots go
    drain(second.sync(Timeline.of(ids[:500])))
    pool.memory.make_room(pool.memory.budget_bytes)
    assert first.timeline.common_prefix(Timeline.of(ids)) == 900
    assert serve(pool, ids) == (2, len(ids) - 500)
    assert len(first.timeline) == 902


@KINDS
def test_a_conversation_stays_in_its_session_through_turns_forks_and_regenerations(
    layers: Any,
) -> None:
    pool = pool_of(3, layers)
    turns = long(200)
    for prompt in (turns[:80], turns, turns, [*turns[:120], 5, 6], [*turns, 7], turns[:160]):
        assert serve(pool, prompt)[0] == 1
    assert [len(session.timeline) for session in pool.sessions[1:]] == [0, 0]


def test_the_cheapest_is_chosen_and_of_those_alike_what_displaces_least() -> None:
    def candidate(number: int, **values: Any) -> Candidate:
        usual = {"cost_ms": 100.0, "kept": 0, "own": 0, "displaced": 0, "used": 0}
        return Candidate(number, **{**usual, **values})

    assert best([candidate(1), candidate(2, cost_ms=50.0)]).number == 2
    assert best([candidate(1, cost_ms=95.0, displaced=9), candidate(2)]).number == 2
    assert best([candidate(1), candidate(2, own=5)]).number == 2
    assert best([candidate(1, used=7), candidate(2, used=3)]).number == 2
    assert best([candidate(2), candidate(1)]).number == 1


def test_who_waits_for_a_busy_session() -> None:
    # While it evaluates what both begin with, the same would be done twice.
    assert is_worth_waiting(1000, 0, busy_common=900, busy_live=10, is_decoding=False)
    assert not is_worth_waiting(1000, 500, busy_common=900, busy_live=10, is_decoding=False)
    # Its own rows, so far, are no reason to begin; that it is past what both have in common is.
    assert is_worth_waiting(1000, 600, busy_common=900, busy_live=600, is_decoding=False)
    assert not is_worth_waiting(1000, 900, busy_common=900, busy_live=900, is_decoding=False)
    # One that is wholly there needs nothing more of it.
    assert not is_worth_waiting(1000, 999, busy_common=1000, busy_live=1000, is_decoding=True)
    # Its rows can be copied once it decodes, but the same conversation waits for its reply.
    assert not is_worth_waiting(1000, 900, busy_common=900, busy_live=950, is_decoding=True)
    assert is_worth_waiting(1000, 900, busy_common=950, busy_live=950, is_decoding=True)


def test_the_same_conversation_waits_another_one_does_not() -> None:
    pool = pool_of(2)
    ids = long(100)
    serve(pool, ids)
    busy = {1: Busy(Timeline.of(ids), is_decoding=True)}
    assert pool.route(Timeline.of([*ids, 5]), (), busy) is None
    other = pool.route(Timeline.of(long(50, 4)), (), busy)
    assert other is not None and other.number == 2
    assert pool.route(Timeline.of([1]), (), {**busy, 2: busy[1]}) is None


def test_parked_states_make_way_by_value_and_what_is_needed_stays() -> None:
    available = [1 << 40]
    pool = pool_of(1, available_bytes=lambda: available[0] - pool.memory.nbytes)
    serve(pool, long(3000))
    serve(pool, [1, 2, 3, *range(100)])
    serve(pool, [4, 5, 6, *range(500)])
    assert pool.memory.parked_count == 2
    held = pool.memory.nbytes
    # A few rows more than there is room for: the small one of the two goes.
    available[0] = held + 32 * 1000
    assert serve(pool, [7, 8, 9, *range(1000)])[1] == 1003
    notes = pool.memory.drain_notes()
    assert [(note.kind, note.tokens) for note in notes] == [("evicted", 103)]
    assert serve(pool, [*long(3000), 5]) == (1, 1)


def test_resting_sessions_make_way_before_a_request_is_refused() -> None:
    available = [1 << 40]
    pool = pool_of(2, put_away_bytes=0)

    def left() -> int:
        return available[0] - sum(session.kv_bytes for session in pool.sessions)

    pool._loaded = LoadedModel(  # type: ignore[misc]
        **{name: getattr(pool._loaded, name) for name in LoadedModel.__slots__}
        | {"available_bytes": left}
    )
    serve(pool, long(1000))
    serve(pool, [*range(100, 140), *range(150)])
    available[0] = 32 * 1700
    number, evaluated = serve(pool, [*reversed(range(200)), *range(200), *range(200)])
    assert evaluated == 600
    assert len(pool.sessions[2 - number].timeline) in (0, 190, 1040)
    with pytest.raises(OutOfMemory) as raised:
        serve(pool, [9, *range(200)] * 9)
    assert raised.value.needed_bytes > raised.value.available_bytes


def test_rows_of_another_session_are_told_as_that_and_why_not_more() -> None:
    pool = pool_of(2)
    outlines = [
        (Turn(0, 40, "system", b"s"), Turn(40, 100, "user", words)) for words in (b"one", b"other")
    ]
    first, second = ([*range(10, 50), *[100 + n] * 60] for n in range(2))
    drain(pool.sessions[0].sync(Timeline.of(first), outline=outlines[0]))
    plan = pool.sessions[1].plan(Timeline.of(second), outlines[1])
    assert plan.cause is Cause.OTHER_CONVERSATION and plan.kept == 40
    assert "40 from another session" in plan.reason


def test_what_can_never_fit_is_refused_before_anything_makes_way() -> None:
    available = [1 << 40]
    pool = pool_of(2, available_bytes=lambda: available[0])
    for first in range(4):  # two of them are parked then
        serve(pool, [first, *range(100, 180)])
    before = [session.timeline for session in pool.sessions], pool.memory.parked_count
    assert before[1] == 2
    available[0] = 20_000
    with pytest.raises(OutOfMemory):
        serve(pool, [9, *range(200)] * 15)
    assert ([session.timeline for session in pool.sessions], pool.memory.parked_count) == before
    assert not pool.memory.drain_notes()


def test_what_would_be_put_away_goes_before_a_request_is_refused() -> None:
    available = [1 << 40]
    pool = pool_of(1)
    session = pool.sessions[0]

    def left() -> int:
        return available[0] - session.kv_bytes - pool.memory.nbytes

    pool._loaded = LoadedModel(  # type: ignore[misc]
        **{name: getattr(pool._loaded, name) for name in LoadedModel.__slots__}
        | {"available_bytes": left}
    )
    serve(pool, long(3000))
    available[0] = session.kv_bytes + 32 * 10
    assert serve(pool, [*SYSTEM, *range(150)])[1] == 150  # cut, not copied
    assert pool.memory.nbytes == 0


def test_live_states_that_grow_take_back_what_they_had_lent() -> None:
    pool = Pool(
        LoadedModel("fake", FakeModel(context_tokens=10_000), ByteTokenizer()),  # type: ignore[arg-type]
        room_bytes=300_000,
    )
    session = pool.sessions[0]
    serve_plain(pool, session, long(3000))
    serve_plain(pool, session, [1, 2, 3])
    assert pool.memory.parked_count == 1
    assert pool.memory.nbytes <= pool.memory.budget_bytes
    serve_plain(pool, session, [1, 2, 3, *(i % 200 for i in range(9000))])
    assert pool.memory.nbytes + session.kv_bytes <= 300_000
    assert [note.kind for note in pool.memory.drain_notes()] == ["evicted"]


def serve_plain(pool: Pool, session: Session, ids: list[int]) -> None:
    prefill = session.sync(Timeline.of(ids))
    while not prefill.finished:
        prefill.step(512)
        pool.stepped()


def test_an_engine_needs_a_session() -> None:
    with pytest.raises(ValueError, match="needs a session"):
        pool_of(0)


def test_a_conversation_that_goes_on_with_another_model_is_told_so_once() -> None:
    pool = pool_of(2, emptied=Cause.MODEL_CHANGED)
    first, history = outline_of(80, 40), outline_of(120, 40)  # without and with a reply
    session = pool.sessions[0]
    assert session.plan(Timeline.of(long(40)), first).cause is None
    plan = session.plan(Timeline.of(long(80)), history)
    assert plan.cause is Cause.MODEL_CHANGED
    drain(session.sync(Timeline.of(long(80)), plan))
    session.clear("as a test", park=False)
    assert session.plan(Timeline.of(long(80)), history).cause is not Cause.MODEL_CHANGED
    other = Timeline.of([7, *range(100, 179)])  # of which nothing was ever held
    assert session.plan(other, history).cause is None
