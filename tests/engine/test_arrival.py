"""Pages that are read straight into a state: to the bit, and nothing counts before it is whole."""

import os
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from ds4tui.cache import kvfile
from ds4tui.cache.kvformat import CorruptRecord
from ds4tui.cache.kvstore import DiskTier
from ds4tui.cache.timeline import Timeline
from ds4tui.engine.disk_arrays import host_rows
from ds4tui.engine.disk_rows import DiskRows, begin_reading
from ds4tui.engine.state import HostKVLayer, ModelState
from tests.engine.test_disk_arrays import assert_same, grown

ROWS, BORDERS = 90, (0, 20, 33, 34, 60, 90)
TIMELINE = Timeline.of(list(range(ROWS)))


def whole() -> ModelState:
    return grown([HostKVLayer(), HostKVLayer(), HostKVLayer()], ROWS, mx.float32)


def fresh() -> ModelState:
    return ModelState([HostKVLayer(), HostKVLayer(), HostKVLayer()])


@pytest.fixture
def disk(tmp_path: Path) -> Any:
    """With pages of all rows."""
    state, tier = whole(), DiskTier(tmp_path / "kv", 1 << 30, b"one", floor_bytes=0)
    for start, end in pairwise(BORDERS):
        rows = [state.rows(i, start, end) for i in range(3)]
        layers = [host_rows(held) for held in rows if held is not None]
        assert tier.put_page(TIMELINE.prefix(end), start, layers)
    assert tier.flush(30.0)
    yield tier
    tier.close(5.0)


def wanted(disk: DiskTier, state: ModelState, end: int = ROWS) -> list[tuple[Any, int, int]]:
    pages = [p for p in disk.offers(TIMELINE)[0] if p.start < end]
    sources = [DiskRows(disk, p.holder_id, p.start, min(p.end, end), state.layers) for p in pages]
    begin_reading(sources)
    return [(s, p.start, min(p.end, end)) for s, p in zip(sources, pages, strict=True)]


def file_of(tmp_path: Path, number: int) -> Path:
    """The page that begins at that border."""
    for path in (tmp_path / "kv").glob("*.page"):
        if kvfile.read_head(path)[0].start == BORDERS[number]:
            return path
    raise AssertionError("no such page")


def test_pages_arrive_to_the_bit_without_a_buffer_between(
    disk: DiskTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DiskTier, "read_rows", None)  # whole pages are not read
    state = fresh()
    state.rebuild(0, wanted(disk, state))
    assert_same(state, whole())


@pytest.mark.parametrize("end", [19, 21, 59, 61, 89])
def test_of_the_last_page_only_a_part_may_be_wanted(disk: DiskTier, end: int) -> None:
    state, other = fresh(), whole()
    state.rebuild(0, wanted(disk, state, end))
    other.rewind(end)
    assert_same(state, other)


def test_they_come_behind_rows_that_stay_and_rows_that_are_copied(disk: DiskTier) -> None:
    state, other = whole(), whole()
    state.rewind(20)
    parts = wanted(disk, state)
    middle = (other.copy_rows(33, 34), 33, 34)
    state.rebuild(20, [*parts[1:2], middle, *parts[3:]])
    assert_same(state, other)


def test_long_arrays_take_several_calls(disk: DiskTier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kvfile, "_RUNS_MAX", 3)
    state = fresh()
    state.rebuild(0, wanted(disk, state))
    assert_same(state, whole())


def test_what_the_system_reads_in_small_pieces_is_whole(
    disk: DiskTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    readv = os.readv

    def little(file: int, buffers: Any) -> int:
        first = memoryview(buffers[0])
        return readv(file, [first[:5]])

    monkeypatch.setattr(kvfile.os, "readv", little)
    state = fresh()
    state.rebuild(0, wanted(disk, state))
    assert_same(state, whole())


@pytest.mark.parametrize("number", [0, 2, 4])
@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
def test_what_is_before_a_damaged_page_stays_and_nothing_behind_it(
    disk: DiskTier, tmp_path: Path, number: int, damage: str
) -> None:
    state = fresh()
    parts = wanted(disk, state)
    path = file_of(tmp_path, number)
    content = bytearray(path.read_bytes())
    content[-70] ^= 1  # in the last array of the last layer
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(content if damage == "flipped" else content[:-64])
    with pytest.raises(CorruptRecord) as told:
        state.rebuild(0, parts)
    assert told.value.fault == damage
    assert state.length == BORDERS[number]
    other = whole()
    other.rewind(BORDERS[number])
    assert_same(state, other)
    assert not [p for p in disk.offers(TIMELINE)[0] if p.start >= BORDERS[number]]


def test_nobody_writes_to_a_state_that_was_given_back(disk: DiskTier, tmp_path: Path) -> None:
    state = fresh()
    parts = wanted(disk, state)
    file_of(tmp_path, 0).unlink()
    with pytest.raises(CorruptRecord):
        state.rebuild(0, parts)
    assert not [t for t in threading.enumerate() if t.name.startswith("kv-disk-reader")]


def test_rows_of_another_size_are_refused(disk: DiskTier) -> None:
    state = fresh()
    for layer in state.layers:
        layer.append(*[np.zeros((2, 20, 6), np.float32)] * 2)  # type: ignore[attr-defined]
    parts = wanted(disk, state)
    with pytest.raises(ValueError, match="do not belong"):
        state.rebuild(20, parts[1:])


def test_a_load_is_counted_once_a_page(disk: DiskTier) -> None:
    state = fresh()
    state.rebuild(0, wanted(disk, state))
    stats = disk.stats
    assert stats.hits == len(BORDERS) - 1
    assert stats.loaded_bytes == state.rows_bytes(0, ROWS)
