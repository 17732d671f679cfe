"""Rows that stand for several positions each: a pool belongs to the last of its positions, so
pages that are cut anywhere hold each pool once, and none that is not whole."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.cache.kvarrays import HostPage, HostRows, Pooled
from ds4tui.cache.kvfile import RecordFile, record_parts, write_record
from ds4tui.cache.kvformat import FIXED, CorruptRecord, RecordHead, decoded, encoded, prefix_key
from ds4tui.cache.kvmerge import _joined
from ds4tui.cache.timeline import Timeline
from ds4tui.engine.state import LayerRows
from tests.cache.kv_samples import IDENTITY
from tests.scale import scaled

POOL, VALUES = 5, 3
TIMELINE = Timeline.of(range(100, 160))


def pools(start: int, end: int) -> HostRows:
    """Of each pool whose last position is in [start, end) its number."""
    numbers = np.arange(start // POOL, end // POOL, dtype=np.float32)
    rows = np.ascontiguousarray(np.broadcast_to(numbers[None, :, None], (1, len(numbers), VALUES)))
    return HostRows((rows,), (1,), ("float32",), Pooled(POOL, start, end))


def page(start: int, end: int) -> HostPage:
    """A layer with a row a position, and one with pools."""
    rows = np.arange(start, end, dtype=np.float32)[None, :, None]
    return HostPage(start, end, (HostRows.of(rows, axes=(1,)), pools(start, end)))


def assert_same(found: HostRows | LayerRows | None, wanted: HostRows) -> None:
    assert found is not None and found.pooled == wanted.pooled and found.count == wanted.count
    assert np.array_equal(found.arrays[0], wanted.arrays[0])


cuts = st.lists(st.integers(0, 40), min_size=2, max_size=6).map(sorted)


@settings(max_examples=scaled(60), deadline=None)
@given(cuts)
def test_parts_of_rows_hold_each_pool_once(borders: list[int]) -> None:
    start, end = borders[0], borders[-1]
    whole = pools(start, end)
    assert whole.count == end - start
    layer = LayerRows(whole.arrays, whole.axes, whole.pooled)
    parts = []
    for low, high in pairwise(borders):
        parts.append(whole.part(low - start, high - start))
        assert_same(parts[-1], pools(low, high))
        assert_same(layer.part(low - start, high - start), pools(low, high))
    joined = _joined(parts)
    assert joined is not None
    assert_same(joined, whole)


def test_no_part_reaches_beyond_the_positions() -> None:
    with pytest.raises(ValueError, match="no rows 2 to 8"):
        pools(3, 10).part(2, 8)


def test_pages_of_different_pools_do_not_become_one() -> None:
    other = replace(pools(10, 20), pooled=Pooled(2, 10, 20))
    with pytest.raises(ValueError, match="cannot become one"):
        _joined([pools(0, 10), other])


@pytest.mark.parametrize(("start", "end"), [(0, 20), (3, 19), (6, 9), (4, 5)])
def test_a_page_comes_back_from_disk(tmp_path: Path, start: int, end: int) -> None:
    """Also one in which no pool ends."""
    arrays = record_parts(page(start, end))[1]
    name = write_record(tmp_path, head(start, end), arrays).name
    with RecordFile(tmp_path / name) as file:
        assert_same(file.page().layers[1], pools(start, end))
        assert_same(file.layer_rows(1), pools(start, end))
        assert_same(file.page().from_row(end).layers[1], pools(end, end))


def _written(head: RecordHead) -> RecordHead:
    start = encoded(head)
    return decoded(start[: FIXED.size], start[FIXED.size :], len(start) + head.payload_bytes)


def head(start: int, end: int) -> RecordHead:
    places = tuple(record_parts(page(start, end))[0])
    key = prefix_key(IDENTITY, TIMELINE, start)
    return RecordHead("page", IDENTITY, key, start, end, TIMELINE.ids[start:end], (), 2, places)


def test_what_a_row_stands_for_is_stored() -> None:
    assert [array.pool for array in _written(head(3, 19)).arrays] == [1, POOL]


@pytest.mark.parametrize("pool", [0, 4, 8, 1])
def test_a_head_with_other_numbers_of_rows_is_refused(pool: int) -> None:
    rows, pooled = head(3, 19).arrays
    with pytest.raises(ValueError, match="cannot be stored"):
        encoded(replace(head(3, 19), arrays=(rows, replace(pooled, pool=pool))))


def test_rows_of_one_layer_stand_for_as_many_positions(tmp_path: Path) -> None:
    twice = page(0, 20)
    rows, pooled = record_parts(twice)[1]
    places = tuple(replace(place, layer=0) for place in head(0, 20).arrays)
    written = write_record(tmp_path, replace(head(0, 20), arrays=places), [rows, pooled])
    with RecordFile(tmp_path / written.name) as file, pytest.raises(CorruptRecord):
        file.page()
