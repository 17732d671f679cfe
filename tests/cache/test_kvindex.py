"""The index: what is put in is there again, and a row that is damaged is not believed."""

import os
import sqlite3
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ds4tui.cache import kvindex
from ds4tui.cache.kvformat import RecordHead, encoded, prefix_key
from ds4tui.cache.kvindex import INDEX_FILES, INDEX_NAME, Index, IndexRow, SteadyIndex
from ds4tui.cache.kvstore import DiskTier
from ds4tui.cache.kvtally import Tally
from ds4tui.cache.timeline import Timeline
from tests.cache.kv_samples import IDENTITY, true_page
from tests.cache.pictures import span, with_images

TEXT = with_images(1, 2, span(0, 3, 7), 5)


def row(start: int, end: int, timeline: Timeline = TEXT) -> IndexRow:
    key, ids = prefix_key(IDENTITY, timeline, start), timeline.ids[start:end]
    spans = tuple(s for s in timeline.spans if start <= s.start < end)
    head = RecordHead("page", IDENTITY, key, start, end, ids, spans, 3, what="héllo\0")
    return IndexRow(head, len(encoded(head)), 5, 1e9, 2)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    index = Index(tmp_path / INDEX_NAME)
    yield index
    index.close()


def test_rows_come_back(tmp_path: Path, index: Index) -> None:
    rows = [row(0, 2), row(2, 6)]
    index.put(rows)
    index.used([(rows[0].head.name, 2e9, 7), ("nobody", 1.0, 1)])
    index.remove([rows[1].head.name, "nobody"])
    index.put([])
    index.close()
    again = Index(tmp_path / INDEX_NAME)
    loaded = again.load()
    again.close()
    assert loaded.keys() == {rows[0].head.name}
    (found,) = loaded.values()
    assert encoded(found.head) == encoded(rows[0].head)
    assert (found.used_at, found.hits) == (2e9, 7)


def test_a_row_that_is_damaged_is_not_believed(tmp_path: Path, index: Index) -> None:
    index.put([row(0, 2), row(2, 6)])
    index.close()
    with sqlite3.connect(tmp_path / INDEX_NAME) as db:
        db.execute("UPDATE records SET head = zeroblob(200) WHERE name = ?", (row(0, 2).head.name,))
        db.execute("INSERT INTO records SELECT 'x', 1, 1, 'late', 0, 'text' FROM records LIMIT 1")
        copied = "INSERT INTO records SELECT 'y', file_bytes, 1, 1.0, 0, head FROM records"
        db.execute(f"{copied} WHERE name = ?", (row(2, 6).head.name,))
    db.close()
    again = Index(tmp_path / INDEX_NAME)
    assert again.load().keys() == {row(2, 6).head.name}
    again.close()


def test_a_steady_index_harms_nobody_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tally = Tally()
    steady = SteadyIndex(tmp_path, tally)
    assert steady.open() == {}
    steady.put([row(0, 2)])

    def failing(*args: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(Index, "put", failing)
        steady.put([row(2, 6)])
        steady.remove(["nobody"])  # there is none now
    assert dict(tally.stats().faults) == {"index lost": 1}
    assert "disk is full" in tally.drain_notes()[0].reason
    monkeypatch.setattr(kvindex, "_PAUSE_S", -1.0)
    steady.put([row(2, 6)])
    steady.close()
    again = SteadyIndex(tmp_path, tally)
    assert again.open().keys() == {row(0, 2).head.name, row(2, 6).head.name}
    again.close()


def test_an_index_is_kept_if_the_system_is_at_fault(tmp_path: Path, index: Index) -> None:
    index.put([row(0, 2)])
    blocker = sqlite3.connect(tmp_path / INDEX_NAME, isolation_level=None)
    index.close()
    blocker.execute("PRAGMA locking_mode = EXCLUSIVE")
    blocker.execute("BEGIN EXCLUSIVE")
    steady = SteadyIndex(tmp_path, Tally())
    assert steady.open() == {}
    blocker.close()
    assert steady.open().keys() == {row(0, 2).head.name}
    steady.close()


def test_an_index_without_its_table_is_made_anew(tmp_path: Path, index: Index) -> None:
    index.close()
    db = sqlite3.connect(tmp_path / INDEX_NAME)
    db.execute("DROP TABLE records")
    db.close()
    tally = Tally()
    steady = SteadyIndex(tmp_path, tally)
    assert steady.open() == {} and "no such table" in tally.drain_notes()[0].reason
    steady.put([row(0, 2)])
    assert steady.open().keys() == {row(0, 2).head.name}
    steady.close()


def test_an_index_that_cannot_be_made_is_done_without(tmp_path: Path) -> None:
    (tmp_path / INDEX_NAME).mkdir()
    tally = Tally()
    steady = SteadyIndex(tmp_path, tally)
    assert steady.open() == {}
    steady.put([row(0, 2)])
    assert dict(tally.stats().faults) == {"index lost": 1}


def test_the_index_is_small_again_when_records_go(tmp_path: Path, index: Index) -> None:
    texts = [Timeline.of([n] * 900) for n in range(300)]
    for text in texts:
        index.put([row(0, 900, text)])

    def size() -> int:
        return sum((tmp_path / n).stat().st_size for n in INDEX_FILES if (tmp_path / n).exists())

    before = size()
    for text in texts:
        index.remove([row(0, 900, text).head.name])
    assert before > 2_000_000 and size() < kvindex.GROWTH_BYTES


@pytest.mark.parametrize("what", ["lost", "touched"])
def test_taking_over_breaks_no_budget_and_costs_no_record(tmp_path: Path, what: str) -> None:
    budget = 6 << 20
    now = [1e9]
    opening = partial(DiskTier, tmp_path, budget, IDENTITY, floor_bytes=0, clock=lambda: now[0])
    tier = opening()
    number = 0
    while not tier.stats.evictions:
        text = Timeline.of(range(2000 * number, 2000 * number + 1000))
        assert tier.put_page(text, 0, true_page(text, 0, 1000).layers, what="w" * 150)
        assert tier.flush(60.0)
        number, now[0] = number + 1, now[0] + 60
    first = tier.entries()[0]
    tier.read_rows(first.holder_id, 0, 1000)
    used = {entry.created_at: entry.used_at for entry in tier.entries()}
    assert used[first.created_at] == now[0] != first.created_at
    tier.close(10.0)
    before = {path.name for path in tmp_path.glob("*.page")}
    for path in tmp_path.glob("*"):
        if what == "touched":
            os.utime(path)
        elif path.name == INDEX_NAME:
            path.unlink()
    peaks = [0]
    put_in = Index._commit

    def seen(index: Index, *args: Any) -> None:
        put_in(index, *args)
        peaks.append(sum(path.stat().st_size for path in tmp_path.iterdir()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Index, "_commit", seen)
        tier = opening()
    assert len(peaks) > 3 and max(peaks) <= budget
    assert {path.name for path in tmp_path.glob("*.page")} == before
    if what == "touched":  # uses are remembered
        assert {entry.created_at: entry.used_at for entry in tier.entries()} == used
    peaks.clear()
    for entry in tier.entries():  # at the edge of the budget, all are used
        tier.read_rows(entry.holder_id, entry.start, entry.end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Index, "_commit", seen)
        tier.close(10.0)
    assert peaks and max(peaks) <= budget
