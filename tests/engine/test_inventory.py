"""What an inventory says of a file is what loading it does, and finding out reads no matrix."""

from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from gguf import GGMLQuantizationType as T
from gguf.constants import GGML_QUANT_SIZES

from ds4tui.engine import inventory as inventories
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.inventory import inventory
from ds4tui.engine.models.registry import FAMILIES, family_of, load_model
from ds4tui.engine.models.rotation import ROPE_FACTORS
from ds4tui.errors import GGUFError
from ds4tui.kernels import choice
from ds4tui.kernels.choice import ComputePath
from ds4tui.kernels.policy import LoadedWeightsPolicy
from ds4tui.selftest import tiny_model
from tests.engine.tiny_llama import Tiny, write
from tests.golden.files import families, golden_path
from tests.parity.ours import Settings

TINY = Tiny(heads=8, key_size=8, value_size=8, width=64, inner=96)
GPU = ComputePath("gpu", "quantised", mx.float16, "fused", False)


@pytest.fixture(params=["auto", "reference", "gpu"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ComputePath:
    if request.param == "gpu":
        monkeypatch.setattr(choice.TwinChoice, "path", lambda self, *_: GPU)
    else:
        monkeypatch.setenv("DS4TUI_KERNELS", request.param)
    return choice.current().path()


NO_PRODUCTS = (
    "ssm_conv1d.weight",
    "ssm_conv1d_q.weight",
    "ssm_conv1d_k.weight",
    "ssm_conv1d_v.weight",
    "indexer_compressor_ape.weight",
    "attn_compressor_ape.weight",
    "ffn_gate_tid2eid.weight",
    "ffn_gate_inp_shexp.weight",
    "ple_conv1d.weight",
    "per_layer_token_embd.weight",  # looked up: where it is mapped is all that is asked
)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Names of the matrices whose bytes were asked for; what takes part in no product (vectors,
    weights of convolutions) is small."""
    names: set[str] = set()
    raw = GGUFFile.raw

    def noted(gguf: GGUFFile, name: str) -> np.ndarray:
        if len(gguf.tensor(name).shape) > 1 and not name.endswith(NO_PRODUCTS):
            names.add(name)
        return raw(gguf, name)

    monkeypatch.setattr(GGUFFile, "raw", noted)
    yield names


@pytest.mark.parametrize("name", sorted(families()))
def test_it_is_what_loading_does(name: str, path: ComputePath, read: set[str]) -> None:
    with GGUFFile.open(golden_path(name)) as gguf:
        found = inventory(gguf)
        assert not read
        assert [t.info.name for t in found.tensors] == list(gguf.tensors)
        if gguf.architecture not in FAMILIES:
            assert "architecture" in found.problem
            assert not (found.fits or found.unused)
            return
        model = load_model(gguf, Settings())
        assert read, "the check would notice"
        assert found.problem == ""
        rope = sum(t.holding.nbytes for t in found.tensors if t.info.name == ROPE_FACTORS)
        assert found.weights_bytes - rope == model.weights_bytes
        assert [t.info.name for t in found.unused] == list(model.unused_tensors)
        device, words = found.words.split("; ", 1)
        assert model.compute_path.startswith(f"{device}; ")
        assert model.compute_path.endswith(f"; {words}")
        assert found.context is not None
        assert found.context.own_tokens == family_of(gguf).config(gguf).context_tokens
        assert found.context.fitting_tokens == model.context_tokens
        assert found.context.own_bytes == model.kv_bytes(found.context.own_tokens)


def test_unused_tensors_are_found(tmp_path: Path) -> None:
    extra: dict[str, np.ndarray | None] = {"blk.0.odd.weight": np.zeros((64, 64), np.float32)}
    gguf = write(tmp_path / "m.gguf", TINY, tensors=extra)
    found = inventory(gguf)
    assert [t.info.name for t in found.unused] == ["blk.0.odd.weight"]
    assert found.weights_bytes == load_model(gguf, Settings()).weights_bytes


@pytest.mark.parametrize(
    ("tensors", "keys", "problem"),
    [
        ({"blk.0.attn_q.weight": None}, {}, "'blk.0.attn_q.weight' is missing"),
        ({"blk.0.attn_q.weight": np.zeros((3, 64), np.float32)}, {}, "has the shape [3, 64]"),
        ({}, {"block_count": None}, "llama.block_count"),
    ],
)
def test_a_file_that_cannot_be_run_says_why(
    tmp_path: Path,
    tensors: dict[str, np.ndarray | None],
    keys: dict[str, object],
    problem: str,
) -> None:
    found = inventory(write(tmp_path / "m.gguf", TINY, keys=keys, tensors=tensors))
    assert problem in found.problem
    assert not found.fits
    assert found.weights_bytes > 0


def test_too_little_memory_is_no_problem_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventories, "available_bytes", lambda: 1000)
    found = inventory(write(tmp_path / "m.gguf", TINY))
    assert (found.problem, found.fits, found.available_bytes) == ("", False, 1000)
    assert found.context is not None
    assert found.context.fitting_tokens == 0


def test_what_a_policy_does_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = Tiny(heads=4, kv_heads=4, key_size=64, value_size=64, rotary=64, width=256, inner=256)
    gguf = write(tmp_path / "m.gguf", wide, matrices=T.Q8_0)
    monkeypatch.setattr(choice.TwinChoice, "path", lambda self, *_: GPU)
    assert inventory(gguf).requantise_works
    ways = {t.holding.way for t in inventory(gguf, LoadedWeightsPolicy("8")).tensors if t.holding}
    assert ways == {"native form", "values"}


@pytest.mark.parametrize("kind", [T.Q8_K, T.I8])
def test_a_type_without_values_is_told_before_anything_is_read(
    kind: T, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: set[str]
) -> None:
    def matrix(random: np.random.Generator, shape: tuple[int, int], _: T) -> tuple[np.ndarray, T]:
        elements, size = GGML_QUANT_SIZES[kind]
        return random.integers(0, 9, (shape[0], shape[1] // elements * size), np.uint8), kind

    monkeypatch.setattr(tiny_model, "_matrix", matrix)
    path = tmp_path / "odd.gguf"
    tiny_model.write_tiny_model(path)
    with GGUFFile.open(path) as gguf:
        assert f"is of type {kind.name}, which has no dequantisation" in inventory(gguf).problem
        with pytest.raises(GGUFError, match="has no dequantisation"):
            load_model(gguf, Settings())
    assert not read
