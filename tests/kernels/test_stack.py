"""Products with one of many matrices: every twin that this machine can run, against float64."""

from collections.abc import Callable
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.kernels import feed_forward
from ds4tui.kernels.cpu import feed_forward as host_feed_forward
from ds4tui.kernels.cpu.stack import HostStack
from ds4tui.kernels.expert_cache import ExpertCache
from ds4tui.kernels.linear import DenseLinear, Linear, QuantisedMatrix
from ds4tui.kernels.paged_stack import PagedStack
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


@dataclass
class Expert:
    """As one in a file; `journal` gets what is done with it."""

    matrix: np.ndarray
    journal: list[str] = field(default_factory=list)

    def unpack(self) -> None:
        self.journal.append("unpacked")

    def linear(self) -> Linear:
        self.journal.append("made")
        matrix = mx.array(self.matrix)
        mx.eval(matrix)
        return DenseLinear(matrix)


def paged(weights: np.ndarray) -> tuple[Stack, np.ndarray]:
    """One that holds two experts at a time."""
    count, out, columns = weights.shape
    cache = ExpertCache[Linear](2 * 4 * out * columns)

    return PagedStack((count, out, columns), lambda e: Expert(weights[e]), cache), weights


TWINS: dict[str, Callable[[np.ndarray], tuple[Stack, np.ndarray]]] = {
    "dense": dense,
    "host": host,
    "quantised": quantised,
    "paged": paged,
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


def test_a_paged_stack_reads_what_is_picked_and_keeps_what_fits() -> None:
    weights = np.random.default_rng(0).standard_normal((5, 8, 32), np.float32)
    cache, sources = ExpertCache[Linear](2 * 4 * 8 * 32), list[tuple[int, Expert]]()

    def source(expert: int) -> Expert:
        sources.append((expert, Expert(weights[expert])))
        return sources[-1][1]

    stack = PagedStack((5, 8, 32), source, cache)
    assert [e for e, _ in sources] == [0]  # to see what one takes
    sources.clear()
    for picks in ([1, 1, 3], [1, 3], [0, 1], [3]):
        stack(mx.ones((len(picks), 32)), mx.array(np.array(picks, np.uint32)))
    assert [e for e, _ in sources] == [1, 3, 0, 1, 3]
    journals = [source.journal for _, source in sources]
    # Expert 1 was held when it was picked for the third time, and had to go for expert 0.
    assert journals == [["unpacked", "made"]] * 3 + [["made"]] + [["unpacked", "made"]]
    assert (cache.stats.hits, cache.stats.misses, cache.stats.evicted) == (2, 5, 3)
    assert cache.stats.resident_bytes == 2 * 4 * 8 * 32
    assert "copied when they are picked" in stack.form and stack.nbytes == weights.nbytes


def test_an_error_of_a_reader_reaches_the_product() -> None:
    class Broken(Expert):
        def unpack(self) -> None:
            raise OSError("the disk is gone")

    stack = PagedStack(
        (2, 8, 32), lambda _: Broken(np.ones((8, 32), np.float32)), ExpertCache(2 * 4 * 8 * 32)
    )
    with pytest.raises(OSError, match="the disk is gone"):
        stack(mx.ones((1, 32)), mx.array(np.array([1], np.uint32)))


def test_a_cache_that_cannot_hold_an_expert_is_refused() -> None:
    with pytest.raises(ValueError, match="more than the cache has"):
        PagedStack((2, 8, 32), lambda _: Expert(np.ones((8, 32), np.float32)), ExpertCache(8))


def test_experts_that_a_paged_stack_lets_go_free_their_memory() -> None:
    """A product that is not computed yet would hold on to its expert."""
    each = 4 * 256 * 256
    cache = ExpertCache[Linear](2 * each)

    def source(expert: int) -> Expert:
        return Expert(np.full((256, 256), expert, np.float32))

    stack = PagedStack((32, 256, 256), source, cache)
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    y = stack(mx.ones((32, 256)), mx.arange(32))
    assert np.array_equal(np.asarray(y)[:, 0], 256.0 * np.arange(32))
    assert mx.get_peak_memory() - before < 6 * each
