"""The random histories of sessions on a Gemma 3 whose windows are moved, and gone back to from
snapshots, all the time: its buffers are no longer than a few chunks."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ds4tui.engine import capacity
from tests.engine.histories import PLENTY, Judge, Operation, every_kind, histories
from tests.engine.state_faults import FAULTS
from tests.engine.state_histories import small_buffers
from tests.engine.test_session_real import FamilyRig
from tests.scale import scaled


@pytest.fixture(scope="module", params=["auto", "openblas", "reference"])
def rig(request: pytest.FixtureRequest) -> Iterator[FamilyRig]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DS4TUI_KERNELS", request.param)
        rig = FamilyRig("gemma3")
        small_buffers(patch)
        patch.setattr(capacity, "MOVE_ROWS", 8)
        yield rig


@given(history=histories, budget_bytes=st.sampled_from([PLENTY, PLENTY, 300_000, 30_000]))
@settings(
    max_examples=scaled(10),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_random_histories(rig: FamilyRig, history: list[Operation], budget_bytes: int) -> None:
    Judge(rig, sessions=2, budget_bytes=budget_bytes).play(history)


def test_every_kind_after_every_other(rig: FamilyRig) -> None:
    for place, history in enumerate(every_kind()):
        if place % 6 == 0:
            Judge(rig, sessions=1 + place % 2).play(history)


@pytest.mark.parametrize(
    "fault",
    ["a window's row off by one", "a rewind beyond the slack", "a snapshot one row late",
     "a snapshot that aliases the live buffer", "rows moved in the wrong order"],
)  # fmt: skip
def test_a_planted_fault_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last token fed twice is among the faults of tests/parity/test_faults.py."""
    # The rigs above may still be there, and MLX never writes to an array that is shared.
    monkeypatch.setenv("DS4TUI_KERNELS", "auto")
    rig = FamilyRig("gemma3")
    small_buffers(monkeypatch)
    monkeypatch.setattr(capacity, "MOVE_ROWS", 8)
    FAULTS[fault](monkeypatch)
    with pytest.raises((AssertionError, ValueError)):
        for history in every_kind():
            Judge(rig).play(history)
