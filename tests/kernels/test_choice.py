"""Which twin is used, and what happens when one is wrong."""

import logging
from dataclasses import replace

import mlx.core as mx
import pytest

from ds4tui.errors import ConfigError
from ds4tui.kernels import checks, choice, hybrid_checks
from ds4tui.kernels.choice import TWINS, TwinChoice
from ds4tui.kernels.cpu.native import check as native_check
from ds4tui.kernels.cpu.native.build import Unavailable


@pytest.mark.parametrize(
    "check",
    [
        native_check.native_step,
        native_check.native_rule,
        checks.host_linear,
        checks.host_attention,
        checks.host_block,
        checks.fused_attention,
        hybrid_checks.host_hybrid_blocks,
        hybrid_checks.chunked_rule,
    ],
)
def test_every_twin_agrees_here(check: checks.Check) -> None:
    assert check() == ""


def break_twin(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setitem(TWINS, key, replace(TWINS[key], check=lambda: "3 rows: differs by 0.5"))


IN_NUMPY = {"DS4TUI_KERNELS": "openblas"}


def test_the_largest_unit_is_chosen_on_a_cpu() -> None:
    made = TwinChoice({}, "cpu")
    path = made.path()
    assert (path.matrices, path.host_blocks, path.activations) == ("blocks", True, mx.float32)
    assert path.words.startswith("whole steps in C++")
    used = [line.operation for line in made.report() if line.in_use]
    assert used == ["decoder step", "hybrid block", "delta rule"]
    assert (path.hybrid_blocks, path.rule) == (True, "native")


def test_numpy_can_be_asked_for() -> None:
    made = TwinChoice(IN_NUMPY, "cpu")
    path = made.path()
    assert (path.matrices, path.attention, path.host_blocks) == ("host", "openblas", True)
    assert path.activations == mx.float32
    step = next(line for line in made.report() if line.operation == "decoder step")
    assert (step.in_use, step.is_fault) == (False, False)
    assert step.reason == "DS4TUI_KERNELS=openblas"


def test_a_wrong_step_in_c_leaves_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    break_twin(monkeypatch, "decoder step cpu")
    made = TwinChoice({}, "cpu")
    assert (made.path().matrices, made.path().host_blocks) == ("host", True)
    assert [line.operation for line in made.report() if line.is_fault] == ["decoder step"]
    rule = next(line for line in made.report() if line.operation == "delta rule")
    assert (rule.in_use, rule.reason.partition("; ")[2]) == (False, "nothing else runs in C++")
    assert made.path().rule == "numpy"


@pytest.mark.parametrize(
    ("broken", "hybrids", "rule"),
    [("delta rule cpu", True, "numpy"), ("hybrid block cpu", False, "reference")],
)
def test_a_wrong_twin_of_hybrids_leaves_whole_steps(
    broken: str, hybrids: bool, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_twin(monkeypatch, broken)
    path = TwinChoice({}, "cpu").path()
    assert (path.matrices, path.host_blocks) == ("blocks", True)
    assert (path.hybrid_blocks, path.rule) == (hybrids, rule)


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_other_models_check_no_twin_of_hybrids(
    device: choice.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("hybrid block cpu", "delta rule cpu", "delta rule gpu", "delta rule in chunks gpu"):
        monkeypatch.setitem(TWINS, key, replace(TWINS[key], check=lambda: 1 / 0))
    path = TwinChoice({}, device).path(hybrids=False)
    assert (path.hybrid_blocks, path.rule) == (False, "reference")
    with pytest.raises(ZeroDivisionError):
        TwinChoice({}, device).path()


def test_a_wrong_delta_rule_leaves_a_gpu_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    has_kernel = mx.metal.is_available()
    assert TwinChoice({}, "gpu").path().rule == ("fused" if has_kernel else "chunks")
    break_twin(monkeypatch, "delta rule gpu")
    made = TwinChoice({}, "gpu")
    assert made.path().rule == "chunks"
    assert [line.operation for line in made.report() if line.is_fault] == ["delta rule"]
    break_twin(monkeypatch, "delta rule in chunks gpu")
    assert TwinChoice({}, "gpu").path().rule == "reference"


def test_a_missing_compiler_is_no_fault(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def check() -> str:
        raise Unavailable("no C++ compiler found")

    key = "decoder step cpu"
    monkeypatch.setitem(TWINS, key, replace(TWINS[key], check=check))
    made = TwinChoice({}, "cpu")
    path = made.path()
    assert (path.matrices, path.host_blocks) == ("host", True)
    assert "NumPy's OpenBLAS" in path.words
    step = next(line for line in made.report() if line.operation == "decoder step")
    assert (step.in_use, step.is_fault, step.reason) == (False, False, "no C++ compiler found")
    assert [r.levelname for r in caplog.records if "C++" in r.message] == ["WARNING"]


@pytest.mark.parametrize(
    ("broken", "wanted"),
    [
        ("decoder block cpu", ("host", "openblas", False)),
        ("attention cpu", ("host", "reference", False)),
        ("matrix product cpu", ("dense", "openblas", False)),
    ],
)
def test_a_wrong_twin_is_disabled_alone(
    broken: str,
    wanted: tuple[str, str, bool],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    break_twin(monkeypatch, broken)
    made = TwinChoice(IN_NUMPY, "cpu")
    with caplog.at_level(logging.ERROR):
        path = made.path()
    assert (path.matrices, path.attention, path.host_blocks) == wanted
    assert "differs by 0.5" in caplog.text
    lines = {f"{line.operation} cpu": line for line in made.report()}
    unused = [key for key, line in lines.items() if not line.in_use]
    assert unused == ["decoder step cpu", broken, "delta rule cpu"]
    assert [key for key, line in lines.items() if line.is_fault] == [broken]
    assert lines[broken].reason == "3 rows: differs by 0.5"


def test_a_twin_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    key = "attention cpu"
    monkeypatch.setitem(TWINS, key, replace(TWINS[key], check=lambda: calls.append(1) or ""))
    made = TwinChoice({}, "cpu")
    made.path(), made.path(), made.report()
    assert calls == [1]


def test_the_reference_can_be_asked_for() -> None:
    made = TwinChoice({"DS4TUI_KERNELS": "reference"}, "cpu")
    path = made.path()
    assert (path.matrices, path.attention, path.host_blocks) == ("dense", "reference", False)
    assert path.words == "MLX reference"
    assert {line.reason for line in made.report()} == {"DS4TUI_KERNELS=reference"}


def test_another_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="DS4TUI_KERNELS"):
        TwinChoice({"DS4TUI_KERNELS": "fast"}, "cpu")


def test_a_gpu_keeps_matrices_quantised_and_rows_in_half() -> None:
    path = TwinChoice({}, "gpu").path()
    assert (path.matrices, path.host_blocks, path.activations) == ("quantised", False, mx.float16)


def test_the_environment_is_read_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS4TUI_KERNELS", "reference")
    assert not choice.current().usable("attention")
    monkeypatch.delenv("DS4TUI_KERNELS")
    assert choice.current().usable("attention") == (choice.current().device == "cpu")


@pytest.mark.parametrize("scale", [1.001, float("nan")])
def test_checks_see_a_wrong_result(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    right = checks.cpu_attend

    def wrong(*args):
        return right(*args) * scale

    monkeypatch.setattr(checks, "cpu_attend", wrong)
    assert "differs" in checks.host_attention()
