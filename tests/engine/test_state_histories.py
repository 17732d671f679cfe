"""States of all kinds of layers through any history, against the ids that were fed."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.engine.state_faults import FAULTS
from tests.engine.state_histories import TWINS, Judge, Operation, histories, small_buffers
from tests.scale import scaled


@pytest.fixture(params=TWINS, autouse=True)
def twin(request: pytest.FixtureRequest) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        small_buffers(patch)
        yield TWINS[request.param]


@settings(
    max_examples=scaled(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(history=histories)
def test_any_history_leaves_what_its_ids_say(twin: Any, history: list[Operation]) -> None:
    Judge(twin).play(history)


# Every operation after every other, with windows that have moved many times.
LONG = [
    Operation("extend", count=10),
    Operation("put away", share=0.5),
    Operation("step", count=39),
    Operation("put away", share=0.3),
    Operation("rewind", share=0.95),
    Operation("step", count=5, seed=1),
    Operation("extend", count=90, seed=2),
    Operation("step", count=35, seed=3),
    Operation("put away", share=0.0),
    Operation("rewind", share=0.98),
    Operation("step", count=30, seed=2),
    Operation("rewind", share=0.2),
    Operation("copy", share=0.5),
    Operation("rebuild", pick=1, share=0.0),
    Operation("step", count=33, seed=1),
    Operation("rebuild", pick=2, share=0.7, count=3),
    Operation("step", count=20, seed=1),
    Operation("fresh"),
    Operation("rewind", share=0.9),
    Operation("step", count=20, seed=2),
    Operation("wrong"),
    Operation("rewind", share=0.0),
    Operation("rebuild", pick=2, share=0.0),
    Operation("step", count=39, seed=0),
    Operation("step", count=39, seed=2),
]


def test_a_long_history_leaves_what_its_ids_say(twin: Any) -> None:
    Judge(twin).play(LONG)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(twin: Any, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS[fault](monkeypatch)
    if not twin.in_numpy and "aliases" in fault:
        Judge(twin).play(LONG)  # who holds an MLX array never sees it change: it costs memory
        return
    with pytest.raises((AssertionError, ValueError)):  # seen by the judge, or by the state itself
        Judge(twin).play(LONG)
