"""Every check is shown to turn red: the right engine passes it, a planted fault does not."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from ds4tui.engine import capacity
from ds4tui.engine.models.registry import Model
from ds4tui.engine.session import Session
from tests.golden.files import golden_path
from tests.parity import family_faults, faults
from tests.parity.checks import check_golden, check_reuse, check_sensitivity
from tests.parity.ours import last_logits, load

CHUNKS = (8, 4)


@cache
def model() -> Model:
    return load(golden_path("llama"))


@cache
def _cold(ids: tuple[int, ...]) -> np.ndarray:
    return last_logits(model(), ids)


def cold(ids: Sequence[int]) -> np.ndarray:
    return _cold(tuple(ids))


@cache
def _cold_gemma_once(ids: tuple[int, ...]) -> np.ndarray:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DS4TUI_KERNELS", "reference")
        return last_logits(load(golden_path("gemma3")), ids)


def _cold_gemma(ids: Sequence[int]) -> np.ndarray:
    return _cold_gemma_once(tuple(ids))


FILE_FAULTS = faults.FILE_FAULTS | family_faults.FILE_FAULTS


@pytest.mark.parametrize("name", FILE_FAULTS)
def test_a_fault_of_loading_is_seen(name: str, tmp_path: Path) -> None:
    fault = FILE_FAULTS[name]
    check_golden(load(golden_path(fault.family)), fault.family)
    with pytest.raises(AssertionError, match="logits differ by"):
        check_golden(load(fault.planted(tmp_path)), fault.family)


@pytest.mark.parametrize("kernels", ["auto", "reference"])
@pytest.mark.parametrize("name", family_faults.CONFIG_FAULTS)
def test_a_fault_of_a_family_is_seen(
    name: str, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DS4TUI_KERNELS", kernels)
    fault = family_faults.CONFIG_FAULTS[name]
    check_golden(replace(fault, change=lambda config: config).model(), fault.family)
    with pytest.raises(AssertionError, match="logits differ by"):
        check_golden(fault.model(), fault.family)


@pytest.mark.parametrize("kernels", ["openblas", "reference"])
def test_shares_of_experts_that_are_not_scaled_are_seen(
    kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DS4TUI_KERNELS", kernels)
    moe = load(golden_path("qwen3moe"))
    check_golden(moe, "qwen3moe")
    family_faults.shares_not_scaled(monkeypatch)
    with pytest.raises(AssertionError, match="logits differ by"):
        check_golden(moe, "qwen3moe")


def test_sessions_and_the_wrapper_without_a_fault_pass() -> None:
    check_reuse(Session(model(), CHUNKS), cold, "llama")
    check_reuse(Session(faults.FaultyModel(model(), faults.FaultyState), CHUNKS), cold, "llama")


@pytest.mark.parametrize("name", faults.STATE_FAULTS)
def test_a_fault_of_the_state_is_seen(name: str) -> None:
    faulty = faults.FaultyModel(model(), faults.STATE_FAULTS[name])
    with pytest.raises(AssertionError, match="logits differ by"):
        check_reuse(Session(faulty, CHUNKS), cold, "llama")


@pytest.mark.parametrize("name", ["no fault", *faults.STATE_FAULTS])
def test_a_fault_of_a_state_with_windows_is_seen(name: str) -> None:
    """Among them the last token fed twice on an exact hit."""
    gemma = load(golden_path("gemma3"))
    kinds = faults.STATE_FAULTS | {"no fault": faults.FaultyState}
    session = Session(faults.FaultyModel(gemma, kinds[name]), CHUNKS)
    if name == "no fault":
        return check_reuse(session, _cold_gemma, "gemma3")
    with pytest.raises(AssertionError, match="logits differ by"):
        check_reuse(session, _cold_gemma, "gemma3")


def test_a_common_prefix_taken_too_long_is_seen() -> None:
    with pytest.raises(AssertionError, match="logits differ by"):
        check_reuse(faults.GreedySession(model(), CHUNKS), cold, "llama")


def test_an_uneven_layer_that_shows_itself_stops_the_session() -> None:
    with pytest.raises(AssertionError, match="the session stopped"):
        check_reuse(Session(faults.OpenlyUneven(model()), CHUNKS), cold, "llama")


@pytest.mark.parametrize("kernels", ["auto", "openblas", "reference"])
def test_a_row_lost_when_buffers_grow_is_seen(
    kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With blocks so small that prompts cross their borders, in NumPy, C++ and MLX."""
    monkeypatch.setenv("DS4TUI_KERNELS", kernels)
    monkeypatch.setattr(capacity, "BLOCK_ROWS", 16)
    tiny = load(golden_path("llama"))
    check_golden(tiny, "llama")
    check_reuse(Session(tiny, CHUNKS), cold, "llama")
    faults.lose_a_row_when_growing(monkeypatch)
    with pytest.raises(AssertionError, match="logits differ by"):
        check_golden(tiny, "llama")
    with pytest.raises(AssertionError, match="logits differ by"):
        check_reuse(Session(tiny, CHUNKS), cold, "llama")


def test_a_blind_model_is_seen(tmp_path: Path) -> None:
    """Values of nothing: attention carries no other token, so most are not felt."""

    def silence(path: Path) -> None:
        for output in faults.tensors(path, "attn_output.weight"):
            output[:] = 0

    blind = load(faults.FileFault("llama", silence).planted(tmp_path))
    with pytest.raises(AssertionError, match="moves the logits by"):
        check_sensitivity(blind, "llama")
