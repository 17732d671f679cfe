"""Each model's health: what opens, what does not and why, and what of it fits."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as T

from ds4tui.cache.memory import plan_memory
from ds4tui.config import Settings
from ds4tui.doctor import models as healths
from ds4tui.doctor.findings import Finding
from ds4tui.doctor.models import models
from ds4tui.library import screens
from ds4tui.library.catalogue import CATALOGUE
from ds4tui.library.headers import read_facts
from ds4tui.library.listing import megabytes
from ds4tui.library.resolve import models_dir
from tests.engine.gguf_samples import write_gguf
from tests.golden import golden_path
from tests.golden.files import projector_path

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    models_dir(tmp_path / "data").mkdir(parents=True)
    return Settings(data_dir=tmp_path / "data")


def placed(settings: Settings, name: str, content: bytes) -> Path:
    path = models_dir(settings.data_dir) / name
    path.write_bytes(content)
    return path


def by_name(settings: Settings) -> dict[str, Finding]:
    return {found.facts["name"]: found for found in models(settings)}


def test_a_model_that_is_not_fetched_yet_is_a_note(settings: Settings) -> None:
    (found,) = models(settings)
    assert (found.level, found.advice) == ("note", "Run: ds4tui pull smollm2")


def test_a_model_that_runs_is_planned_with_what_is_available(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = placed(settings, "mine.gguf", golden_path("llama").read_bytes())
    facts, available = read_facts(path), 10**7
    monkeypatch.setattr("ds4tui.library.listing.available_memory_bytes", lambda: available)
    found = by_name(settings)["mine"]
    plan = plan_memory(
        available, facts.weights_bytes, facts.kv_bytes_per_token, facts.context_tokens
    )
    assert found.level == "ok" and "llama, " in found.text and "fits" in found.text
    assert found.facts["fitting_context_tokens"] == plan.context_tokens
    assert found.facts["needed_bytes"] == plan.needed_bytes
    asked = by_name(replace(settings, context_tokens=100))["mine"]
    assert asked.facts["fitting_context_tokens"] == 100 and "100 tokens" in asked.text
    json.dumps(dict(found.facts), default=None)


@pytest.mark.parametrize("kernels", ["reference", "openblas"])  # hold copies; blocks hold the file
def test_weights_are_what_they_take_and_their_peak_is_called_that(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, kernels: str
) -> None:
    monkeypatch.setenv("DS4TUI_KERNELS", kernels)
    facts = read_facts(placed(settings, "mine.gguf", golden_path("llama").read_bytes()))
    assert 0 < facts.resident_bytes < facts.weights_bytes
    resident, peak = megabytes(facts.resident_bytes), megabytes(facts.weights_bytes)
    assert (
        f"weights {resident} ({peak} while they are loaded) and" in by_name(settings)["mine"].text
    )


def test_the_image_encoder_of_a_model_is_named(settings: Settings) -> None:
    placed(settings, "mine.gguf", golden_path("qwen3vl").read_bytes())
    placed(settings, "mmproj-mine.gguf", projector_path("qwen3vl").read_bytes())
    (_, found) = models(settings)  # the encoder is no model
    assert found.facts["image_encoder"] == "mmproj-mine.gguf"
    assert found.text.endswith("; sees pictures with mmproj-mine.gguf")


def test_what_the_encoder_of_the_package_reads_and_what_not_is_told(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screens, "MMPROJ", projector_path("qwen3vl"))
    monkeypatch.setattr(screens, "is_made_for", lambda path: path.stem == "mine")
    for name in ("mine", "other"):
        placed(settings, f"{name}.gguf", golden_path("qwen3vl").read_bytes())
    found = by_name(settings)
    assert found["mine"].text.endswith(f", which reads {screens.READS}; {screens.READS_NOT}")
    assert found["other"].facts["image_encoder"] is None


def test_what_does_not_fit_is_told_with_what_to_do(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed(settings, "mine.gguf", golden_path("llama").read_bytes())
    monkeypatch.setattr("ds4tui.library.listing.available_memory_bytes", lambda: 1000)
    found = by_name(settings)["mine"]
    assert found.level == "note" and "does not fit" in found.text and "smaller" in found.advice


def test_files_that_are_broken_or_of_another_kind(settings: Settings) -> None:
    placed(settings, "bad.gguf", b"not a model at all")
    strange = placed(settings, "strange.gguf", b"")
    write_gguf(strange, {"w": (np.zeros((4, 8), np.float32), T.F32)}, {}, "mamba")
    found = by_name(settings)
    assert found["bad"].level == "warn" and "is not a GGUF" in found["bad"].text
    assert found["strange"].level == "note" and "'mamba' is not read" in found["strange"].text
    assert "llama" in found["strange"].advice
    chosen = by_name(replace(settings, model="bad"))
    assert chosen["bad"].level == "BAD", "what was chosen cannot be used"
    assert by_name(replace(settings, model="strange"))["strange"].level == "BAD"


def test_a_file_that_lacks_a_tensor_is_found_by_its_header_alone(settings: Settings) -> None:
    half = placed(settings, "half.gguf", b"")
    keys: dict[str, Any] = {
        f"llama.{name}": np.uint32(value)
        for name, value in {
            "block_count": 1, "context_length": 64, "embedding_length": 32,
            "feed_forward_length": 32, "attention.head_count": 2,
        }.items()
    }  # fmt: skip
    keys["llama.attention.layer_norm_rms_epsilon"] = np.float32(1e-5)
    write_gguf(half, {"token_embd.weight": (np.zeros((64, 32), np.float32), T.F32)}, keys)
    found = by_name(settings)["half"]
    assert found.level == "warn" and found.facts["problem"]


def test_the_chosen_one_needs_a_template(settings: Settings) -> None:
    placed(settings, "mine.gguf", golden_path("llama").read_bytes())
    found = by_name(replace(settings, model="mine"))["mine"]
    assert found.level == "BAD" and found.facts["chosen"] is True


def test_a_damaged_model_of_the_catalogue_stops_use(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = golden_path("llama").read_bytes()
    known = replace(CATALOGUE["smollm2"], file_bytes=len(content))
    monkeypatch.setitem(CATALOGUE, "smollm2", known)
    placed(settings, known.file_name, content)
    found = by_name(settings)["smollm2"]
    assert found.level == "BAD" and "damaged" in found.text
    assert found.advice == "Run: ds4tui pull smollm2"
    assert by_name(replace(settings, model="smollm2"))["smollm2"] == found


def test_a_name_that_nothing_goes_by_stops_use(settings: Settings) -> None:
    first, *_ = models(replace(settings, model="nothing"))
    assert first.level == "BAD" and "There is no model 'nothing'" in first.text


def test_a_file_outside_of_all_folders_can_be_the_chosen_one(
    settings: Settings, tmp_path: Path
) -> None:
    path = tmp_path / "elsewhere.gguf"
    path.write_bytes(b"GGUF")
    first, *_ = models(replace(settings, model=str(path)))
    assert first.level == "BAD" and first.facts["held_by"] == "file"


def test_folders_of_another_format_are_a_note(settings: Settings, own_home: Path) -> None:
    folder = own_home / ".lmstudio" / "models" / "mlx-community" / "Tiny-4bit"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"quantization": {"bits": 4}}')
    (folder / "model.safetensors").touch()
    found = by_name(settings)["mlx-community/Tiny-4bit"]
    assert found.level == "note" and "MLX format" in found.text


def test_places_that_cannot_be_searched_are_told(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = healths.list_models(settings.data_dir)
    told = replace(listing, problems=("X cannot be read.",))
    monkeypatch.setattr(healths, "list_models", lambda data_dir: told)
    assert Finding("note", "X cannot be read.") in list(models(settings))
