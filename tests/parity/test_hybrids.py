"""Hybrids in a session: exact through snapshots, with no more tokens than needed, and leaking
nothing; and faults that others had are seen."""

import gc
from collections.abc import Sequence
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from ds4tui.cache.memory_tier import MemoryTier
from ds4tui.cache.timeline import Timeline
from ds4tui.engine.models.registry import Model
from ds4tui.engine.models.rows import Rows
from ds4tui.engine.session import Session
from ds4tui.engine.state import RecurrentLayer
from tests.golden.files import golden, golden_path
from tests.parity import recurrent_faults
from tests.parity.checks import check_reuse
from tests.parity.ours import last_logits, load

HYBRIDS = ["qwen3next", "qwen35", "qwen35moe", "qwen4exp", "glm5-next"]
CHUNKS = (8, 4)
BUDGET = 64 * 2**20


@pytest.fixture(params=["auto", "openblas", "reference"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("DS4TUI_KERNELS", request.param)
    return request.param


@cache
def loaded(name: str, kernels: str) -> Model:
    return load(golden_path(name))  # by the kernels that the environment names


class Cold:
    """Logits after a prompt from nothing."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._known: dict[tuple[int, ...], np.ndarray] = {}

    def __call__(self, ids: Sequence[int]) -> np.ndarray:
        key = tuple(ids)
        if key not in self._known:
            self._known[key] = last_logits(self._model, key)
        return self._known[key]


def session_of(model: Any) -> Session:
    return Session(model, CHUNKS, memory=MemoryTier(BUDGET))


@pytest.mark.parametrize("name", HYBRIDS)
def test_a_session_reuses_what_it_has_exactly(name: str, kernels: str) -> None:
    model = loaded(name, kernels)
    check_reuse(session_of(model), Cold(model), name)


class Counting:
    """A model that counts the rows it evaluates."""

    def __init__(self, model: Model) -> None:
        self._model, self.rows = model, 0
        self.context_tokens, self.new_state = model.context_tokens, model.new_state
        self.kv_bytes = model.kv_bytes

    def forward(self, rows: Rows, state: Any) -> mx.array | None:
        self.rows += len(rows)
        return self._model.forward(rows, state)


def evaluated(session: Session, model: Counting, ids: Sequence[int]) -> int:
    before, prefill = model.rows, session.sync(Timeline.of(ids))
    while not prefill.finished:
        prefill.step(CHUNKS[0])
    return model.rows - before


@pytest.mark.parametrize("name", HYBRIDS)
def test_a_prompt_that_is_wholly_resident_costs_one_token(name: str, kernels: str) -> None:
    model, ids = Counting(loaded(name, kernels)), golden(name)["ids"].tolist()
    session = session_of(model)
    assert evaluated(session, model, ids[:60]) == 60
    assert evaluated(session, model, ids[:60]) == 1
    session.append(ids[60])
    assert evaluated(session, model, ids[:60]) == 1
    assert evaluated(session, model, ids[:100]) <= 41
    assert evaluated(session, model, ids[:60]) == 1


@pytest.mark.parametrize("fault", recurrent_faults.FAULTS | recurrent_faults.HOST_FAULTS)
def test_a_planted_fault_is_seen(fault: str, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded("qwen35", kernels)
    plants = recurrent_faults.FAULTS | recurrent_faults.HOST_FAULTS
    cold = Cold(model)
    plants[fault](monkeypatch)
    if kernels == "reference" and fault in recurrent_faults.HOST_FAULTS:
        check_reuse(session_of(model), cold, "qwen35")  # nobody writes to an MLX array
        return
    with pytest.raises(AssertionError, match=r"logits differ by|the session stopped"):
        check_reuse(session_of(model), cold, "qwen35")


TOKENS = 500  # of one sequence; the tiny models take 512


@pytest.mark.parametrize("name", ["qwen35", "qwen35moe"])
def test_thousands_of_tokens_leave_nothing_behind(name: str, kernels: str) -> None:
    """Neither memory nor objects nor pending graphs grow with tokens, beside the rows of the
    layers that attend: within a sequence and over 2,500 tokens in five."""
    model, ids, marks = loaded(name, kernels), golden(name)["ids"], []
    for sequence in range(5):
        state = model.new_state()
        for i in range(TOKENS):
            model.forward(Rows.of_ids(ids[[i % len(ids)]], i), state)
            if sequence and i + 1 in (TOKENS // 4, TOKENS):  # the first makes what stays for good
                marks.append(_taken(state.nbytes if kernels == "reference" else 0))
        bounded = [layer for layer in state.layers if layer.is_bounded]
        assert [layer.nbytes for layer in bounded] == [layer.bounded_bytes for layer in bounded]
    memory, objects = (np.ptp(column) for column in zip(*marks, strict=True))
    assert memory <= 64 * 1024 and objects <= 200, marks


def _taken(state_bytes: int) -> tuple[int, int]:
    """Bytes of MLX beside the state's, and objects that Python follows."""
    gc.collect()
    return mx.get_active_memory() - state_bytes, len(gc.get_objects())


def test_a_state_that_keeps_what_each_token_made_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    replace = RecurrentLayer.replace

    def keeping(layer: RecurrentLayer, *arrays: Any) -> None:
        kept.append(arrays[0])
        replace(layer, *arrays)

    monkeypatch.setattr(RecurrentLayer, "replace", keeping)
    monkeypatch.setenv("DS4TUI_KERNELS", "reference")
    with pytest.raises(AssertionError):
        test_thousands_of_tokens_leave_nothing_behind("qwen35", "reference")
