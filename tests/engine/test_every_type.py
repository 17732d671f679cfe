"""Every type that gguf can dequantise loads, and computes what its values compute."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from gguf import GGMLQuantizationType as T
from gguf import quants

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.models.decoder import DecoderModel
from ds4tui.engine.models.llama import llama
from ds4tui.engine.models.rows import Rows
from ds4tui.engine.repack import NATIVE_FORMS
from ds4tui.kernels import choice
from ds4tui.kernels.choice import ComputePath
from ds4tui.kernels.policy import LoadedWeightsPolicy
from tests.engine.gguf_samples import write_gguf
from tests.engine.quantised_samples import QUANTISED, reference, weight_blocks
from tests.engine.tiny_llama import Tiny

TINY = Tiny(heads=4, kv_heads=4, key_size=64, value_size=64, rotary=64, width=256, inner=256,
            blocks=2, tied=True)  # fmt: skip
IDS = np.random.default_rng(5).integers(0, TINY.vocab, 12)

QUANTISED_F32 = ComputePath("cpu", "quantised", mx.float32, "reference", False)
QUANTISED_F16 = ComputePath("gpu", "quantised", mx.float16, "fused", False)
HOST = ComputePath("cpu", "host", mx.float32, "openblas", True)
DENSE = ComputePath("cpu", "dense", mx.float32, "reference", False)


def write_both(folder: Path, ggml_type: T) -> tuple[GGUFFile, GGUFFile]:
    """A tiny llama whose matrices are of `ggml_type`, and the same values as float32."""
    keys = {
        f"llama.{k}": np.float32(v) if isinstance(v, float) else np.uint32(v)
        for k, v in TINY.metadata().items()
    }
    rng = np.random.default_rng(7)
    stored, plain = {}, {}
    for name, tensor in TINY.tensors().items():
        stored[name] = plain[name] = (tensor, T.F32)
        if tensor.ndim == 2:
            raw = weight_blocks(rng, tensor.shape, ggml_type)
            stored[name] = (raw, ggml_type)
            plain[name] = (reference(raw, ggml_type), T.F32)
    files = (("stored.gguf", stored), ("plain.gguf", plain))
    one, other = (GGUFFile.open(write_gguf(folder / n, t, keys)) for n, t in files)
    return one, other


def logits(gguf: GGUFFile, path: ComputePath) -> np.ndarray:
    model = DecoderModel(llama(gguf), gguf, path, 64)
    return np.array(model.forward(Rows.of_ids(IDS, 0, "all"), model.new_state()))


def gap(ours: np.ndarray, wanted: np.ndarray) -> float:
    """Relative RMS."""
    return float(np.sqrt(np.square(ours - wanted).mean() / np.square(wanted).mean()))


def test_all_that_gguf_can_dequantise_is_tested() -> None:
    known = set()
    for ggml_type in T:
        try:
            quants.dequantize(np.zeros((1, 4096 * 6), np.uint8), ggml_type)
        except NotImplementedError:
            continue
        except ValueError:  # a row of that many bytes is not possible: there is a decoder
            pass
        known.add(ggml_type)
    assert known - {T.F32, T.F16, T.BF16} == set(QUANTISED)


@pytest.mark.parametrize("kernels", ["auto", "reference"])
@pytest.mark.parametrize("ggml_type", QUANTISED, ids=lambda t: t.name)
def test_the_path_of_this_machine_computes_the_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ggml_type: T, kernels: str
) -> None:
    monkeypatch.setenv("DS4TUI_KERNELS", kernels)
    stored, plain = write_both(tmp_path, ggml_type)
    wanted = logits(plain, DENSE)
    assert 1e-3 < np.abs(wanted).mean() < 1e3
    assert gap(logits(stored, choice.current().path()), wanted) < 1e-5
    assert gap(logits(stored, HOST), wanted) < 1e-5


@pytest.mark.parametrize("ggml_type", QUANTISED, ids=lambda t: t.name)
def test_the_quantised_path_computes_the_values(tmp_path: Path, ggml_type: T) -> None:
    stored, plain = write_both(tmp_path, ggml_type)
    wanted = logits(plain, DENSE)
    assert gap(logits(stored, QUANTISED_F32), wanted) < 1e-5
    assert gap(logits(stored, QUANTISED_F16), wanted) < 2e-2


@pytest.mark.parametrize("scales", ["exact", "float16"])
@pytest.mark.parametrize(("bits", "at_most"), [("8", 0.05), ("4", 0.5)])
@pytest.mark.parametrize("ggml_type", QUANTISED, ids=lambda t: t.name)
def test_what_was_asked_for_is_quantised_anew_and_says_so(
    tmp_path: Path, ggml_type: T, bits: str, at_most: float, scales: str
) -> None:
    stored, plain = write_both(tmp_path, ggml_type)
    policy = LoadedWeightsPolicy(bits, scales)  # type: ignore[arg-type]
    path = ComputePath("gpu", "quantised", mx.float32, "reference", False, policy=policy)
    model = DecoderModel(llama(stored), stored, path, 64)
    ours = np.array(model.forward(Rows.of_ids(IDS, 0, "all"), model.new_state()))
    found = gap(ours, logits(plain, DENSE))
    anew = ggml_type not in NATIVE_FORMS
    assert f"15 of them re-quantised to {bits} bits (relative RMS error" in model.compute_path or (
        not anew and "re-quantised" not in model.compute_path
    )
    rounded = scales == "float16" and ggml_type in (T.Q4_K, T.Q5_K)
    assert found < (at_most if anew else 1e-2 if rounded else 1e-5)
    assert model.weights_policy == policy
