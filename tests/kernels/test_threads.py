import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4tui.kernels.cpu.threads import TILE_ROWS, RowWorkers, workers


@given(threads=st.integers(1, 16), count=st.integers(1, 5000))
def test_tiles_cover_the_rows_once_and_are_even(threads: int, count: int) -> None:
    tiles = RowWorkers(threads).tiles(count)
    assert [i for tile in tiles for i in range(tile.start, tile.stop)] == list(range(count))
    sizes = [tile.stop - tile.start for tile in tiles]
    assert max(sizes) <= TILE_ROWS
    assert len(set(sizes[:-1])) <= 1


def test_one_row_is_not_shared() -> None:
    assert RowWorkers(8).tiles(1) == [slice(0, 1)]


def test_tiles_run_at_the_same_time() -> None:
    """Each task waits for the other: one thread alone would never finish."""
    both = threading.Barrier(2, timeout=30)
    RowWorkers(2).each([slice(0, 1), slice(1, 2)], lambda tile: both.wait() and None)


@pytest.mark.parametrize("threads", [1, 3])
def test_each_tile_is_done_once_and_failures_arrive(threads: int) -> None:
    pool, done = RowWorkers(threads), np.zeros(300, int)

    def add(tile: slice) -> None:
        done[tile] += 1

    pool.each(pool.tiles(300), add)
    assert (done == 1).all()

    def fail(tile: slice) -> None:
        raise MemoryError(f"tile at {tile.start}")

    with pytest.raises(MemoryError, match="tile at"):
        pool.each(pool.tiles(300), fail)


def test_there_is_one_pool_for_the_process() -> None:
    assert workers() is workers()
    assert workers().threads >= 1
