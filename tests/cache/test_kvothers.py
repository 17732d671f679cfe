"""What lies in the folder and is not ours is neither changed nor removed, nor stops anything."""

import os
import sqlite3
import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from ds4tui.cache import kvkeeper
from ds4tui.cache.kvfile import RecordFile
from ds4tui.cache.kvformat import encoded
from ds4tui.cache.kvindex import INDEX_NAME, read_index
from ds4tui.cache.kvstore import DiskTier
from ds4tui.cache.timeline import Timeline
from tests.cache.kv_samples import IDENTITY, true_page

MB = 1 << 20
STORY = Timeline.of(range(1, 101))


def opened(folder: Path, budget: int = 64 * MB, *, may_write: bool = True) -> DiskTier:
    return DiskTier(folder, budget, IDENTITY, floor_bytes=0, may_write=may_write)


def put(tier: DiskTier, timeline: Timeline, start: int = 0) -> bool:
    page = true_page(timeline, start, len(timeline))
    taken = tier.put_page(timeline, start, page.layers)
    assert tier.flush(60.0)
    return taken


def said(tier: DiskTier) -> str:
    return "\n".join(f"{note.kind}: {note.reason}" for note in tier.drain_notes())


@pytest.mark.parametrize("has_log", [False, True])
def test_a_database_of_another_program_stays(tmp_path: Path, has_log: bool) -> None:
    photos = sqlite3.connect(tmp_path / INDEX_NAME)
    if has_log:  # its header is that of an empty file, all of it is in the log
        photos.execute("PRAGMA journal_mode = WAL")
        photos.execute("PRAGMA wal_autocheckpoint = 0")
    photos.execute("CREATE TABLE photos (x)")
    photos.execute("INSERT INTO photos VALUES ('grandma')")
    photos.commit()
    before = (tmp_path / INDEX_NAME).read_bytes()
    tier = opened(tmp_path)
    assert "index.sqlite is not ours" in said(tier)
    put(tier, STORY)
    tier.close(5.0)
    assert (tmp_path / INDEX_NAME).read_bytes() == before
    assert photos.execute("SELECT * FROM photos").fetchall() == [("grandma",)]
    assert len(read_index(tmp_path)) == 1  # ours has another name
    tier = opened(tmp_path)
    assert not dict(tier.stats.faults) and tier.stats.pages == 1
    tier.close(5.0)
    photos.close()


def test_what_only_begins_like_a_half_written_file_stays(tmp_path: Path) -> None:
    for name in (".writing-my-novel.md", ".writing-1-2", ".writing-1-2-3"):
        (tmp_path / name).write_text("chapter one")
    opened(tmp_path).close(5.0)
    left = {path.name for path in tmp_path.glob(".writing*")}
    assert left == {".writing-my-novel.md", ".writing-1-2"}


def test_a_list_that_is_not_ours_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "pins").write_text("my own list of pins\n")
    tier = opened(tmp_path)
    put(tier, STORY)
    with pytest.raises(OSError, match="pins in it is not ours"):
        tier.pin(tier.entries()[0].holder_id)
    assert (tmp_path / "pins").read_text() == "my own list of pins\n" and not tier.stats.pinned
    tier.close(5.0)


def test_a_folder_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    shared, private = tmp_path / "shared", tmp_path / "private"
    shared.mkdir()
    shared.chmod(0o777)
    private.mkdir()
    private.chmod(0o755)
    for folder, is_told in ((shared, True), (private, False)):
        mode = stat.S_IMODE(folder.stat().st_mode)
        tier = opened(folder)
        assert ("others may write in the folder" in said(tier)) is is_told
        tier.close(5.0)
        assert stat.S_IMODE(folder.stat().st_mode) == mode


def test_who_only_looks_makes_nothing_and_never_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kvkeeper, "_TRY_AGAIN_S", -1.0)
    tier = opened(tmp_path / "kv")
    put(tier, STORY)
    tier.close(5.0)
    (tmp_path / "kv" / ".writing-1-2-3").write_text("half")
    before = {path.name for path in (tmp_path / "kv").iterdir()}
    reader = opened(tmp_path / "kv", may_write=False)
    assert len(reader.entries()) == 1 and reader.entries()
    assert reader.stats.why_not == "it is only looked at"
    assert {path.name for path in (tmp_path / "kv").iterdir()} == before
    writer = opened(tmp_path / "kv")
    assert writer.stats.is_writer
    writer.close(5.0)
    reader.close(5.0)


def test_a_reader_makes_a_folder_anew_that_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kvkeeper, "_TRY_AGAIN_S", -1.0)
    folder = tmp_path / "kv"
    writer = opened(folder)
    put(writer, STORY)
    reader = opened(folder)
    assert reader.stats.why_not
    writer.close(5.0)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    reader.offers(STORY)
    assert reader.stats.is_writer and not reader.stats.pages
    assert put(reader, STORY) and reader.missing_from(STORY) == 100
    reader.close(5.0)


@pytest.mark.parametrize("kind", ["pipe", "folder", "link"])
def test_pins_that_are_no_file_are_told(tmp_path: Path, kind: str) -> None:
    pins = tmp_path / "pins"
    if kind == "pipe":
        os.mkfifo(pins)
    elif kind == "folder":
        pins.mkdir()
    else:
        pins.symlink_to(tmp_path / "elsewhere")
    tiers: list[DiskTier] = []
    thread = threading.Thread(target=lambda: tiers.append(opened(tmp_path)), daemon=True)
    thread.start()
    thread.join(60.0)
    assert tiers and "the pins could not be read" in said(tiers[0])
    put(tiers[0], STORY)
    with pytest.raises(OSError):
        tiers[0].pin(tiers[0].entries()[0].holder_id)
    tiers[0].close(5.0)
    assert not list(tmp_path.glob(".writing*"))


def test_folders_in_folders_harm_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "large").write_bytes(bytes(1000))
    monkeypatch.chdir(tmp_path)
    made = 0
    try:
        while made < 1100:  # deeper than a path may be long, and than calls may nest
            os.mkdir("depth")
            os.chdir("depth")
            made += 1
        tier = opened(tmp_path)
        assert put(tier, STORY) and tier.stats.used_bytes > 1000
        tier.close(5.0)
    finally:
        for _ in range(made):  # no other cleaning up reaches it
            os.chdir("..")
            os.rmdir("depth")


def test_a_head_cannot_ask_for_endless_layers(tmp_path: Path) -> None:
    tier = opened(tmp_path)
    put(tier, STORY)
    tier.close(5.0)
    (path,) = tmp_path.glob("*.page")
    with RecordFile(path) as file:
        head = replace(file.head, layer_count=1 << 32)
    with pytest.raises(ValueError, match="4,294,967,296 layers"):
        encoded(head)
