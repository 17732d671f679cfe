import mlx.core as mx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.kernels.rope import Turn, turned
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
