"""One budget, divided: the laws of cache.pools, and plan_memory's use of it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.cache.memory import plan_memory
from ds4tui.cache.pools import Pools, divide
from tests.scale import scaled

GB = 10**9
some_bytes = st.integers(0, 400 * GB)


def shares(pools: Pools) -> list[int]:
    return [
        pools.live_bytes,
        pools.buffer_cache_bytes,
        pools.embeddings_bytes,
        pools.put_away_bytes,
        pools.snapshot_bytes,
    ]


@given(some_bytes, some_bytes, some_bytes, st.booleans(), st.booleans())
@settings(max_examples=scaled(200))
def test_the_laws(
    budget: int, weights: int, live: int, has_snapshots: bool, has_images: bool
) -> None:
    pools = divide(budget, weights, live, has_snapshots=has_snapshots, has_images=has_images)
    assert min(shares(pools)) >= 0  # (1)
    assert sum(shares(pools)) == max(0, budget - weights)
    more = divide(budget + GB, weights, live, has_snapshots=has_snapshots, has_images=has_images)
    assert all(a <= b for a, b in zip(shares(pools), shares(more), strict=True))  # (2)
    assert bool(pools.snapshot_bytes) <= has_snapshots
    assert bool(pools.embeddings_bytes) <= has_images


@given(some_bytes, some_bytes, some_bytes)
@settings(max_examples=scaled(100))
def test_what_live_states_do_not_use_is_lent(budget: int, weights: int, live: int) -> None:
    """Invariant 3."""
    pools = divide(budget, weights, live)
    for now in (0, live // 2, live):
        tier = pools.tier_bytes(now)
        assert tier == 0 or weights + now + tier <= budget
    assert pools.tier_bytes(pools.live_bytes) == pools.put_away_bytes


def test_a_27b_model_on_a_64_gb_machine() -> None:
    bounded = 146_800_000
    plan = plan_memory(60 * GB, 16 * GB, 65_536, 262_144, bounded, snapshot_bytes=bounded)
    assert plan.fits_whole
    assert plan.needed_bytes == 16 * GB + bounded + 262_144 * 65_536
    assert plan.pools.snapshot_bytes // bounded == 87
    assert plan.pools.buffer_cache_bytes == 2**30


def test_two_sessions_take_twice_the_rows() -> None:
    one = plan_memory(10 * GB, 2 * GB, 100_000, 60_000)
    two = plan_memory(10 * GB, 2 * GB, 100_000, 60_000, sessions=2)
    assert (one.context_tokens, two.context_tokens) == (60_000, 40_000)
    assert two.needed_bytes - one.needed_bytes == 60_000 * 100_000
    assert two.pools.live_bytes == 8 * GB


def test_what_is_wrong_is_refused() -> None:
    with pytest.raises(ValueError, match="0 or more"):
        divide(-1, 0, 0)
    with pytest.raises(ValueError, match="1 or more"):
        plan_memory(1, 1, 1, 1, sessions=0)
