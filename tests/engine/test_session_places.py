"""Where snapshots stand: fork points, images, growing distance."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.cache.memory_tier import MemoryTier
from ds4tui.cache.outline import Turn
from ds4tui.cache.timeline import Timeline
from ds4tui.engine.fork_points import (
    FIRST_TURN_PLACES,
    FIRST_TURN_SPACING_MIN,
    LAST_BORDERS,
    SPACING,
    borders,
    chosen_borders,
    is_far_enough,
)
from ds4tui.engine.session import Session
from tests.cache.pictures import span, with_images
from tests.engine.histories import drain, outline_of
from tests.fake_model import FakeModel
from tests.fake_state import FakeLayer, RecurrentLayer, WindowLayer
from tests.scale import scaled

RECURRENT = (FakeLayer, RecurrentLayer)
PLENTY = 1 << 40


def session_of(layers: tuple, budget_bytes: int = PLENTY) -> tuple[Session, FakeModel]:
    model = FakeModel(context_tokens=100_000, layer_types=layers)
    return Session(model, (64, 32, 8), memory=MemoryTier(budget_bytes)), model


def snapshots(session: Session) -> tuple[int, ...]:
    return session._memory.snapshots_of(session.timeline)


def test_borders_are_named_by_what_ends_there() -> None:
    timeline = with_images(1, 2, 3, span(0), 4, 5)
    outline = (Turn(0, 3, "system", b""), Turn(3, 7, "user", b""), Turn(7, 8, "opening", b""))
    found = [(place.position, place.point) for place in borders(outline, timeline)]
    assert found == [(3, "system"), (6, "image"), (7, "turn"), (8, "turn")]


@given(st.integers(1, 3000), st.integers(1, 60), st.integers(0, 2999))
@settings(max_examples=scaled(60), deadline=None)
def test_borders_stand_at_growing_distance(length: int, every: int, start: int) -> None:
    timeline, outline = Timeline.of(range(length)), outline_of(length, every)
    chosen = [c.position for c in chosen_borders(outline, timeline, start, length)]
    inside = [c.position for c in borders(outline, timeline) if start < c.position < length]
    assert set(chosen) <= set(inside)  # the system prompt is too short for places inside
    assert chosen[-LAST_BORDERS:] == inside[-LAST_BORDERS:]
    for before, after in itertools.pairwise([start, *chosen]):
        # What was left out between two is no farther from the one before than it may be.
        left_out = [p for p in inside if before < p < after]
        assert all(p - before <= max(1, (length - p) / SPACING) for p in left_out)


def test_their_number_grows_with_the_logarithm() -> None:
    for length in (1_000, 10_000, 100_000):
        before, count = 0, 0
        for position in range(1, length):
            if is_far_enough(position, before, length):
                before, count = position, count + 1
        assert count < 25 * length.bit_length()


def test_chunks_end_at_fork_points_and_before_the_last_token() -> None:
    session, model = session_of(RECURRENT)
    outline = (Turn(0, 10, "system", b""), Turn(10, 55, "user", b""), Turn(55, 57, "opening", b""))
    drain(session.sync(Timeline.of(range(57)), outline=outline))
    assert {10, 55, 56} <= set(snapshots(session))
    ends = set(itertools.accumulate(model.chunks))
    assert {10, 55, 56, 57} <= ends
    assert model.chunks[-1] == 1


def test_a_side_request_that_shares_half_of_the_system_prompt_replays_little_of_it() -> None:
    for system, most in ((1100, FIRST_TURN_SPACING_MIN), (20_000, 20_000 // FIRST_TURN_PLACES)):
        session, _ = session_of(RECURRENT)
        ids = [i % 200 for i in range(system + 5000)]
        outline = (Turn(0, system, "system", b""), Turn(system, len(ids), "user", b""))
        drain(session.sync(Timeline.of(ids), outline=outline))
        for shared in (most - 1, most + 100, system - 50):
            plan = session.plan(Timeline.of([*ids[:shared], 201, 202]))
            assert plan.to_evaluate <= 2 + most
        assert len(snapshots(session)) <= FIRST_TURN_PLACES + 107 + LAST_BORDERS


def test_a_state_that_can_be_cut_anywhere_is_neither_chunked_nor_snapshotted_so() -> None:
    session, model = session_of((FakeLayer, FakeLayer))
    drain(session.sync(Timeline.of(range(57)), outline=outline_of(57, 10)))
    assert snapshots(session) == ()
    assert model.chunks == [32, 8, 8, 8, 1]
    session.append(1)
    session.end_turn()
    assert session._memory.nbytes == 0
    assert session.snapshots_at() == () and session.worst_replay() == 0


def test_snapshots_stand_before_and_after_each_image_and_cut_none() -> None:
    session, _ = session_of(RECURRENT)
    wanted = with_images(1, 2, 3, span(0, rows=7), 4, span(0, rows=5, name=2), 5, 6)
    drain(session.sync(wanted))
    assert {3, 10, 11, 16, 17} <= set(snapshots(session))
    other = with_images(1, 2, 3, span(0, rows=7), 4, span(0, rows=5, name=3), 5, 6)
    assert session.plan(other).to_evaluate == 7


@pytest.mark.parametrize("layers", [RECURRENT, (WindowLayer, FakeLayer)])
def test_decoding_takes_one_every_so_many_tokens(layers: tuple) -> None:
    session, _ = session_of(layers)
    drain(session.sync(Timeline.of(range(20))))
    for token in range(100):
        session.append(token)
    session.end_turn()
    gaps = [b - a for a, b in itertools.pairwise(p for p in snapshots(session) if p >= 19)]
    assert max(gaps) == session._memory.spacing_tokens(session._state.snapshot_bytes)  # type: ignore[union-attr]
    assert snapshots(session)[-1] == 120
    assert session.worst_replay() <= 19


def test_a_snapshot_that_stands_already_is_not_copied_again() -> None:
    session, _ = session_of(RECURRENT)
    drain(session.sync(Timeline.of(range(30))))
    state = session._state
    copies: list[int] = []
    take = type(state).snapshot
    state.snapshot = lambda: copies.append(1) or take(state)  # type: ignore[union-attr, func-returns-value, method-assign]
    for _ in range(5):
        drain(session.sync(Timeline.of(range(30))))
    assert len(copies) == 1  # of its end, when its last token was taken back first


@pytest.mark.parametrize("budget_bytes", [0, 40, 100, 400])
def test_snapshots_never_take_more_than_there_is(budget_bytes: int) -> None:
    session, _ = session_of(RECURRENT, budget_bytes)
    for start in range(5):
        ids = [start, *range(300)]
        drain(session.sync(Timeline.of(ids), outline=outline_of(301, 20)))
        assert session._memory.nbytes <= budget_bytes
        assert drain(session.sync(Timeline.of(ids))).finished


@pytest.mark.parametrize(
    "lack",
    [MemoryError(), RuntimeError("cudaMallocAsync(&data, size, stream) failed: out of memory")],
    ids=["MemoryError", "MLX"],
)
def test_memory_that_runs_out_for_a_snapshot_costs_the_snapshot_only(lack: Exception) -> None:
    session, _ = session_of(RECURRENT)
    drain(session.sync(Timeline.of(range(10))))

    def fail() -> None:
        raise lack

    session._state.snapshot = fail  # type: ignore[union-attr, method-assign]
    for token in range(40):
        session.append(token)
    session.end_turn()
    assert len(session.timeline) == 50
    assert snapshots(session) == (9,)


def test_a_snapshot_of_the_branch_that_was_left_is_none_of_the_new_one() -> None:
    session, _ = session_of(RECURRENT)
    drain(session.sync(Timeline.of([7] * 7)))
    session.clear("as a test")
    drain(session.sync(Timeline.of([8] * 4)))
    session.end_turn()
    assert session.snapshot_at == 4
    wanted = Timeline.of([*[7] * 7, 9, 9, 9])
    plan = session.plan(wanted)
    assert (plan.base, plan.snapshot_id, plan.kept) == ("parked", None, 7)
    session.sync(wanted, plan).close()
    assert 4 not in snapshots(session)
    assert session.snapshot_at in (0, *snapshots(session))
