"""Keys that no golden file has, or has otherwise: llama.cpp on changed copies of the files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4tui.engine.models.registry import load_model
from tests.engine.changed_gguf import changed
from tests.golden.files import golden, row
from tests.parity.checks import FELT
from tests.parity.llamacpp import LlamaCpp
from tests.parity.mimic import round_gelu
from tests.parity.ours import Settings, walk
from tests.parity.three_way import log_softmax

YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 16,
}
TURNS = {"rope.scaling.yarn_beta_fast": 32.0, "rope.scaling.yarn_beta_slow": 1.0}
RECURRENT = "attention.recurrent_layers"
PATTERN = "attention.sliding_window_pattern"


def check_llama_cpp_agrees(name: str, keys: dict[str, Any], folder: Path, tolerance: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DS4TUI_KERNELS", "openblas")  # C++ kernels cannot be made to round GELU
        path, ids = folder / "changed.gguf", golden(name)["ids"].tolist()
        model = load_model(changed(name, path, keys), Settings())
        round_gelu(patch)
        ours = log_softmax(walk(model, ids))
    with LlamaCpp(path, folder / "log") as server:
        for length in range(len(ids), 0, -10):
            theirs = server.log_probabilities(ids[:length], ours.shape[1])
            gap = np.abs(theirs - ours[length - 1]).max()
            assert gap <= tolerance, f"{length} tokens: {gap:.2g}"


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("llama", YARN),
        ("qwen2", YARN),
        ("qwen3", YARN),
        ("qwen3", YARN | TURNS),
        ("qwen3", YARN | {"rope.scaling.original_context_length": 512}),
        ("qwen3", YARN | {"rope.scaling.original_context_length": 4096, "rope.freq_base": 10.0}),
        ("qwen3", YARN | {"rope.scaling.attn_factor": 1.3}),
        ("qwen3moe", YARN | {"rope.scaling.factor": 2.5}),
        ("qwen3", {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}),
        ("qwen3moe", {"expert_used_count": 5}),
        ("gemma3", {PATTERN: 3}),
        ("gemma3", {PATTERN: [True, False, True, True, False, True, True]}),
        ("gemma3", {"attention.sliding_window": None}),
        ("gemma3", {"rope.freq_base_swa": None}),
        ("gemma3", {"rope.freq_base_swa": 500.0}),
        ("gemma3", {"rope.scaling.type": None, "rope.scaling.factor": None}),
        ("qwen35", {RECURRENT: None}),
        ("qwen35moe", {RECURRENT: None, "full_attention_interval": None}),
        ("qwen35moe", {"expert_used_count": 5}),
        ("qwen35", YARN),
        ("qwen3next", {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}),
    ],
)
def test_a_key_means_what_it_means_to_llama_cpp(
    name: str, keys: dict[str, Any], tmp_path: Path
) -> None:
    check_llama_cpp_agrees(name, keys, tmp_path, row(name)["tolerance"])


@pytest.mark.parametrize("left_out", ["rope.scaling.factor", "rope.scaling.type"])
def test_every_key_is_felt(left_out: str, tmp_path: Path) -> None:
    ids = golden("qwen3")["ids"].tolist()
    full = walk(load_model(changed("qwen3", tmp_path / "a.gguf", YARN), Settings()), ids)
    keys = {key: value for key, value in YARN.items() if key != left_out}
    less = walk(load_model(changed("qwen3", tmp_path / "b.gguf", keys), Settings()), ids)
    assert np.abs(full - less)[-1].max() > FELT
