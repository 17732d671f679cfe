"""Attention to a window and to pools, and the pools, against NumPy in float64."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.kernels import window_pools
from ds4tui.kernels.compressors import Compressor, CompressorWeights, turned_end
from ds4tui.kernels.linear import DenseLinear
from ds4tui.kernels.window_pools import Seen, attend_window
from tests.scale import scaled

HEADS, SIZE = 3, 8


def expected(
    q: np.ndarray,
    rows: np.ndarray,
    pools: np.ndarray,
    sees: np.ndarray,
    sinks: np.ndarray,
    first: int,
    window: int,
) -> np.ndarray:
    out = np.zeros(q.shape)
    for h in range(q.shape[0]):
        for t in range(q.shape[1]):
            at = first + t
            own = rows[max(0, at - window + 1) : at + 1]
            keys = np.concatenate([own, pools[sees[t]]])
            scores = np.exp(np.r_[keys @ q[h, t] * 0.3, sinks[h]])
            out[h, t] = (scores / scores.sum())[:-1] @ keys
    return out


@settings(max_examples=scaled(40), deadline=None)
@given(
    first=st.integers(0, 40),
    count=st.integers(1, 20),
    window=st.integers(1, 12),
    ratio=st.sampled_from([2, 4]),
    kept=st.sampled_from([0, 1, 3]),
    scores_max=st.sampled_from([2**22, 200]),
    spare=st.sampled_from([0, 3, 99]),
    seed=st.integers(0, 99),
)
def test_a_query_sees_its_window_and_what_was_chosen(
    first: int,
    count: int,
    window: int,
    ratio: int,
    kept: int,
    scores_max: int,
    spare: int,
    seed: int,
) -> None:
    """Masked, and gathered where pools are many; of all queries at once and of few at a time;
    with more rows before the window than are seen."""
    random = np.random.default_rng(seed)
    q = random.standard_normal((HEADS, count, SIZE)).astype(np.float32)
    rows = random.standard_normal((first + count, SIZE)).astype(np.float32)
    pools = random.standard_normal(((first + count) // ratio, SIZE)).astype(np.float32)
    sinks = random.standard_normal(HEADS).astype(np.float32)
    whole = (np.arange(first, first + count) + 1) // ratio
    sees = np.arange(len(pools)) < whole[:, None]
    chosen = None
    if kept and len(pools):
        ranks = np.argsort(random.random(sees.shape) + ~sees, axis=1)
        picked = np.zeros_like(sees)
        np.put_along_axis(picked, ranks[:, :kept], True, axis=1)
        sees &= picked
        chosen = mx.array(sees)
    seen = Seen(mx.array(pools), ratio, chosen, kept) if len(pools) else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_pools, "SCORES_MAX", scores_max)
        held = mx.array(rows[max(0, first - window + 1 - spare) :])
        got = attend_window(mx.array(q), held, mx.array(sinks), 0.3, first, window, seen)
    wanted = expected(q, rows, pools, sees, sinks, first, window)
    np.testing.assert_allclose(np.asarray(got), wanted, atol=2e-5)


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("first", [0, 1, 5])
def test_a_pool_is_of_its_rows_and_of_those_before(overlaps: bool, first: int) -> None:
    random, size, values = np.random.default_rng(first), 4, 6
    kept, count = values * (2 if overlaps else 1), 3
    c, z = random.standard_normal((2, (first + count) * size, kept)).astype(np.float32)
    position = random.standard_normal((size, kept)).astype(np.float32)
    norm = random.standard_normal(values).astype(np.float32)
    nothing = DenseLinear(mx.zeros((1, 1)))
    weights = CompressorWeights(nothing, nothing, mx.array(position), mx.array(norm))
    asked: list[np.ndarray] = []

    def turn_at(positions: np.ndarray) -> tuple[mx.array, mx.array]:
        asked.append(positions)
        return mx.ones((len(positions), 1)), mx.zeros((len(positions), 1))

    own = [np.concatenate([c[first * size :, -values:], z[first * size :, -values:]], axis=1)]
    if overlaps:
        begin = max(0, first - 1) * size
        own.append(np.concatenate([c[begin:, :values], z[begin:, :values]], axis=1))
    open_rows = random.integers(0, size)  # of a pool that is not whole
    more = np.ones((open_rows, 2 * values), np.float32)
    kinds = [mx.array(np.concatenate([rows, more]))[None] for rows in own]
    pools = Compressor(weights, 1e-6, turn_at).pooled(first, *kinds)
    assert asked[0].tolist() == [size * (first + i) for i in range(count)]
    for i in range(count):
        its = slice((first + i) * size, (first + i + 1) * size)
        held, gates = c[its, -values:], (z[its] + position)[:, -values:]
        if overlaps and first + i:
            before = slice(its.start - size, its.start)
            held = np.concatenate([c[before, :values], held])
            gates = np.concatenate([(z[before] + position)[:, :values], gates])
        shares = np.exp(gates) / np.exp(gates).sum(axis=0)
        pool = (shares * held).sum(axis=0)
        pool = pool / np.sqrt((pool**2).mean() + 1e-6) * norm
        np.testing.assert_allclose(np.asarray(pools)[i], pool, atol=1e-5)


def test_the_end_of_a_row_is_turned_and_turned_back() -> None:
    x = mx.array(np.random.default_rng(0).standard_normal((2, 5, 8)).astype(np.float32))
    angles = np.linspace(0, 3, 10).reshape(5, 2).astype(np.float32)
    cosines = mx.array(np.cos(angles)), mx.array(np.sin(angles))
    turned = turned_end(x, cosines)
    np.testing.assert_array_equal(np.asarray(turned)[..., :4], np.asarray(x)[..., :4])
    assert np.abs(np.asarray(turned)[:, 1:, 4:] - np.asarray(x)[:, 1:, 4:]).max() > 0.1
    back = turned_end(turned, cosines, backwards=True)
    np.testing.assert_allclose(np.asarray(back), np.asarray(x), atol=1e-6)
