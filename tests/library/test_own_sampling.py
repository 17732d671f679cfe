"""Which model a file is, by its names, and what its authors recommend."""

from pathlib import Path

import numpy as np
import pytest

from ds4tui.engine.gguf import GGUFFile
from ds4tui.library.catalogue import CATALOGUE
from ds4tui.library.own_sampling import RECOMMENDATIONS, own_sampling, recommended
from ds4tui.library.recommended import TEXT, VISION
from tests.engine.gguf_samples import write_gguf

# SmolVLM's authors give no values for sampling.
WITHOUT = {"SmolVLM-500M-Instruct-Q8_0.gguf"}


def test_the_authors_values_are_known_for_every_model_of_the_lists() -> None:
    files = [model.file_name for model in CATALOGUE.values()]
    files += [model.file for model in (*TEXT, *VISION)]
    unknown = {name for name in files if not recommended(Path(name).stem).values}
    assert unknown == WITHOUT


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("SmolLM2-360M-Instruct.Q4_1", "SmolLM2 Instruct"),
        ("SmolLM2-135M", ""),
        ("Qwen2.5 Coder 0.5B Instruct AWQ", "Qwen2.5 Instruct"),
        ("Qwen2.5-VL-3B-Instruct", ""),
        ("Qwen3-8B-Q4_K_M", "Qwen3, thinking"),
        ("Qwen3-4B-Instruct-2507-Q4_K_M", "Qwen3 Instruct"),
        ("Qwen3-Coder-30B-A3B-Instruct-Q4_K_M", "Qwen3-Coder"),
        ("Qwen3VL-8B-Instruct-Q4_K_M", "Qwen3-VL Instruct"),
        ("Qwen3.5-4B-Q4_K_M", "Qwen3.5 that does not think unless told to"),
        ("Qwen3.6-35B-A3B-UD-Q4_K_M", "Qwen3.5 and Qwen3.6, thinking"),
        ("gemma-3-270m-q4_k_m", "Gemma 3"),
        ("google_gemma-3-4b-it-Q4_K_M", "Gemma 3"),
        ("Llama-3.2-1B-Instruct-Q4_K_M", "Llama 3 Instruct"),
        ("mistral-7b-instruct", ""),
    ],
)
def test_a_model_is_known_by_its_names(name: str, title: str) -> None:
    own = recommended(name)
    assert own.source == (f"{title}'s authors" if title else "")
    assert own.values == next((r.values for r in RECOMMENDATIONS if r.title == title), {})


def test_the_small_file_of_the_catalogue_has_values_of_its_own() -> None:
    own = recommended(Path(CATALOGUE["smollm2"].file_name).stem)
    assert own.values == {"temperature": 0.2, "top_p": 0.5}
    assert "its authors say top_p 0.9" in own.source


def test_a_files_own_keys_come_before_what_is_known_of_its_name(tmp_path: Path) -> None:
    named = {"general.name": "Smollm2 135M Instruct"}
    with GGUFFile.open(write_gguf(tmp_path / "a.gguf", {}, named)) as gguf:
        assert own_sampling(gguf).values == {"temperature": 0.2, "top_p": 0.9}
    keys = {**named, "general.sampling.temp": np.float32(0.55)}
    with GGUFFile.open(write_gguf(tmp_path / "b.gguf", {}, keys)) as gguf:
        assert own_sampling(gguf).values == {"temperature": 0.55}
