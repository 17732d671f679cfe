"""Which image encoder belongs to a model, by names and headers."""

from dataclasses import replace
from pathlib import Path

import pytest

from ds4tui.engine.vision.config import Projector
from ds4tui.errors import GGUFError
from ds4tui.library.eyes import Text, beside, first_fitting, likeness, require_fitting
from tests.engine.vision.pictures import CONFIGS
from tests.golden.files import projector_path

LLAMA = Text("llama", 64)


def touched(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    return path


def test_those_beside_a_model_the_likeliest_first(tmp_path: Path) -> None:
    model = touched(tmp_path / "Qwen3VL-8B-Instruct-Q4_K_M.gguf")
    touched(tmp_path / "other.gguf")
    others = touched(tmp_path / "mmproj-gemma-3-4b-it-f16.gguf")
    own = touched(tmp_path / "Qwen3-VL-8B-Instruct.MMPROJ-F16.GGUF")
    smaller = touched(tmp_path / "mmproj-Qwen3VL-4B-Instruct-F16.gguf")
    assert beside(model, tmp_path) == [own, smaller, others]


def test_the_one_of_a_repository_serves_the_folders_below_it(tmp_path: Path) -> None:
    models, repository = tmp_path / "models", tmp_path / "models" / "o" / "r"
    one = touched(repository / "mmproj-F16.gguf")
    assert beside(touched(repository / "Q4_0" / "m.gguf"), models) == [one]
    lone = touched(models / "mmproj-of-another.gguf")
    assert beside(touched(models / "m.gguf"), models) == [lone]  # held against its header
    assert beside(touched(models / "o" / "m.gguf"), models) == []


def test_names_are_compared_without_their_punctuation() -> None:
    assert likeness("mmproj-smollm2-135m-x.gguf", "SmolLM2-135M-Instruct.gguf") >= 11
    assert likeness("mmproj-ab.gguf", "xy.bin") == 0


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("idefics3", Text("llama", 96), "64 numbers, and the model takes 96"),
        ("gemma3", LLAMA, "made for gemma3, not for llama"),
        ("qwen", Text("qwen3", 64), "made for qwen3vl or qwen35, not for qwen3"),
        ("qwen", Text("qwen2vl", 64), "made for qwen3vl or qwen35, not for qwen2vl"),
    ],
)
def test_an_encoder_of_another_model_is_refused(name: str, text: Text, why: str) -> None:
    with pytest.raises(GGUFError, match=why):
        require_fitting("mmproj-x.gguf", CONFIGS[name], text)


@pytest.mark.parametrize(
    ("projector", "architecture"),
    [
        ("idefics3", "llama"),
        ("idefics3", "qwen3"),
        ("gemma3", "gemma3"),
        ("qwen2vl_merger", "qwen2vl"),
        ("qwen2.5vl_merger", "qwen2vl"),
        ("qwen3vl_merger", "qwen3vlmoe"),
        ("qwen3vl_merger", "qwen35moe"),
    ],
)
def test_an_encoder_of_the_model_is_taken(projector: Projector, architecture: str) -> None:
    config = replace(CONFIGS["idefics3"], projector=projector)
    require_fitting("mmproj-x.gguf", config, Text(architecture, 64))


def test_headers_decide(tmp_path: Path) -> None:
    broken = touched(tmp_path / "mmproj-broken.gguf")
    fits = projector_path("idefics3")
    assert first_fitting([broken, projector_path("gemma3v"), fits], LLAMA) == fits
    assert first_fitting([broken, tmp_path / "gone.gguf"], LLAMA) is None
