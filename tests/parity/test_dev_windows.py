"""Gemma 3 270M (window 512) past its window, as llama.cpp runs it: after its rows moved, after
rewinds within the slack of the window and beyond it, and in a state that was rebuilt.

llama.cpp has the same weights in float32 and starts cold for every prompt.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from ds4tui.cache.memory_tier import MemoryTier
from ds4tui.cache.plan import PlanKind
from ds4tui.cache.timeline import Timeline
from ds4tui.engine.capacity import window_capacity
from ds4tui.engine.models.registry import Model
from ds4tui.engine.models.rows import Rows
from ds4tui.engine.session import Session
from tests.parity.dequantised import write_dequantised
from tests.parity.llamacpp import LlamaCpp
from tests.parity.ours import load
from tests.parity.test_real_model import check_greedy

pytestmark = pytest.mark.dev_models

TEXT = Path(__file__).parents[1] / "golden" / "README.md"
WINDOW, CONTEXT = 512, 2048
NEW_TOKENS = 16
NEAR_TIE = 0.05  # as test_dev_models.py has it, for llama.cpp's rounded GELU


@pytest.fixture(scope="module")
def server(
    dev_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LlamaCpp]:
    folder = tmp_path_factory.mktemp("llamacpp")
    path = folder / "float32.gguf"
    write_dequantised(dev_model("gemma"), path)
    try:
        with LlamaCpp(path, folder / "log", context=CONTEXT) as server:
            yield server
    finally:
        path.unlink()


@pytest.fixture(scope="module")
def ids(server: LlamaCpp) -> list[int]:
    found = server.tokenize(TEXT.read_text())
    assert len(found) > 1900
    return found


@pytest.fixture(scope="module")
def model(dev_model: Callable[[str], Path]) -> Model:
    return load(dev_model("gemma"))


def test_greedy_text_is_llama_cpps_wherever_a_session_goes(
    server: LlamaCpp, ids: list[int], model: Model
) -> None:
    """One session: past the window, back a little, on the branch that was left and past the length
    of its buffers (so rows move), back a little, back beyond the slack, and back to a branch."""
    session = Session(model, memory=MemoryTier(2**31))
    other = [*ids[:690], *ids[1000:1020]]
    long = ids[:1500]
    assert len(long) > window_capacity(WINDOW)
    far = [*ids[:900], *ids[100:160]]
    prompts = (
        (ids[:700], PlanKind.COLD),
        (other, PlanKind.REWIND),
        (long, PlanKind.RESTORE),
        ([*long[:1470], *ids[:20]], PlanKind.REWIND),
        (far, PlanKind.RESTORE),
        ([*long[:1470], *ids[:25]], PlanKind.RESTORE),
    )
    for prompt, kind in prompts:
        plan = session.plan(Timeline.of(prompt))
        assert plan.kind is kind, f"{len(prompt)} tokens: {plan}"
        assert plan.kept >= 512 or kind is PlanKind.COLD, "a chunk's end at least"
        check_greedy(session, prompt, server.greedy(prompt, NEW_TOKENS), NEAR_TIE)
        session.end_turn()


def test_a_rebuilt_state_goes_on_to_the_bit(ids: list[int], model: Model) -> None:
    """From a snapshot and copies of the rows that all layers keep, far behind its window."""

    def go_on(state: object) -> list[bytes]:
        rows = (Rows.of_ids(ids[at : at + 1], at, "last") for at in range(700, 705))
        return [np.asarray(model.forward(row, state)).tobytes() for row in rows]

    state = model.new_state()
    for start in range(0, 700, 350):
        model.forward(Rows.of_ids(ids[start : start + 350], start, "none"), state)
    snapshot, segment = state.snapshot(), state.copy_rows(0, 700)
    assert snapshot is not None and snapshot.nbytes == 15 * (WINDOW - 1) * 2 * 256 * 4
    first = go_on(state)
    for start in range(705, 1905, 400):
        model.forward(Rows.of_ids(ids[start : start + 400], start, "none"), state)
    assert not state.can_rewind(700)
    state.rebuild(200, [(segment, 200, 700)], snapshot)
    assert go_on(state) == first
