"""Faults of windows and snapshots turn the logits of Gemma 3 wrong, on every set of twins.

The same faults as in test_state_histories.py, seen through a model. Buffers are so short that rows
move several times within a prompt.
"""

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from ds4tui.engine import capacity
from ds4tui.engine.models.registry import Model
from ds4tui.engine.models.rows import Rows
from ds4tui.engine.state import ModelState
from tests.engine.state_faults import FAULTS
from tests.engine.state_histories import small_buffers
from tests.golden.files import golden_path
from tests.parity.checks import TOLERANCE
from tests.parity.ours import load, walk

IDS = np.random.default_rng(8).integers(0, 256, 140)
CHUNK = 8
WINDOW_FAULTS = [name for name in FAULTS if "segment" not in name and "part" not in name]


@cache
def wanted() -> np.ndarray:
    """At every position, by the reference, with buffers of their usual length."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DS4TUI_KERNELS", "reference")
        return walk(load(golden_path("gemma3")), IDS)


@pytest.fixture(params=["auto", "openblas", "reference"])
def model(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    cold = wanted()
    assert len(cold) == len(IDS)
    monkeypatch.setenv("DS4TUI_KERNELS", request.param)
    found = load(golden_path("gemma3"))
    small_buffers(monkeypatch)
    monkeypatch.setattr(capacity, "MOVE_ROWS", CHUNK)
    return found


def feed(model: Model, state: ModelState, end: int, chunk: int = CHUNK) -> None:
    while state.length < end:
        start, stop = state.length, min(state.length + chunk, end)
        logits = np.asarray(model.forward(Rows.of_ids(IDS[start:stop], start, "all"), state))
        gap = np.abs(logits - wanted()[start:stop]).max()
        assert gap <= TOLERANCE, f"rows {start} to {stop}: logits differ by {gap:.2g}"


def check_windows(model: Model) -> None:
    """On, back within the slack, on, back to snapshots, in a state of its own and in this one."""
    state = model.new_state()
    feed(model, state, 60)
    snapshot, segment = state.snapshot(), state.copy_rows(0, 60)
    feed(model, state, 70, chunk=1)
    feed(model, state, 110)
    furthest = next(n for n in range(1, 110) if state.can_rewind(n))
    state.rewind(furthest)
    feed(model, state, 120)
    fresh = model.new_state()
    fresh.rebuild(0, [(segment, 0, 60)], snapshot)
    feed(model, fresh, 100, chunk=5)
    state.rebuild(30, [(segment, 30, 60)], snapshot)
    feed(model, state, 140)


def test_right_windows_pass(model: Model) -> None:
    check_windows(model)


@pytest.mark.parametrize("fault", WINDOW_FAULTS)
def test_a_fault_of_windows_is_seen(
    model: Model, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    FAULTS[fault](monkeypatch)
    if "aliases" in fault and "MLX" in model.compute_path:
        return check_windows(model)  # who holds an MLX array never sees it change
    # A state or a kernel may refuse what it is told.
    with pytest.raises((AssertionError, ValueError)):
        check_windows(model)
