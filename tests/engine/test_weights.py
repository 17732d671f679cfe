"""Weights on the device equal the file's values; loading peaks at one tensor over the result."""

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from gguf import GGMLQuantizationType as T
from gguf import quants
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.engine import weights
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.weights import Weight, WeightLoader
from ds4tui.errors import GGUFError
from ds4tui.kernels.linear import QuantisedMatrix
from tests.engine import gguf_samples as samples
from tests.engine.test_gguf import peak_bytes
from tests.scale import scaled

BITS = {T.Q4_0: 4, T.Q4_1: 4, T.Q8_0: 8}


def finite_blocks(rng: np.random.Generator, shape: tuple[int, ...], ggml_type: T) -> np.ndarray:
    """Random blocks whose scales (the leading float16s) are any finite bits, tiny ones too."""
    raw = samples.random_blocks(rng, shape, ggml_type)
    block_bytes = samples.gguf.GGML_QUANT_SIZES[ggml_type][1]
    blocks = raw.reshape(-1, block_bytes)
    for at in (0, 2) if ggml_type is T.Q4_1 else (0,):
        halves = rng.integers(0, 2**16, len(blocks)).astype(np.uint16)
        endless = (halves & 0x7C00) == 0x7C00  # the exponent of inf and nan
        halves[endless] &= 0xBFFF
        blocks[:, at : at + 2] = halves.view(np.uint8).reshape(-1, 2)
    return raw


@pytest.fixture
def weight_of(tmp_path: Path) -> Callable[[np.ndarray, T], Weight]:
    def make(raw: np.ndarray, ggml_type: T) -> Weight:
        path = samples.write_gguf(tmp_path / "w.gguf", {"w": (raw, ggml_type)})
        return Weight(GGUFFile.open(path), "w")

    return make


def dequantised(matrix: QuantisedMatrix) -> np.ndarray:
    return np.array(
        mx.dequantize(
            matrix.packed,
            matrix.scales,
            matrix.biases,
            group_size=matrix.group_size,
            bits=matrix.bits,
        )
    )


# -- quantised ---------------------------------------------------------------------------------


@pytest.mark.parametrize("ggml_type", BITS, ids=lambda t: t.name)
@given(
    rows=st.integers(1, 70),
    groups=st.integers(1, 20),
    tile=st.sampled_from([32, 96, 2**20]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=scaled(25), deadline=None)
def test_the_affine_form_is_exact(
    tmp_path_factory: pytest.TempPathFactory,
    ggml_type: T,
    rows: int,
    groups: int,
    tile: int,
    seed: int,
) -> None:
    raw = finite_blocks(np.random.default_rng(seed), (rows, groups * 32), ggml_type)
    path = tmp_path_factory.getbasetemp() / f"{ggml_type.name}.gguf"
    weight = Weight(GGUFFile.open(samples.write_gguf(path, {"w": (raw, ggml_type)})), "w")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "TILE_ELEMENTS", tile)
        matrix = weight.quantised()
    assert matrix is not None
    assert (matrix.shape, matrix.bits, matrix.group_size) == (
        (rows, groups * 32),
        BITS[ggml_type],
        32,
    )
    assert (matrix.packed.dtype, matrix.scales.dtype) == (mx.uint32, mx.float32)
    np.testing.assert_array_equal(dequantised(matrix), quants.dequantize(raw, ggml_type))


@pytest.mark.parametrize("ggml_type", BITS, ids=lambda t: t.name)
def test_products_with_the_affine_form_are_those_of_the_values(
    weight_of: Callable[[np.ndarray, T], Weight], ggml_type: T
) -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(size=(96, 128)).astype(np.float32)
    weight = weight_of(quants.quantize(values, ggml_type), ggml_type)
    matrix = weight.quantised()
    assert matrix is not None
    x = rng.normal(size=(5, 128)).astype(np.float32)
    product = mx.quantized_matmul(
        mx.array(x), matrix.packed, matrix.scales, matrix.biases, group_size=32, bits=matrix.bits
    )
    expected = x.astype(np.float64) @ weight.host_rows(slice(None)).astype(np.float64).T
    np.testing.assert_allclose(np.array(product), expected, atol=1e-4)


@pytest.mark.parametrize("ggml_type", [T.Q4_K, T.Q6_K, T.Q5_0, T.F16, T.F32], ids=lambda t: t.name)
def test_other_types_have_no_affine_form(
    weight_of: Callable[[np.ndarray, T], Weight], ggml_type: T
) -> None:
    raw = samples.random_blocks(np.random.default_rng(0), (2, 256), ggml_type)
    assert weight_of(raw, ggml_type).quantised() is None


@pytest.mark.parametrize("ggml_type", BITS, ids=lambda t: t.name)
def test_matrices_of_experts_have_one_too(
    weight_of: Callable[[np.ndarray, T], Weight], ggml_type: T
) -> None:
    raw = finite_blocks(np.random.default_rng(1), (3, 5, 96), ggml_type)
    matrix = weight_of(raw, ggml_type).quantised()
    assert matrix is not None
    assert matrix.shape == (3, 5, 96)
    np.testing.assert_array_equal(dequantised(matrix), quants.dequantize(raw, ggml_type))


@pytest.mark.parametrize("shape", [(64,), (2, 2, 3, 64)], ids=str)
def test_only_matrices_have_an_affine_form(
    weight_of: Callable[[np.ndarray, T], Weight], shape: tuple[int, ...]
) -> None:
    raw = finite_blocks(np.random.default_rng(0), shape, T.Q8_0)
    assert weight_of(raw, T.Q8_0).quantised() is None


@pytest.mark.parametrize("ggml_type", BITS, ids=lambda t: t.name)
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_scales_that_are_not_finite_have_no_affine_form(
    weight_of: Callable[[np.ndarray, T], Weight], ggml_type: T, bad: float
) -> None:
    raw = finite_blocks(np.random.default_rng(0), (2, 64), ggml_type)
    raw[1, :2] = np.array([bad], np.float16).view(np.uint8)
    weight = weight_of(raw, ggml_type)
    assert weight.quantised() is None
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(np.array(weight.dense()), quants.dequantize(raw, ggml_type))


# -- dense -------------------------------------------------------------------------------------

DENSE_TYPES = [T.F32, T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q8_0, T.Q4_K, T.Q6_K]


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(256,), (7, 256), (2, 3, 256)], ids=str)
@pytest.mark.parametrize("ggml_type", DENSE_TYPES, ids=lambda t: t.name)
def test_dense_is_the_value_rounded_to_the_dtype(
    weight_of: Callable[[np.ndarray, T], Weight],
    monkeypatch: pytest.MonkeyPatch,
    ggml_type: T,
    shape: tuple[int, ...],
    dtype: mx.Dtype,
) -> None:
    monkeypatch.setattr(weights, "TILE_ELEMENTS", 600)  # two rows a tile
    values = np.random.default_rng(4).normal(size=shape).astype(np.float32)
    raw = encoded(values, ggml_type)
    dense = weight_of(raw, ggml_type).dense(dtype)
    assert dense.dtype == dtype
    assert dense.shape == shape
    expected = mx.array(quants.dequantize(raw, ggml_type)).astype(dtype)
    assert mx.array_equal(dense, expected)


def encoded(values: np.ndarray, ggml_type: T) -> np.ndarray:
    """`values` in `ggml_type`, or random finite blocks where gguf has no encoder."""
    try:
        return quants.quantize(values, ggml_type)
    except NotImplementedError:
        raw = np.zeros(
            samples.random_blocks(np.random.default_rng(5), values.shape, ggml_type).shape, np.uint8
        )
        return raw + np.uint8(0x11)


def test_bf16_keeps_its_bits(weight_of: Callable[[np.ndarray, T], Weight]) -> None:
    bits = np.random.default_rng(6).integers(0, 2**16, (4, 64)).astype(np.uint16)
    weight = weight_of(bits.view(np.uint8), T.BF16)
    np.testing.assert_array_equal(np.array(weight.dense(mx.bfloat16).view(mx.uint16)), bits)


# -- memory ------------------------------------------------------------------------------------

ROWS, COLUMNS = 2048, 4096
SLACK_BYTES = 24 * 2**20  # one tile of a million elements with its temporaries


def made(weight: Weight, form: str) -> int:
    """Bytes of the form made."""
    if form == "quantised":
        matrix = weight.quantised()
        assert matrix is not None
        return matrix.nbytes
    return int(weight.dense(getattr(mx, form)).nbytes)


@pytest.mark.parametrize("form", ["quantised", "float32", "bfloat16"])
def test_loading_peaks_at_one_tensor_over_the_result(
    weight_of: Callable[[np.ndarray, T], Weight], form: str
) -> None:
    raw = finite_blocks(np.random.default_rng(7), (ROWS, COLUMNS), T.Q8_0)
    weight = weight_of(raw, T.Q8_0)
    before_bytes = mx.get_active_memory()
    mx.clear_cache()
    mx.reset_peak_memory()
    sizes: list[int] = []
    host_bytes = peak_bytes(lambda: sizes.append(made(weight, form)))
    device_bytes = mx.get_peak_memory() - before_bytes
    assert host_bytes + device_bytes < 2 * sizes[0] + SLACK_BYTES


def test_required_bytes_are_those_of_the_forms_and_the_largest_once_more(tmp_path: Path) -> None:
    gguf = GGUFFile.open(samples.write_sample(tmp_path / "m.gguf"))
    loader = WeightLoader(gguf)
    dense = [int(Weight(gguf, name).dense(mx.float32).nbytes) for name in gguf.tensors]
    assert loader.required_bytes("dense") == sum(dense) + max(dense)
    half = [int(Weight(gguf, name).dense(mx.float16).nbytes) for name in gguf.tensors]
    assert loader.required_bytes("dense", mx.float16) == sum(half) + max(half)


def test_required_bytes_of_the_affine_form(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    tensors = {t.name: (finite_blocks(rng, (8, 256), t), t) for t in BITS}
    tensors["norm"] = (rng.normal(size=64).astype(np.float32), T.F32)
    gguf = GGUFFile.open(samples.write_gguf(tmp_path / "m.gguf", tensors))
    held = [made(Weight(gguf, t.name), "quantised") for t in BITS] + [64 * 4]
    assert WeightLoader(gguf).required_bytes("quantised") == sum(held) + max(held)


# -- the loader --------------------------------------------------------------------------------


@pytest.fixture
def loader(tmp_path: Path) -> WeightLoader:
    return WeightLoader(GGUFFile.open(samples.write_sample(tmp_path / "m.gguf")))


def test_take_gives_the_tensor_and_remembers(loader: WeightLoader) -> None:
    everything = loader.unused()
    weight = loader.take("q8_0.weight", (4, 256))
    assert (weight.name, weight.shape, weight.ggml_type) == ("q8_0.weight", (4, 256), T.Q8_0)
    assert loader.take_optional("half.weight", (3, 5)) is not None
    loader.take("q8_0.weight", (4, 256))  # tied: asked for again
    assert loader.unused() == [n for n in everything if n not in ("q8_0.weight", "half.weight")]


def test_a_wrong_shape_is_told_with_both(loader: WeightLoader) -> None:
    for take in (loader.take, loader.take_optional):
        with pytest.raises(
            GGUFError, match=r"m\.gguf: .*'half\.weight' has the shape \[3, 5\]; \[5, 3\] was"
        ):
            take("half.weight", (5, 3))
    assert "half.weight" in loader.unused()


def test_a_missing_tensor_is_told_with_similar_names(loader: WeightLoader) -> None:
    assert loader.take_optional("q8_1.weight", (4, 256)) is None
    with pytest.raises(GGUFError, match=r"'q8_1\.weight' is missing \(there is 'q8_0\.weight'"):
        loader.take("q8_1.weight", (4, 256))
    with pytest.raises(GGUFError, match=r"'something.else' is missing\."):
        loader.take("something.else", (1,))


def test_similar_names_are_not_sought_among_endless_ones(tmp_path: Path) -> None:
    name = "a" * 60_000
    described = [samples.tensor(f"{name}{n}", [8], offset=32 * n) for n in range(40)]
    path = tmp_path / "m.gguf"
    path.write_bytes(samples.gguf_bytes(tensors=described, data=bytes(32 * 40)))
    with pytest.raises(GGUFError, match=r"'aaaa' is missing\."):
        WeightLoader(GGUFFile.open(path)).take("aaaa", (8,))
