"""YaRN, which no golden family of these architectures has: llama.cpp on the same changed files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4tui.engine.models.registry import load_model
from tests.engine.changed_gguf import changed
from tests.golden.files import golden
from tests.parity.checks import FELT, TOLERANCE
from tests.parity.llamacpp import LlamaCpp
from tests.parity.ours import Settings, walk
from tests.parity.three_way import log_softmax

YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 16,
}
BETAS = {"rope.scaling.yarn_beta_fast": 32.0, "rope.scaling.yarn_beta_slow": 1.0}


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("llama", YARN),
        ("qwen2", YARN),
        ("qwen3", YARN),
        ("qwen3", YARN | BETAS),
        ("qwen3", YARN | {"rope.scaling.original_context_length": 512}),
        ("qwen3", YARN | {"rope.scaling.attn_factor": 1.3}),
        ("qwen3moe", YARN | {"rope.scaling.factor": 2.5}),
    ],
)
def test_yarn_is_that_of_llama_cpp(name: str, keys: dict[str, Any], tmp_path: Path) -> None:
    path, ids = tmp_path / "yarn.gguf", golden(name)["ids"].tolist()
    ours = log_softmax(walk(load_model(changed(name, path, keys), Settings()), ids))
    with LlamaCpp(path, tmp_path / "log") as server:
        for length in range(len(ids), 0, -10):
            theirs = server.log_probabilities(ids[:length], ours.shape[1])
            assert np.abs(theirs - ours[length - 1]).max() <= TOLERANCE, length


@pytest.mark.parametrize("left_out", ["rope.scaling.factor", "rope.scaling.type"])
def test_every_key_is_felt(left_out: str, tmp_path: Path) -> None:
    ids = golden("qwen3")["ids"].tolist()
    full = walk(load_model(changed("qwen3", tmp_path / "a.gguf", YARN), Settings()), ids)
    keys = {key: value for key, value in YARN.items() if key != left_out}
    less = walk(load_model(changed("qwen3", tmp_path / "b.gguf", keys), Settings()), ids)
    assert np.abs(full - less)[-1].max() > FELT
