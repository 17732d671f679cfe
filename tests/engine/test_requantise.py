"""Quantising anew: the error that is told is the error that there is."""

import logging
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from gguf import GGMLQuantizationType as T

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.layers import LayerLoader
from ds4tui.engine.models.registry import load_model
from ds4tui.engine.paging import LEFT_OPEN
from ds4tui.engine.requantise import (
    SAMPLE_ELEMENTS,
    RequantiseError,
    requantised,
    sampled_errors,
)
from ds4tui.engine.weights import Weight
from ds4tui.kernels.choice import ComputePath
from ds4tui.kernels.policy import LoadedWeightsPolicy
from tests.engine.gguf_samples import write_gguf
from tests.engine.quantised_samples import moderate_blocks
from tests.engine.test_gguf import peak_bytes
from tests.engine.tiny_llama import Tiny, write

KINDS = [T.Q2_K, T.Q3_K, T.Q6_K, T.IQ4_XS, T.IQ1_S]


def weight(folder: Path, kind: T, shape: tuple[int, ...]) -> Weight:
    raw = moderate_blocks(np.random.default_rng(1), shape, kind)
    return Weight(GGUFFile.open(write_gguf(folder / "w.gguf", {"w": (raw, kind)})), "w")


@pytest.mark.parametrize(("bits", "group"), [(8, 64), (4, 32)])
@pytest.mark.parametrize("shape", [(40, 512), (3, 8, 256)], ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=lambda t: t.name)
def test_the_error_told_is_the_error_of_what_is_held(
    tmp_path: Path, kind: T, shape: tuple[int, ...], bits: int, group: int
) -> None:
    source = weight(tmp_path, kind, shape)
    matrix, error = requantised(source, bits, group)
    assert (matrix.shape, matrix.bits, matrix.group_size) == (shape, bits, group)
    assert matrix.scales.dtype == mx.float16
    wanted = source.host_rows(slice(None)).astype(np.float64)
    held = np.array(matrix.held_for(mx.float32).values()).astype(np.float64)
    rms = np.sqrt(np.square(held - wanted).sum() / np.square(wanted).sum())
    assert error.relative_rms == pytest.approx(rms, rel=1e-6)
    assert error.largest == pytest.approx(np.abs(held - wanted).max() / np.abs(wanted).max())
    assert 0 < rms < {8: 0.01, 4: 0.15}[bits]


def test_tiles_do_not_show(tmp_path: Path) -> None:
    source = weight(tmp_path, T.Q6_K, (40, 512))
    whole, error = requantised(source, 8, 64)
    tiled, same = requantised(source, 8, 64, tile_elements=1500)
    assert mx.array_equal(whole.values(), tiled.values())
    assert same.relative_rms == pytest.approx(error.relative_rms, rel=1e-9)
    assert same.largest == error.largest


def test_the_error_of_several_weighs_their_values() -> None:
    one = RequantiseError("a", 8, error_squares=1.0, value_squares=100.0, largest=0.5)
    two = RequantiseError("b", 8, error_squares=3.0, value_squares=300.0, largest=0.25)
    both = RequantiseError.over("all", [one, two])
    assert (both.relative_rms, both.largest) == (pytest.approx(0.1), 0.5)
    assert str(both) == "relative RMS error 10.00%, largest 50.00%"


def test_a_matrix_of_zeros_has_no_error(tmp_path: Path) -> None:
    raw = np.zeros((4, 210), np.uint8)
    source = Weight(GGUFFile.open(write_gguf(tmp_path / "w.gguf", {"w": (raw, T.Q6_K)})), "w")
    matrix, error = requantised(source, 8, 64)
    assert (error.relative_rms, error.largest) == (0.0, 0.0)
    assert not np.array(matrix.values()).any()


def test_it_needs_a_tile_and_not_a_second_matrix(tmp_path: Path) -> None:
    source = weight(tmp_path, T.Q6_K, (2048, 4096))
    mx.clear_cache()
    before_bytes = mx.get_active_memory()
    mx.reset_peak_memory()
    sizes: list[int] = []
    host = peak_bytes(lambda: sizes.append(requantised(source, 8, 64)[0].nbytes))
    device = mx.get_peak_memory() - before_bytes
    assert host + device < 2 * sizes[0] + 64 * 2**20


def test_each_matrix_is_logged_and_the_whole_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    raw = moderate_blocks(np.random.default_rng(1), (8, 256), T.Q3_K)
    gguf = GGUFFile.open(
        write_gguf(tmp_path / "w.gguf", {f"{n}.weight": (raw, T.Q3_K) for n in "ab"})
    )
    path = ComputePath("gpu", "quantised", mx.float16, "fused", False,
                       policy=LoadedWeightsPolicy("4"))  # fmt: skip
    loader = LayerLoader(gguf, path)
    with caplog.at_level(logging.INFO):
        for name in "ab":
            loader.matrix(name, 8, 256)
    told = [r.getMessage() for r in caplog.records if "re-quantised" in r.getMessage()]
    assert len(told) == 2
    assert told[0].startswith("a.weight re-quantised to 4 bits: relative RMS error ")
    assert "; 2 of them re-quantised to 4 bits (relative RMS error " in loader.words()


def test_asking_on_a_cpu_changes_nothing_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gguf = write(tmp_path / "m.gguf", Tiny(inner=64), matrices=T.Q8_0)
    model = load_model(gguf, LEFT_OPEN, policy=LoadedWeightsPolicy("8"))
    assert any("requantise=8 does nothing here" in r.getMessage() for r in caplog.records)
    assert "re-quantised" not in model.compute_path
    assert model.compute_path == load_model(gguf, LEFT_OPEN).compute_path


def test_samples_are_of_every_matrix_and_type_that_could_be_quantised_anew(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    kinds = {"a": T.Q6_K, "b": T.Q6_K, "c": T.IQ4_XS, "d": T.Q4_K, "e": T.Q8_0}
    tensors = {n: (moderate_blocks(rng, (600, 512), k), k) for n, k in kinds.items()}
    tensors["f"] = (rng.normal(size=(600, 512)).astype(np.float32), T.F32)
    gguf = GGUFFile.open(write_gguf(tmp_path / "w.gguf", tensors))
    found = {(kind, e.bits): (e, weights) for kind, e, weights in sampled_errors(gguf)}
    assert set(found) == {("Q6_K", 8), ("Q6_K", 4), ("IQ4_XS", 8), ("IQ4_XS", 4)}
    assert found["Q6_K", 8][1] == 2 * SAMPLE_ELEMENTS
    whole = RequantiseError.over("", [requantised(Weight(gguf, n), 8, 64)[1] for n in "ab"])
    assert found["Q6_K", 8][0].relative_rms == pytest.approx(whole.relative_rms, rel=0.1)
