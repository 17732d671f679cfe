"""The native products, in every format and with every instruction set that this machine has,
against gguf.quants in float64."""

import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Type
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.kernels.cpu.native import check
from ds4tui.kernels.cpu.native.check import FloatSource, random_source
from ds4tui.kernels.cpu.native.formats import BLOCK_TYPES
from ds4tui.kernels.cpu.native.library import Kernels, MatrixStruct, loaded
from ds4tui.kernels.cpu.native.linear import NativeLinear, NativeStack
from ds4tui.kernels.cpu.native.variants import runnable
from tests.scale import scaled

VARIANTS = {variant.name: variant for variant in runnable()}
FORMATS = sorted(BLOCK_TYPES)
EPSILON = np.finfo(np.float32).eps


@pytest.fixture(params=VARIANTS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return loaded(VARIANTS[request.param])


def assert_product(y: np.ndarray, x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> None:
    """A sum of n terms a_i is off by at most about n eps sum |a_i| in any order (here: by
    sqrt(n), since errors have either sign); a decoded weight by 2 eps of the largest part."""
    x, weight = x.astype(np.float64), weight.astype(np.float64)
    terms = weight.shape[1]
    largest = np.abs(weight).max(axis=1)  # scale and offset of a block may cancel out
    size = np.abs(x).sum(axis=1)[:, None] * largest + np.abs(bias)
    gap = np.abs(y - (x @ weight.T + bias))
    assert (gap <= (4 + np.sqrt(terms) / 8) * EPSILON * size).all(), gap.max()


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
@settings(max_examples=scaled(12), deadline=None)
@given(
    rows=st.one_of(st.integers(1, 8), st.integers(1, 70)),
    out=st.integers(1, 90),
    size=st.integers(1, 700),
    biased=st.booleans(),
    seed=st.integers(0, 999),
)
def test_products_are_those_of_the_decoded_weights(
    name: str, kind: Type, rows: int, out: int, size: int, biased: bool, seed: int
) -> None:
    random, block = np.random.default_rng(seed), GGML_QUANT_SIZES[kind][0]
    columns = max(1, size // block) * block
    source = random_source(kind, out, columns, random)
    linear = NativeLinear(loaded(VARIANTS[name]), source)
    order = random.permutation(out)
    linear.reorder(order)
    bias = np.zeros(out, np.float32)
    if biased:
        bias = random.standard_normal(out, np.float32)
        linear.struct.bias = bias.ctypes.data
    x = random.standard_normal((rows, columns), np.float32)
    y = np.full((rows + 2, out), np.nan, np.float32)  # every element is written, none beside
    linear._kernels._library.ds4_product(linear.struct, x.ctypes.data, y[1:].ctypes.data, rows)
    assert np.isnan(y[[0, -1]]).all()
    assert_product(y[1:-1], x, source.values[order], bias)
    ids = random.integers(0, out, 5)
    rows_of = loaded(VARIANTS[name]).rows(linear.struct, ids)
    reach = np.abs(source.values).max()
    np.testing.assert_allclose(rows_of, source.values[order][ids], rtol=0, atol=4 * EPSILON * reach)


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_one_row_or_many_give_nearly_the_same(kernels: Kernels, kind: Type) -> None:
    """Weights decoded in registers and weights decoded into panels."""
    random = np.random.default_rng(0)
    linear = NativeLinear(kernels, random_source(kind, 100, 768, random))
    x = random.standard_normal((50, 768), np.float32)
    one_by_one = np.concatenate([linear.apply(x[i : i + 1]) for i in range(50)])
    np.testing.assert_allclose(one_by_one, linear.apply(x), atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_threads_gives_the_same_bits(kernels: Kernels, threads: int) -> None:
    random = np.random.default_rng(1)
    linear = NativeLinear(kernels, random_source(Type.Q4_K, 700, 256, random))
    inputs = [random.standard_normal((rows, 256), np.float32) for rows in (1, 3, 30)]
    usual = kernels.threads
    wanted = [linear.apply(x) for x in inputs]
    try:
        kernels.start(threads)
        for _ in range(20):
            for x, y in zip(inputs, wanted, strict=True):
                assert np.array_equal(linear.apply(x), y)
    finally:
        kernels.start(usual)


def test_more_chunks_than_a_job_has_numbers_for(kernels: Kernels) -> None:
    weight = np.random.default_rng(2).standard_normal((40_000 * 32 + 3, 1), np.float32)
    x = np.ones((6, 1), np.float32)
    assert np.array_equal(NativeLinear(kernels, FloatSource(weight)).apply(x)[5], weight[:, 0])


def test_blocks_stay_in_the_file(kernels: Kernels) -> None:
    source = random_source(Type.Q4_K, 8, 256, np.random.default_rng(3))
    linear = NativeLinear(kernels, source)
    assert linear.struct.data == source.raw.ctypes.data
    assert (linear.nbytes, linear.form) == (8 * 144, "Q4_K blocks of the file")


def test_a_type_without_a_kernel_is_held_as_numbers(kernels: Kernels) -> None:
    random = np.random.default_rng(4)
    source = random_source(Type.Q3_K, 40, 512, random)
    linear = NativeLinear(kernels, source)
    assert (linear.nbytes, linear.form) == (40 * 512 * 4, "float32, read from Q3_K")
    x = random.standard_normal((3, 512), np.float32)
    assert_product(linear.apply(x), x, source.values, np.zeros(40))


def test_a_stack_multiplies_each_row_with_its_own_matrix(kernels: Kernels) -> None:
    import mlx.core as mx

    random = np.random.default_rng(5)
    weights = random.standard_normal((4, 20, 33), np.float32)
    x, experts = random.standard_normal((9, 33), np.float32), np.sort(random.integers(0, 4, 9))
    y = np.asarray(NativeStack(kernels, FloatSource(weights))(mx.array(x), mx.array(experts)))
    np.testing.assert_allclose(y, np.einsum("ni,noi->no", x, weights[experts]), atol=1e-4)


def test_a_stack_looks_at_no_matrix_that_was_not_picked(kernels: Kernels) -> None:
    import mlx.core as mx

    weights = np.random.default_rng(5).standard_normal((4, 20, 33), np.float32)
    stack = NativeStack(kernels, FloatSource(weights))
    whole = np.asarray(stack(mx.ones((2, 33)), mx.array(np.zeros(2, np.uint32))))
    del stack.matrices[1:]
    y = np.asarray(stack(mx.ones((2, 33)), mx.array(np.zeros(2, np.uint32))))
    np.testing.assert_array_equal(y, whole)
    with pytest.raises(IndexError):
        stack(mx.ones((2, 33)), mx.array(np.ones(2, np.uint32)))


def test_scales_that_are_no_numbers_give_none(kernels: Kernels) -> None:
    """A damaged file: the answer is NaN, as the reference's, and nothing else happens."""
    source = random_source(Type.Q8_0, 40, 64, np.random.default_rng(6))
    source.raw[7, 0:2] = np.array([np.nan], np.float16).view(np.uint8)
    linear = NativeLinear(kernels, source)
    for rows in (1, 20):
        y = linear.apply(np.ones((rows, 64), np.float32))
        assert np.isnan(y[:, 7]).all() and np.isfinite(np.delete(y, 7, axis=1)).all()


def test_the_check_sees_a_wrong_product(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check.wrong_with(kernels) == ""
    right = Kernels.product

    def wrong(self: Kernels, matrix: MatrixStruct, x: np.ndarray) -> np.ndarray:
        y = right(self, matrix, x)
        if matrix.type == Type.Q6_K and len(x) > 3:
            y[-1, -1] += 0.01
        return y

    monkeypatch.setattr(Kernels, "product", wrong)
    assert check.wrong_with(kernels).startswith("Q6_K, 40 rows: differs")
