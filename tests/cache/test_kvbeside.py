"""What others do beside a tier, or the system to it, at the worst moment."""

import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ds4tui.cache import kvfile, kvkeeper, kvtidy
from ds4tui.cache.kvbooks import Books
from ds4tui.cache.kvfolder import Folder
from ds4tui.cache.kvpolicy import evictions
from ds4tui.cache.kvstore import DiskTier
from ds4tui.cache.timeline import Timeline
from tests.cache.kv_samples import IDENTITY, merge_short_pages, true_page

MB = 1 << 20
STORY = Timeline.of(range(1, 1001))


def opened(folder: Path, budget: int = 64 * MB) -> DiskTier:
    return DiskTier(folder, budget, IDENTITY, floor_bytes=0)


def put(tier: DiskTier, timeline: Timeline) -> bool:
    start = tier.missing_from(timeline)
    taken = tier.put_page(timeline, start, true_page(timeline, start, len(timeline)).layers)
    assert tier.flush(60.0)
    return taken


def text(number: int) -> Timeline:
    return Timeline.of(range(2000 * number, 2000 * number + 1000))


def nbytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def until(holds: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + 60.0
    while not holds():
        assert time.monotonic() < ends_at
        time.sleep(0.005)


def test_closing_does_not_wait_for_a_call_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def hanging(file: int) -> None:
        begun.set()
        may_end.wait(60.0)
        ended.set()

    tier = opened(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", hanging)
        page = true_page(STORY, 0, 1000)
        assert tier.put_page(STORY, 0, page.layers) and begun.wait(60.0)
        assert not tier.close(0.1)
        assert not ended.is_set()
        assert tier.offers(STORY) is not None and tier.entries() is not None
        may_end.set()
        assert ended.wait(60.0)
    others: list[DiskTier] = []

    def is_free() -> bool:
        others.append(opened(tmp_path))
        if others[-1].stats.is_writer:
            return True
        others[-1].close(1.0)
        return False

    until(is_free)  # the folder is let go all the same
    others[-1].close(5.0)


def test_merging_looks_before_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    merge_short_pages(monkeypatch)
    tier = opened(tmp_path, 4 * MB)
    for end in range(20, 121, 20):
        assert put(tier, STORY.prefix(end))
    (tmp_path / "other").write_bytes(bytes(4 * MB - nbytes(tmp_path) - 100))
    tier.tidy()
    assert tier.tidied(60.0) and not tier.stats.merges
    (tmp_path / "other").unlink()
    tier.tidy()
    assert tier.tidied(60.0) and tier.stats.merges
    tier.close(5.0)


def test_what_others_put_there_during_a_write_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = 4 * MB
    tier = opened(tmp_path, budget)
    write_record = kvfile.write_record

    def disturbed(*args: Any) -> Any:
        head = write_record(*args)
        (tmp_path / "other").write_bytes(bytes(MB))
        return head

    with monkeypatch.context() as patch:
        patch.setattr(kvkeeper, "write_record", disturbed)
        assert put(tier, text(1))
    number = 1
    while not tier.stats.evictions:
        number += 1
        put(tier, text(number))
        assert nbytes(tmp_path) <= budget and number < 100
    tier.close(5.0)


@pytest.mark.parametrize("stays", [False, True])
def test_a_folder_that_cannot_be_synced_leaves_nothing_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stays: bool
) -> None:
    def failing(*args: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    tier = opened(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(kvfile, "sync_folder", failing)
        if stays:
            patch.setattr(
                Path, "unlink", lambda path, missing_ok=False: None if missing_ok else failing()
            )
        put(tier, text(1))
    assert not tier.stats.pages and len(list(tmp_path.glob("*.page"))) == int(stays)
    assert put(tier, text(2))
    assert tier.stats.pages == len(list(tmp_path.glob("*.page"))) == 1 + int(stays)
    tier.close(5.0)


def test_a_reader_finds_again_what_was_damaged_and_is_written_anew(tmp_path: Path) -> None:
    writer = opened(tmp_path)
    assert put(writer, STORY)
    (path,) = tmp_path.glob("*.page")
    good = path.read_bytes()
    path.write_bytes(good[:60] + bytes([good[60] ^ 1]) + good[61:])
    reader = opened(tmp_path)
    assert reader.missing_from(STORY) == 0 and reader.stats.stray_bytes
    assert writer.verify() and put(writer, STORY)
    reader.offers(STORY)
    assert reader.missing_from(STORY) == 1000 and not reader.stats.stray_bytes
    reader.close(5.0)
    writer.close(5.0)


def test_verifying_beside_a_writer_calls_nothing_damaged_that_has_gone(tmp_path: Path) -> None:
    writer = opened(tmp_path)
    for number in range(5):
        assert put(writer, text(number))
    reader = opened(tmp_path)
    assert len(reader.entries()) == 5
    done: list[int] = []

    def told(now: int, total: int) -> None:
        if not done:
            writer.prune(0)
        done.append(now)

    assert reader.verify(told) == () and len(done) == 5 and not list(tmp_path.glob("*.page"))
    reader.close(5.0)
    writer.close(5.0)


def test_what_a_merge_left_when_it_was_cut_short_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge_short_pages(monkeypatch)
    tier = opened(tmp_path)
    for end in range(10, 101, 10):
        assert put(tier, STORY.prefix(end))
    remove = Folder.remove

    def cut_short(folder: Folder, names: Any) -> None:
        remove(folder, list(names)[:3])

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "remove", cut_short)
        patch.setattr(kvtidy.Tidier, "_one", _once(kvtidy.Tidier._one))
        tier.tidy()
        assert tier.tidied(60.0)
        tier.close(5.0)
    assert len(list(tmp_path.glob("*.page"))) == 8  # three of ten went, one came
    tier = opened(tmp_path)
    tier.tidy()
    assert tier.tidied(60.0)
    assert [(e.start, e.end) for e in tier.entries()] == [(0, 100)]
    tier.close(5.0)


def _once(one: Callable[[kvtidy.Tidier], bool]) -> Callable[[kvtidy.Tidier], bool]:
    def called(tidier: kvtidy.Tidier) -> bool:
        one(tidier)
        return False

    return called


def test_what_a_plan_has_just_found_does_not_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between choosing what goes and removing it."""
    tier = opened(tmp_path)
    for number in range(3):
        assert put(tier, text(number))
    found = [row.holder_id for row in tier.offers(text(1))[0]]
    holding = tier.holding(found)

    def chosen(*args: Any) -> Any:
        gone = evictions(*args)
        holding.__enter__()
        return gone

    monkeypatch.setattr(kvkeeper, "evictions", chosen)
    tier.prune(0)
    assert [tier.missing_from(text(number)) for number in range(3)] == [0, 1000, 0]
    holding.__exit__(None, None, None)
    tier.close(5.0)


def test_what_leans_on_nothing_is_looked_for_only_when_something_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = opened(tmp_path)
    called: list[int] = []
    monkeypatch.setattr(Books, "relink_orphans", lambda books: called.append(1))
    assert put(tier, text(1))
    (page,) = tmp_path.glob("*.page")
    (tmp_path / "other").write_bytes(b"x")
    assert put(tier, text(2)) and not called
    copy = page.read_bytes()
    page.unlink()
    assert put(tier, text(3)) and tier.missing_from(text(1)) == 0 and not called
    page.write_bytes(copy)
    assert put(tier, text(4)) and tier.missing_from(text(1)) == 1000 and called
    tier.close(5.0)
