"""llama.cpp reads the golden files as Hugging Face and we do: whole distributions compared."""

from pathlib import Path

import numpy as np
import pytest

from tests.golden.files import (
    SCENES,
    families,
    golden,
    golden_path,
    projector_path,
    row,
    scenes,
)
from tests.golden.make.tokens import VOCAB
from tests.parity.checks import text_rows
from tests.parity.llamacpp import LlamaCpp
from tests.parity.mimic import round_gelu
from tests.parity.ours import load, walk
from tests.parity.test_golden import IMPLEMENTED
from tests.parity.three_way import expected, image_gap, largest_gap, log_softmax

TEXT = [name for name, facts in families().items() if not facts["vision"]]
VISION = [name for name, facts in families().items() if facts["vision"]]
STEPS = 4


@pytest.mark.parametrize("name", TEXT)
def test_llama_cpp_agrees_about_text(name: str, tmp_path: Path) -> None:
    """In one batch and token by token. `python -m tests.parity.three_way` asks more."""
    n, tolerance = row(name)["tokens"], row(name)["tolerance"]
    with LlamaCpp(golden_path(name), tmp_path / "log") as server:
        assert largest_gap(server, name, [1, n // 3, n]) <= tolerance
        assert largest_gap(server, name, range(n - STEPS + 1, n + 1), keep=True) <= tolerance


@pytest.mark.parametrize("name", VISION)
def test_llama_cpp_agrees_about_images(name: str, tmp_path: Path) -> None:
    with LlamaCpp(golden_path(name), tmp_path / "log", projector_path(name)) as server:
        length = len(str(golden(name)["after"]))
        assert image_gap(server, name, [1, length]) <= row(name)["tolerance"]


@pytest.mark.parametrize("name", [name for name in VISION if name != "idefics3"])
def test_llama_cpp_agrees_about_several_images(name: str, tmp_path: Path) -> None:
    """It lays idefics3 out as a tile and an overview even where the model's own processor, and
    we, have the overview only."""
    arrays = scenes(name)
    with LlamaCpp(golden_path(name), tmp_path / "log", projector_path(name)) as server:
        for scene, parts in SCENES.items():
            shown = (part if isinstance(part, str) else arrays[f"P{part}"] for part in parts)
            got = server.log_probabilities(server.about_images(*shown), VOCAB)
            gap = np.abs(got - log_softmax(arrays[f"{scene}_mimic"])).max()
            assert gap <= row(name)["tolerance"], scene


@pytest.mark.parametrize("name", IMPLEMENTED)
def test_llama_cpp_agrees_with_us(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On our logits directly, at every tenth position; we round GELU as it does."""
    if "gemma" in name:  # what is compiled cannot be made to
        monkeypatch.setenv("DS4TUI_KERNELS", "openblas")
    model, n = load(golden_path(name)), text_rows(name)  # kernels are checked before they round
    round_gelu(monkeypatch)
    ids = golden(name)["ids"][:n].tolist()
    ours = log_softmax(walk(model, ids, "chunked"))
    with LlamaCpp(golden_path(name), tmp_path / "log") as server:
        for length in range(n, 0, -10):
            theirs = server.log_probabilities(ids[:length], ours.shape[1])
            assert np.abs(theirs - ours[length - 1]).max() <= row(name)["tolerance"]


@pytest.mark.parametrize("kernels", ["openblas", "reference"])
@pytest.mark.parametrize("name", [n for n in IMPLEMENTED if row(n)["mimic"] == "half_gelu"])
def test_we_round_as_the_mimic_does(
    name: str, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every position. Without the rounding we differ: it is what the mimic is for."""
    monkeypatch.setenv("DS4TUI_KERNELS", kernels)
    want, model = expected(name), load(golden_path(name))
    ids, tolerance = golden(name)["ids"], row(name)["tolerance"]
    assert np.abs(log_softmax(walk(model, ids)) - want).max() > tolerance
    round_gelu(monkeypatch)
    assert np.abs(log_softmax(walk(model, ids)) - want).max() <= tolerance


def test_another_file_is_seen(tmp_path: Path) -> None:
    """The comparison turns red: the same prompt and logits, but the weights of another family."""
    with LlamaCpp(golden_path("llama-rope3"), tmp_path / "log") as server:
        assert largest_gap(server, "llama", [48]) > 100 * row("llama")["tolerance"]


def test_a_file_that_llama_cpp_refuses_is_an_error_with_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(golden_path("llama").read_bytes()[:10_000])
    with pytest.raises(RuntimeError, match=r"does not load cut.gguf: .+"):
        LlamaCpp(path, tmp_path / "log")
