"""Long lives: thousands of turns and hundreds of forks, by bytes and by counts."""

import gc
import tracemalloc
import weakref
from collections import Counter
from typing import Any

import pytest

from ds4tui.cache.memory_tier import MAX_ENTRIES, MemoryTier
from ds4tui.cache.outline import Turn
from ds4tui.cache.timeline import Timeline
from ds4tui.engine.session import Session
from ds4tui.engine.state import RowSegment
from tests.engine.histories import FailingModel, drain
from tests.fake_model import FakeModel
from tests.fake_state import FakeLayer, RecurrentLayer, WindowLayer
from tests.scale import scaled
from tests.traced import traced_bytes

KINDS = pytest.mark.parametrize(
    "layers",
    [(FakeLayer, FakeLayer), (FakeLayer, RecurrentLayer), (WindowLayer, FakeLayer)],
    ids=["append-only", "recurrent", "window"],
)


def session_of(layers: tuple, budget_bytes: int) -> Session:
    model = FakeModel(context_tokens=200_000, layer_types=layers)
    return Session(FailingModel(model), (64, 32, 8), memory=MemoryTier(budget_bytes))


@KINDS
def test_hundreds_of_forks_leave_nothing_behind(layers: tuple) -> None:
    budget_bytes = 3_000
    session = session_of(layers, budget_bytes)
    base = list(range(100))
    model: Any = session._model

    def fork(number: int) -> None:
        ids = [*base[: 70 + number % 30], 201 + number % 50, number % 200, number // 200]
        outline = (Turn(0, 20, "system", b""), Turn(20, len(ids), "user", b""))
        drain(session.sync(Timeline.of(ids), outline=outline))
        for token in range(5):
            session.append(token)
        session.end_turn()
        assert session._memory.nbytes <= budget_bytes
        session._memory.drain_notes()
        model.inner.chunks.clear()  # the fake's own record

    tracemalloc.start()
    try:
        for number in range(300):  # all that is bounded is full then, tombstones too
            fork(number)
        before, objects = traced_bytes(), len(gc.get_objects())
        for number in range(300, 300 + scaled(200)):
            fork(number)
        assert traced_bytes() - before < 20_000  # 100 bytes a fork would be 20,000
        assert len(gc.get_objects()) - objects < 200
    finally:
        tracemalloc.stop()
    memory = session._memory
    assert memory.parked_count + memory.segment_count + memory.snapshot_count < MAX_ENTRIES


@KINDS
def test_a_turn_costs_the_same_after_a_thousand_of_them(
    layers: tuple, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows fed, forward passes, bytes copied and comparisons of whole timelines."""
    session = session_of(layers, 1600)
    calls: Counter[str] = Counter()
    common_prefix = Timeline.common_prefix

    def counting(self: Timeline, other: Timeline) -> int:
        calls["comparisons"] += 1
        return common_prefix(self, other)

    monkeypatch.setattr(Timeline, "common_prefix", counting)
    monkeypatch.setattr(session, "_debug", False)  # its assertions compare, too
    model: Any = session._model
    ids: list[int] = list(range(30))
    outline: list[Turn] = [Turn(0, 30, "system", b"")]

    def turn(number: int) -> Counter[str]:
        before = Counter(calls)
        fed, passes = model.fed, len(model.inner.chunks)
        start = len(ids)
        ids.extend([number % 200, 1, 2, 3])
        outline.append(Turn(start, len(ids), "user", b""))
        drain(session.sync(Timeline.of(ids), outline=tuple(outline)))
        for token in (5, 6):
            session.append(token)
            ids.append(token)
        session.end_turn()
        outline.append(Turn(len(ids) - 2, len(ids), "assistant", b""))
        spent = calls - before
        return spent + Counter(fed=model.fed - fed, passes=len(model.inner.chunks) - passes)

    early = [turn(number) for number in range(20)][-1]
    for number in range(20, scaled(1000)):
        last = turn(number)
    assert last["fed"] == early["fed"] == 6
    assert last["passes"] <= early["passes"]
    assert last["comparisons"] <= early["comparisons"] + 2
    assert session._memory.segment_count == session._memory.parked_count == 0


def test_buffers_are_freed_when_a_segment_dies() -> None:
    session = session_of((FakeLayer, FakeLayer), 1 << 40)
    drain(session.sync(Timeline.of(range(200))))
    drain(session.sync(Timeline.of([*range(190), 5])))
    segments = [o for o in gc.get_objects() if isinstance(o, RowSegment)]
    arrays = [weakref.ref(a) for s in segments for rows in s.layers if rows for a in rows.arrays]
    del segments
    assert arrays and all(ref() is not None for ref in arrays)
    session._memory.make_room(session._memory.budget_bytes)
    gc.collect()
    assert all(ref() is None for ref in arrays)


def test_a_parked_state_is_freed_when_it_goes() -> None:
    session = session_of((FakeLayer, FakeLayer), 1 << 40)
    drain(session.sync(Timeline.of(range(200))))
    state = weakref.ref(session._state)  # type: ignore[arg-type]
    drain(session.sync(Timeline.of([250, 251])))
    assert state() is not None
    session._memory.make_room(session._memory.budget_bytes)
    gc.collect()
    assert state() is None


def test_a_state_that_is_neither_kept_nor_parked_is_free_before_new_rows_are_made() -> None:
    session = session_of((FakeLayer, FakeLayer), 0)
    drain(session.sync(Timeline.of(range(200))))
    state = weakref.ref(session._state)  # type: ignore[arg-type]
    seen: list[bool] = []
    session._model.inner.before_forward = lambda rows: seen.append(state() is None)  # type: ignore[attr-defined]
    drain(session.sync(Timeline.of([250, 251])))
    assert seen == [True, True]
