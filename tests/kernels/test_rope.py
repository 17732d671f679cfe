import mlx.core as mx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.kernels.rope import Turn, neighbours, turned
from tests.kernels import oracle
from tests.scale import scaled


@settings(max_examples=scaled(30), deadline=None)
@given(
    heads=st.integers(1, 3),
    positions=st.lists(st.integers(0, 200_000), min_size=1, max_size=20),
    pairs=st.integers(1, 6),
    left=st.integers(0, 3),
    seed=st.integers(0, 99),
)
def test_neighbours_turn_by_position_times_frequency(
    heads: int, positions: list[int], pairs: int, left: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    x = random.standard_normal((heads, len(positions), 2 * pairs + left), np.float32)
    frequencies = random.uniform(1e-4, 1, pairs)
    at = np.array(positions, np.int32)
    turn = Turn.at(at, frequencies)
    ours = np.asarray(turned(mx.array(x), *turn.device(mx.float32)))
    np.testing.assert_allclose(ours, oracle.turned(x, at, frequencies), atol=1e-5)
    assert np.array_equal(ours[..., 2 * pairs :], x[..., 2 * pairs :])


def test_a_part_of_a_turn_is_the_turn_of_those_rows() -> None:
    turn = Turn.at(np.arange(10, dtype=np.int32), np.array([0.5, 0.1]))
    part = Turn.at(np.arange(3, 7, dtype=np.int32), np.array([0.5, 0.1]))
    assert np.array_equal(turn.part(slice(3, 7)).factors, part.factors)


@given(
    heads=st.integers(1, 3),
    pairs=st.integers(1, 6),
    left=st.integers(0, 3),
    seed=st.integers(0, 99),
)
def test_halves_brought_to_neighbours_give_the_scores_of_halves(
    heads: int, pairs: int, left: int, seed: int
) -> None:
    """q · k after a rope that pairs values j and j + J, from its definition."""
    random = np.random.default_rng(seed)
    size, at, frequencies = 2 * pairs + left, np.arange(5), random.uniform(0.1, 1, pairs)
    q, k = random.standard_normal((2, heads, 5, size))

    def half_turned(x: np.ndarray) -> np.ndarray:
        out, angles = x.copy(), at[:, None] * frequencies
        a, b = x[..., :pairs], x[..., pairs : 2 * pairs]
        out[..., :pairs] = a * np.cos(angles) - b * np.sin(angles)
        out[..., pairs : 2 * pairs] = a * np.sin(angles) + b * np.cos(angles)
        return out

    def reordered(x: np.ndarray) -> np.ndarray:
        rows = x.swapaxes(0, 1).reshape(5, -1)[:, neighbours(heads, size, 2 * pairs)]
        turned_rows = rows.reshape(5, heads, size).swapaxes(0, 1)
        return oracle.turned(turned_rows, at, frequencies)

    wanted = half_turned(q) @ half_turned(k).swapaxes(1, 2)
    np.testing.assert_allclose(reordered(q) @ reordered(k).swapaxes(1, 2), wanted, atol=1e-9)


def test_a_magnitude_stretches_what_is_turned() -> None:
    at, frequencies = np.arange(3, dtype=np.int32), np.array([0.5, 0.1])
    plain, long = Turn.at(at, frequencies), Turn.at(at, frequencies, 1.25)
    np.testing.assert_allclose(long.factors, 1.25 * plain.factors, rtol=1e-6)
