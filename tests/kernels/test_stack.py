"""Products with one of many matrices: every twin that this machine can run, against float64."""

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.kernels import feed_forward
from ds4tui.kernels.cpu import feed_forward as host_feed_forward
from ds4tui.kernels.cpu.stack import HostStack
from ds4tui.kernels.linear import QuantisedMatrix
from ds4tui.kernels.stack import DenseStack, QuantisedStack, Stack
from tests.scale import scaled


def dense(weights: np.ndarray) -> tuple[Stack, np.ndarray]:
    return DenseStack(mx.array(weights)), weights


def host(weights: np.ndarray) -> tuple[Stack, np.ndarray]:
    return HostStack.read(len(weights), lambda experts: weights[experts]), weights


def quantised(weights: np.ndarray) -> tuple[Stack, np.ndarray]:
    """The twin, and the matrices that its four bits really hold."""
    parts = mx.quantize(mx.array(weights), group_size=32, bits=4)
    held = mx.dequantize(*parts, group_size=32, bits=4)
    return QuantisedStack(QuantisedMatrix(*parts, 32, 4), mx.float32), np.asarray(held)


TWINS: dict[str, Callable[[np.ndarray], tuple[Stack, np.ndarray]]] = {
    "dense": dense,
    "host": host,
    "quantised": quantised,
}


@pytest.mark.parametrize("name", TWINS)
@settings(max_examples=scaled(20), deadline=None)
@given(
    experts=st.integers(1, 6),
    out=st.integers(1, 40),
    groups=st.integers(1, 3),
    rows=st.integers(1, 50),
    seed=st.integers(0, 99),
)
def test_each_row_is_multiplied_by_its_expert(
    name: str, experts: int, out: int, groups: int, rows: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    stack, held = TWINS[name](random.standard_normal((experts, out, 32 * groups), np.float32))
    x = random.standard_normal((rows, 32 * groups), np.float32)
    chosen = np.sort(random.integers(0, experts, rows))
    y = stack(mx.array(x), mx.array(chosen.astype(np.uint32)))
    wanted = np.einsum("noi,ni->no", held[chosen].astype(np.float64), x)
    assert (y.shape, y.dtype, stack.shape) == ((rows, out), mx.float32, held.shape)
    np.testing.assert_allclose(np.asarray(y), wanted, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("name", TWINS)
def test_experts_that_no_row_picked_do_not_reach_a_product(name: str) -> None:
    """Theirs are no numbers, which would go through any sum."""
    weights = np.random.default_rng(0).standard_normal((6, 8, 32), np.float32)
    x = np.ones((5, 32), np.float32)
    chosen = mx.array(np.array([1, 1, 3, 3, 4], np.uint32))
    whole = TWINS[name](weights)[0](mx.array(x), chosen)
    weights[[0, 2, 5]] = np.nan
    y = np.asarray(TWINS[name](weights)[0](mx.array(x), chosen))
    assert np.isfinite(y).all() and np.array_equal(y, np.asarray(whole))


def test_numpy_looks_at_no_expert_that_was_not_picked() -> None:
    stack = HostStack.read(3, lambda experts: np.ones((3, 8, 32), np.float32)[experts])
    del stack.matrices[1:]
    y = stack(mx.ones((2, 32)), mx.array(np.zeros(2, np.uint32)))
    np.testing.assert_array_equal(np.asarray(y), np.full((2, 8), 32, np.float32))
    with pytest.raises(IndexError):
        stack(mx.ones((2, 32)), mx.array(np.ones(2, np.uint32)))


def routed(name: str, scores: np.ndarray, used: int) -> tuple[np.ndarray, np.ndarray]:
    if name == "host":
        return host_feed_forward.routed(scores.copy(), used)
    chosen, shares = feed_forward.routed(mx.array(scores), used)
    return np.asarray(chosen), np.asarray(shares)


@pytest.mark.parametrize("name", ["reference", "host"])
@settings(max_examples=scaled(30), deadline=None)
@given(
    rows=st.integers(1, 20),
    experts=st.integers(1, 12),
    share=st.floats(0, 1),
    spread=st.sampled_from([0.1, 3.0, 200.0]),
    seed=st.integers(0, 99),
)
def test_the_likeliest_experts_share_a_row(
    name: str, rows: int, experts: int, share: float, spread: float, seed: int
) -> None:
    """Also where exp of a score overflows."""
    used = 1 + int(share * (experts - 1))
    scores = np.random.default_rng(seed).standard_normal((rows, experts), np.float32) * spread
    chosen, shares = routed(name, scores, used)
    wide = scores.astype(np.float64)
    for row, own, part in zip(wide, chosen, shares, strict=True):
        assert set(own.tolist()) == set(np.argsort(-row)[:used].tolist())
        wanted = np.exp(row[own] - row.max())
        np.testing.assert_allclose(part, wanted / wanted.sum(), atol=1e-5)
