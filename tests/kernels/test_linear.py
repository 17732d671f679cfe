"""Every twin of the matrix product that this machine can run, against float64."""

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.kernels.cpu.linear import READ_ROWS, HostLinear
from ds4tui.kernels.linear import DenseLinear, Linear, QuantisedLinear, QuantisedMatrix
from tests.kernels import oracle
from tests.scale import scaled


def dense(weight: np.ndarray) -> tuple[Linear, np.ndarray]:
    return DenseLinear(mx.array(weight)), weight


def host(weight: np.ndarray) -> tuple[Linear, np.ndarray]:
    return HostLinear.read(weight.shape, lambda rows: weight[rows]), weight


def quantised(weight: np.ndarray) -> tuple[Linear, np.ndarray]:
    """The twin, and the matrix that its four bits really hold."""
    parts = mx.quantize(mx.array(weight), group_size=32, bits=4)
    held = mx.dequantize(*parts, group_size=32, bits=4)
    return QuantisedLinear(QuantisedMatrix(*parts, 32, 4), mx.float32), np.asarray(held)


TWINS: dict[str, Callable[[np.ndarray], tuple[Linear, np.ndarray]]] = {
    "dense": dense,
    "host": host,
    "quantised": quantised,
}


@pytest.fixture(params=TWINS)
def twin(request: pytest.FixtureRequest) -> Callable[[np.ndarray], tuple[Linear, np.ndarray]]:
    return TWINS[request.param]


def draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@pytest.mark.parametrize("name", TWINS)
@settings(max_examples=scaled(30), deadline=None)
@given(
    rows=st.integers(1, 150),
    out=st.integers(1, 200),
    groups=st.integers(1, 5),
    biased=st.booleans(),
    seed=st.integers(0, 99),
)
def test_products_and_rows_are_those_of_the_definition(
    name: str, rows: int, out: int, groups: int, biased: bool, seed: int
) -> None:
    columns = 32 * groups
    linear, held = TWINS[name](draw(seed, out, columns))
    x, bias = draw(seed + 1, rows, columns), draw(seed + 2, out) if biased else None
    if bias is not None:
        linear.add_bias(mx.array(bias))
    y = linear(mx.array(x))
    assert (y.shape, y.dtype, linear.shape) == ((rows, out), mx.float32, (out, columns))
    np.testing.assert_allclose(np.asarray(y), oracle.linear(x, held, bias), atol=1e-4, rtol=1e-5)
    ids = np.random.default_rng(seed).integers(0, out, 7)
    assert np.array_equal(np.asarray(linear.rows(ids)), held[ids]), "a bias is not a row's"


def test_activations_keep_their_type(twin: Callable[..., tuple[Linear, np.ndarray]]) -> None:
    linear, _ = twin(draw(0, 8, 32))
    linear.add_bias(mx.zeros(8))
    assert linear(mx.zeros((2, 32), mx.float16)).dtype in (mx.float16, mx.float32)
    assert linear(mx.zeros((2, 32))).dtype == mx.float32


def test_inputs_are_only_read(twin: Callable[..., tuple[Linear, np.ndarray]]) -> None:
    linear, _ = twin(draw(0, 32, 32))
    linear.add_bias(mx.ones(32))
    x = draw(1, 4, 32)
    given = mx.array(x)
    mx.eval(linear(given))
    assert np.array_equal(np.asarray(given), x)


def test_views_and_transposes_of_mlx_arrays_are_understood(
    twin: Callable[..., tuple[Linear, np.ndarray]],
) -> None:
    linear, held = twin(draw(0, 16, 32))
    x = draw(1, 32, 20)
    y = linear(mx.array(x).T[3:9])
    np.testing.assert_allclose(np.asarray(y), oracle.linear(x.T[3:9], held, None), atol=1e-4)


def test_a_host_matrix_is_read_a_few_rows_at_a_time() -> None:
    """Loading must not need a second whole matrix."""
    weight, asked = draw(0, 2 * READ_ROWS + 5, 32), []

    def rows(part: slice) -> np.ndarray:
        asked.append(part.stop - part.start)
        return weight[part]

    linear = HostLinear.read((len(weight), 32), rows)
    assert asked == [READ_ROWS, READ_ROWS, 5]
    assert np.array_equal(linear.host_rows(np.arange(len(weight))), weight)
    assert linear.nbytes == weight.nbytes


def test_products_side_by_side_are_the_products_one_by_one() -> None:
    parts = [HostLinear(draw(i, 32, 10 * (i + 1))) for i in range(3)]
    parts[1].bias = draw(9, 20)
    x = draw(4, 6, 32)
    together = HostLinear.side_by_side(*parts).apply(x)
    apart = np.concatenate([part.apply(x) for part in parts], axis=1)
    np.testing.assert_allclose(together, apart, atol=1e-5)


def test_rows_in_another_order(twin: Callable[..., tuple[Linear, np.ndarray]]) -> None:
    linear, held = twin(draw(0, 20, 64))
    order, x = np.random.default_rng(3).permutation(20), draw(1, 4, 64)
    linear.reorder(order)
    linear.add_bias(mx.arange(20).astype(mx.float32))
    wanted = oracle.linear(x, held[order], np.arange(20.0))
    np.testing.assert_allclose(np.asarray(linear(mx.array(x))), wanted, atol=1e-4)
    assert np.array_equal(np.asarray(linear.rows(np.array([3, 7]))), held[order][[3, 7]])
