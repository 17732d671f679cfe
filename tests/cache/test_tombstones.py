"""What is remembered of what is gone: how much of a prompt it would have been, and what stays."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.cache.causes import Cause, Lost
from ds4tui.cache.eviction import HALF_LIFE_S
from ds4tui.cache.timeline import Timeline
from ds4tui.cache.tombstones import Tombstones
from tests.cache.pictures import span, with_images
from tests.scale import scaled

EVICTED = Cause.BRANCH_EVICTED


def alone(name: int, tokens: int) -> Timeline:
    """One that shares nothing with those of other names."""
    return Timeline.of([10_000 + name, *range(tokens - 1)])


@given(st.integers(0, 3000), st.integers(1, 3000), st.data())
@settings(max_examples=scaled(150), deadline=None)
def test_without_turns_what_is_missed_is_told_from_what_is_shared(
    start: int, rows: int, data: st.DataObject
) -> None:
    end = start + rows
    shared = data.draw(st.integers(0, end))
    stones = Tombstones()
    stones.add_rows(EVICTED, Timeline.of(range(end)), start)
    found = stones.lost(Timeline.of([*range(shared), 77_777, 77_778]))
    at = found[0].tokens if found else 0
    assert at <= shared and not 0 < at <= start
    if shared == end:
        assert at == end
    if shared - start >= 16:
        assert at - start >= (shared - start) / 2
        assert end - at <= max(4 * (end - shared), 32)


def test_a_prompt_that_ends_inside_of_what_is_gone_misses_it() -> None:
    stones = Tombstones()
    stones.add_rows(EVICTED, Timeline.of(range(1000)), 0)
    (lost,) = stones.lost(Timeline.of(range(990)))
    assert lost.cause is EVICTED and 950 <= lost.tokens <= 990


def test_borders_are_told_exactly() -> None:
    stones = Tombstones()
    stones.add_rows(EVICTED, Timeline.of(range(1000)), 100, (50, 333, 777, 1000))
    for shared, told in ((340, 333), (780, 777)):
        wanted = Timeline.of([*range(shared), 77_777])
        assert stones.lost(wanted) == (Lost(EVICTED, told),)


def test_no_place_cuts_a_picture() -> None:
    gone = with_images(*range(10), span(0, 40), *range(60))
    stones = Tombstones()
    stones.add_rows(EVICTED, gone, 0)
    ((_, kept),) = stones._by_cause.items()
    (stone,) = kept.values()
    assert all(gone.snapped(position) == position for position, _ in stone.digests)


def test_short_ones_do_not_push_out_what_became_of_a_long_one() -> None:
    stones = Tombstones(lambda: 0.0)
    stones.add_rows(EVICTED, alone(0, 300), 0)
    for name in range(1, 300):
        stones.add_rows(EVICTED, alone(name, 4), 0)
    assert stones.lost(alone(0, 300)) == (Lost(EVICTED, 300),)
    assert stones.lost(alone(299, 4)) == (Lost(EVICTED, 4),)  # the newest is remembered
    assert stones.lost(alone(100, 4)) == ()
    assert len(stones) == 64


def test_what_is_left_alone_for_long_gives_way() -> None:
    now = [0.0]
    stones = Tombstones(lambda: now[0])
    stones.add_rows(EVICTED, alone(0, 300), 0)
    now[0] = 8 * HALF_LIFE_S
    for name in range(1, 66):
        stones.add_rows(EVICTED, alone(name, 4), 0)
    assert stones.lost(alone(0, 300)) == ()


def test_what_is_lost_again_is_remembered_once_and_as_the_newest() -> None:
    stones = Tombstones(lambda: 0.0)
    for name in (1, 2, 1):
        stones.add_rows(EVICTED, alone(name, 40), 0)
        stones.add_snapshot(alone(name, 40), 7)
    assert len(stones) == 4
    for name in range(3, 3 + 63):
        stones.add_rows(EVICTED, alone(name, 40), 0)
    assert stones.lost(alone(2, 40)) == (Lost(Cause.SNAPSHOT_EVICTED, 40),)
    for _ in range(9):  # nothing else is forgotten for it
        stones.add_rows(EVICTED, alone(65, 40), 0)
    assert all(stones.lost(alone(name, 40)) for name in (1, *range(3, 66)))
    assert {lost.cause for lost in stones.lost(alone(1, 40))} == {EVICTED, Cause.SNAPSHOT_EVICTED}


def test_snapshots_have_bounds_of_their_own() -> None:
    stones = Tombstones(lambda: 0.0)
    for name in range(300):
        stones.add_snapshot(alone(name, 40), name + 1)
    assert len(stones) == 128
    assert stones.lost(alone(299, 40)) and not stones.lost(alone(0, 40))
