"""`ds4tui models show`: from headers alone, for people and for programs."""

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from gguf import GGMLQuantizationType as T

from ds4tui.cli import main
from ds4tui.engine import inventory as inventories
from ds4tui.engine.gguf import GGUFFile
from ds4tui.kernels import choice
from ds4tui.kernels.choice import ComputePath
from ds4tui.library import screens
from tests.engine.gguf_samples import gguf_bytes, text_key, write_gguf
from tests.engine.quantised_samples import weight_blocks
from tests.engine.tiny_llama import Tiny
from tests.golden.files import golden_path, projector_path

TINY = Tiny(heads=4, kv_heads=4, key_size=64, value_size=64, rotary=64, width=256, inner=256,
            blocks=2, tied=True)  # fmt: skip
KINDS = {"ffn_down": T.Q6_K, "attn_v": T.Q5_0, "token_embd": T.Q8_0}
MB = 1e6


def write_model(path: Path, extra: dict[str, Any] | None = None, **keys: Any) -> Path:
    """A llama that mixes types: Q6_K, Q5_0, Q8_0, Q4_K and F32."""
    rng = np.random.default_rng(7)
    tensors: dict[str, Any] = {}
    for name, tensor in TINY.tensors().items():
        tensors[name] = (tensor, T.F32)
        if tensor.ndim == 2:
            kind = next((k for part, k in KINDS.items() if part in name), T.Q4_K)
            tensors[name] = (weight_blocks(rng, tensor.shape, kind), kind)
    typed = {
        f"llama.{k}": np.float32(v) if isinstance(v, float) else np.uint32(v)
        for k, v in TINY.metadata().items()
    }
    return write_gguf(path, tensors | (extra or {}), typed | keys)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    named = {"general.name": "Tiny", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "odd"}
    return write_model(tmp_path / "tiny.gguf", **named)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    path = ComputePath("gpu", "quantised", mx.float16, "fused", False)
    monkeypatch.setattr(choice.TwinChoice, "path", lambda self, *_: path)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> str:
    assert main(["models", "show", *map(str, arguments)]) == code
    return capsys.readouterr().out


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> Any:
    return json.loads(shown(capsys, *arguments, "--json", code=code))


def rows_of(report: Any) -> dict[str, Any]:
    return {row["type"]: row for row in report["types"]}


def test_the_header_and_a_row_a_type(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, model)
    for part in (
        "tiny  (Tiny)",
        f"{model} (",
        "architecture   llama",
        "4,096 tokens",
        "gpt2, odd, 64 tokens",
        "chat template  no",
        "vision         no",
        "runs as        CPU; ",
        "sampling       temperature 0.7, min_p 0.05 (ds4tui's default)",
        "blk.0.ffn_down.weight",
        "fits, with a context of 4,096 tokens: ",
    ):
        assert part in text
    assert "not used" not in text


def test_the_image_encoder_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, eyes = tmp_path / "m.gguf", tmp_path / "mmproj-m.gguf"
    shutil.copy(golden_path("qwen3vl"), model)
    shutil.copy(projector_path("qwen3vl"), eyes)
    assert f"vision         yes, with {eyes}" in shown(capsys, model)
    assert as_json(capsys, model)["vision_part"] == str(eyes)


def test_what_the_encoder_of_the_package_reads_and_what_not_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screens, "MMPROJ", projector_path("qwen3vl"))
    monkeypatch.setattr(screens, "is_made_for", lambda path: True)
    model = Path(shutil.copy(golden_path("qwen3vl"), tmp_path / "m.gguf"))
    text = shown(capsys, model)
    assert f"yes, with {screens.MMPROJ}" in text and screens.READS_NOT in text
    assert "misreads" in as_json(capsys, model)["vision_limits"]


@pytest.mark.usefixtures("gpu")
def test_on_a_gpu_each_type_has_its_way(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = as_json(capsys, model)
    told = {
        kind: (row["held_as"], row["exact"], row["memory_bytes"] * 8 / row["weights"])
        for kind, row in rows_of(report).items()
    }
    assert told == {
        "Q4_K": ("4-bit groups of 32, scales float32", True, 6.0),
        "Q5_0": ("5-bit groups of 32, scales float16", True, 6.0),
        "Q6_K": ("float16 in MLX", False, 16.0),
        "Q8_0": ("8-bit groups of 32, scales float16", True, 9.0),
        "F32": ("float32 in MLX", True, 32.0),
    }
    assert report["runs_as"] == "GPU; MLX"


def test_numbers_add_up(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = as_json(capsys, model)
    with GGUFFile.open(model) as gguf:
        assert report["parameters"] == gguf.parameters
        assert sum(row["weights"] for row in report["types"]) == gguf.parameters
        assert sum(r["file_bytes"] for r in report["types"]) == sum(
            t.nbytes for t in gguf.tensors.values()
        )
        assert sum(row["tensors"] for row in report["types"]) == len(gguf.tensors)
    memory = report["memory"]
    assert memory["weights_bytes"] == sum(row["memory_bytes"] for row in report["types"])
    assert memory["fits"]
    assert memory["kv_tokens"] == 1000
    assert memory["kv_bytes"] < memory["own_bytes"]


@pytest.mark.usefixtures("gpu")
def test_what_asking_would_change_is_told_and_what_asking_changed(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    off = as_json(capsys, model)
    assert "--requantise 8 would make that" in off["notes"][0]
    for bits, size in (("8", 8.5), ("4", 5.0)):
        asked = as_json(capsys, model, "--requantise", bits)
        row = rows_of(asked)["Q6_K"]
        assert (row["way"], row["exact"]) == ("re-quantised", False)
        assert row["memory_bytes"] * 8 / row["weights"] == size
        weights = asked["memory"]["weights_bytes"]
        words = "would make that " if bits == "8" else ""
        assert f"--requantise {bits} {words}{weights / MB:,.1f} MB" in off["notes"][0]
        assert rows_of(asked)["Q4_K"] == rows_of(off)["Q4_K"]
    rounding = as_json(capsys, model, "--quant-scales", "float16")
    weights = rounding["memory"]["weights_bytes"]
    assert off["notes"][1].startswith("Q4_K: exact scales need float32")
    assert f"--quant-scales float16 would make that {weights / MB:,.1f} MB" in off["notes"][1]
    assert len(rounding["notes"]) == 1
    rounded = rows_of(rounding)["Q4_K"]
    assert (rounded["way"], rounded["exact"]) == ("native form, rounded", False)
    assert "MLX's own form, scales rounded" in shown(capsys, model, "--quant-scales", "float16")


def test_on_a_cpu_asking_does_nothing_and_that_is_told(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, asked = as_json(capsys, model), as_json(capsys, model, "--requantise", "4")
    assert asked["types"] == plain["types"]
    assert asked["notes"][0].startswith("requantise=4 does nothing on this machine: CPU; ")
    assert plain["notes"] == []


def test_errors_are_measured_when_asked_for(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = as_json(capsys, model, "--measure")["measured"]
    assert [(row["type"], row["bits"]) for row in measured] == [("Q6_K", 8), ("Q6_K", 4)]
    assert 0 < measured[0]["relative_rms"] < 0.02 < measured[1]["relative_rms"] < 0.2
    assert measured[0]["weights"] == 2 * 256 * 256
    assert "8 bits" in shown(capsys, model, "--measure")


def test_unused_tensors_are_named_without_their_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = {"\x1b[31mred": (np.zeros(8, np.float32), T.F32)}
    path = write_model(tmp_path / "m.gguf", odd, **{"general.name": "a\x1b]0;b\x07\nc"})
    text = shown(capsys, path)
    assert "not used: \\x1b[31mred" in text
    assert "\x1b" not in text
    assert "\x07" not in text
    report = as_json(capsys, path)
    assert report["unused"] == ["\\x1b[31mred"]
    assert [row["memory_bytes"] for row in report["types"] if row["way"] == "unused"] == [0]


def test_too_little_memory_is_told_with_both_numbers(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(inventories, "available_bytes", lambda: 100_000)
    text = shown(capsys, model)
    assert "does not fit: 0.1 MB are available now" in text
    needed = as_json(capsys, model)["memory"]["needed_bytes"]
    assert f"loading needs {needed / MB:,.1f} MB" in text


def test_an_architecture_that_is_not_read_is_shown_and_said_to_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, {"w": (np.zeros((4, 8), np.float32), T.F32)}, {}, "mamba")
    text = shown(capsys, path, code=1)
    assert "This file cannot be run: m.gguf has the architecture 'mamba', which is not" in text
    assert "runs as" not in text
    assert "1 F32" in text


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is empty"),
        (b"GGUF\x03\0\0\0", "is truncated"),
        (b"<!doctype html>" + bytes(64), "looks like a web page"),
    ],
)
def test_files_that_cannot_be_read_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, complaint: str
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    assert main(["models", "show", str(path)]) == 1
    assert complaint in capsys.readouterr().err


def test_a_file_without_tensors_or_keys_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes([text_key("general.name", "nothing")]))
    text = shown(capsys, path, code=1)
    assert "This file cannot be run: " in text
    assert "tokenizer      none" in text


def test_a_model_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "show", "no-such-model"]) == 2
    assert "There is no model 'no-such-model'" in capsys.readouterr().err
