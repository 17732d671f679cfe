"""Weights on the device equal the file's values; loading peaks at one tensor over the result."""

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, quants
from gguf import GGMLQuantizationType as T
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.engine import weights
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.repack import NATIVE_FORMS
from ds4tui.engine.weights import Weight, WeightLoader
from ds4tui.errors import GGUFError
from ds4tui.kernels.linear import QuantisedLinear
from ds4tui.kernels.stack import QuantisedStack
from tests.engine import gguf_samples as samples
from tests.engine.quantised_samples import finite_blocks, finite_rows, moderate_blocks, reference
from tests.engine.test_gguf import peak_bytes
from tests.scale import scaled

NATIVE = list(NATIVE_FORMS)
AFFINE = [t for t in NATIVE if NATIVE_FORMS[t].mode == "affine"]


@pytest.fixture
def weight_of(tmp_path: Path) -> Callable[[np.ndarray, T], Weight]:
    def make(raw: np.ndarray, ggml_type: T) -> Weight:
        path = samples.write_gguf(tmp_path / "w.gguf", {"w": (raw, ggml_type)})
        return Weight(GGUFFile.open(path), "w")

    return make


# -- quantised ---------------------------------------------------------------------------------


@pytest.mark.parametrize("ggml_type", NATIVE, ids=lambda t: t.name)
@given(
    rows=st.integers(1, 70),
    blocks=st.integers(1, 5),
    tile=st.sampled_from([32, 96, 2**20]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=scaled(25), deadline=None)
def test_the_native_form_is_exact(
    tmp_path_factory: pytest.TempPathFactory,
    ggml_type: T,
    rows: int,
    blocks: int,
    tile: int,
    seed: int,
) -> None:
    shape = (rows, blocks * GGML_QUANT_SIZES[ggml_type][0])
    raw = finite_blocks(np.random.default_rng(seed), shape, ggml_type)
    path = tmp_path_factory.getbasetemp() / f"{ggml_type.name}.gguf"
    weight = Weight(GGUFFile.open(samples.write_gguf(path, {"w": (raw, ggml_type)})), "w")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "TILE_ELEMENTS", tile)
        matrix = weight.quantised()
    assert matrix is not None
    form = NATIVE_FORMS[ggml_type]
    assert (matrix.shape, matrix.bits, matrix.group_size) == (shape, form.bits, form.group_size)
    assert matrix.packed.dtype == mx.uint32
    assert matrix.scales.dtype == (mx.float32 if form.mode == "affine" else mx.uint8)
    np.testing.assert_array_equal(np.array(matrix.values()), reference(raw, ggml_type))


@pytest.mark.parametrize("ggml_type", NATIVE, ids=lambda t: t.name)
def test_every_code_of_a_value_and_of_a_scale_is_read(
    weight_of: Callable[[np.ndarray, T], Weight], ggml_type: T
) -> None:
    """Blocks whose bytes are all the same: each of 256 (but for scales that are no number)."""
    block_bytes = GGML_QUANT_SIZES[ggml_type][1]
    raw = np.repeat(np.arange(256, dtype=np.uint8)[:, None], block_bytes, axis=1)
    raw = raw[finite_rows(raw, ggml_type)]
    matrix = weight_of(raw, ggml_type).quantised()
    assert matrix is not None
    assert len(raw) > 240
    np.testing.assert_array_equal(np.array(matrix.values()), reference(raw, ggml_type))


@pytest.mark.parametrize("ggml_type", NATIVE, ids=lambda t: t.name)
def test_products_with_the_native_form_are_those_of_the_values(
    weight_of: Callable[[np.ndarray, T], Weight], ggml_type: T
) -> None:
    rng = np.random.default_rng(3)
    weight = weight_of(moderate_blocks(rng, (96, 256), ggml_type), ggml_type)
    matrix = weight.quantised()
    assert matrix is not None
    x = rng.normal(size=(5, 256)).astype(np.float32)
    values = weight.host_rows(slice(None)).astype(np.float64)
    product = QuantisedLinear(matrix, mx.float32)(mx.array(x))
    size = np.abs(x).astype(np.float64) @ np.abs(values).T
    assert (np.abs(np.array(product) - x.astype(np.float64) @ values.T) <= 1e-5 * size).all()


@pytest.mark.parametrize("ggml_type", NATIVE, ids=lambda t: t.name)
def test_products_of_experts_gather_their_own_matrices(
    weight_of: Callable[[np.ndarray, T], Weight], ggml_type: T
) -> None:
    rng = np.random.default_rng(4)
    weight = weight_of(moderate_blocks(rng, (4, 24, 256), ggml_type), ggml_type)
    matrix = weight.quantised()
    assert matrix is not None
    x, experts = rng.normal(size=(6, 256)).astype(np.float32), np.array([0, 0, 1, 3, 3, 3])
    values = weight.host_rows(slice(None)).astype(np.float64)[experts]
    product = QuantisedStack(matrix, mx.float32)(mx.array(x), mx.array(experts))
    wanted = np.einsum("nk,nok->no", x.astype(np.float64), values)
    size = np.einsum("nk,nok->no", np.abs(x), np.abs(values))
    assert (np.abs(np.array(product) - wanted) <= 1e-5 * size).all()


@pytest.mark.parametrize(
    "ggml_type", [T.Q2_K, T.Q3_K, T.Q6_K, T.IQ4_NL, T.IQ1_M, T.F16, T.F32], ids=lambda t: t.name
)
def test_other_types_have_no_native_form(
    weight_of: Callable[[np.ndarray, T], Weight], ggml_type: T
) -> None:
    raw = samples.random_blocks(np.random.default_rng(0), (2, 256), ggml_type)
    assert weight_of(raw, ggml_type).quantised() is None


@pytest.mark.parametrize("ggml_type", NATIVE, ids=lambda t: t.name)
def test_matrices_of_experts_have_one_too(
    weight_of: Callable[[np.ndarray, T], Weight], ggml_type: T
) -> None:
    raw = finite_blocks(np.random.default_rng(1), (3, 5, 512), ggml_type)
    matrix = weight_of(raw, ggml_type).quantised()
    assert matrix is not None
    assert matrix.shape == (3, 5, 512)
    np.testing.assert_array_equal(np.array(matrix.values()), reference(raw, ggml_type))


@pytest.mark.parametrize("shape", [(64,), (2, 2, 3, 64)], ids=str)
def test_only_matrices_have_a_native_form(
    weight_of: Callable[[np.ndarray, T], Weight], shape: tuple[int, ...]
) -> None:
    raw = finite_blocks(np.random.default_rng(0), shape, T.Q8_0)
    assert weight_of(raw, T.Q8_0).quantised() is None


@pytest.mark.parametrize("ggml_type", AFFINE, ids=lambda t: t.name)
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_scales_that_are_not_finite_have_no_affine_form(
    weight_of: Callable[[np.ndarray, T], Weight], ggml_type: T, bad: float
) -> None:
    raw = finite_blocks(np.random.default_rng(0), (2, 256), ggml_type)
    raw[1, :2] = np.array([bad], np.float16).view(np.uint8)
    weight = weight_of(raw, ggml_type)
    assert weight.quantised() is None
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(np.array(weight.dense()), quants.dequantize(raw, ggml_type))


@pytest.mark.parametrize("ggml_type", [T.MXFP4, T.NVFP4], ids=lambda t: t.name)
def test_a_scale_that_only_gguf_knows_has_no_native_form(
    weight_of: Callable[[np.ndarray, T], Weight], ggml_type: T
) -> None:
    raw = finite_blocks(np.random.default_rng(0), (2, 256), ggml_type)
    raw[1, 0] = 0xFF
    assert weight_of(raw, ggml_type).quantised() is None


@pytest.mark.parametrize("ggml_type", NATIVE, ids=lambda t: t.name)
def test_float16_rounds_the_scales_that_it_cannot_hold(
    weight_of: Callable[[np.ndarray, T], Weight], ggml_type: T
) -> None:
    form = NATIVE_FORMS[ggml_type]
    raw = moderate_blocks(np.random.default_rng(2), (8, 512), ggml_type)
    matrix = weight_of(raw, ggml_type).quantised("float16")
    assert matrix is not None
    assert matrix.scales.dtype == (mx.float16 if form.mode == "affine" else mx.uint8)
    # What is held exactly is seen with the scales widened again.
    values, wanted = (
        np.array(matrix.held_for(mx.float32).values()),
        quants.dequantize(raw, ggml_type),
    )
    assert np.array_equal(values, wanted) == (form.short_scales or form.mode != "affine")
    # Scale and bias are rounded by up to 2^-11 each, and each is at most the largest value.
    assert np.abs(values - wanted).max() <= 3 * 2.0**-11 * np.abs(wanted).max()


def test_scales_beyond_float16_stay_as_they_are(
    weight_of: Callable[[np.ndarray, T], Weight],
) -> None:
    raw = finite_blocks(np.random.default_rng(2), (1, 256), T.Q4_K)
    raw[0, :2] = np.array([60000], np.float16).view(np.uint8)
    matrix = weight_of(raw, T.Q4_K).quantised("float16")
    assert matrix is not None
    assert matrix.scales.dtype == mx.float32


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
