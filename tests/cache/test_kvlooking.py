"""A folder that is only looked at: what is there is told truly, and nothing is changed."""

from pathlib import Path

import pytest

from ds4tui.cache.kvindex import INDEX_NAME, read_index
from ds4tui.cache.kvstore import DiskTier
from ds4tui.cache.timeline import Timeline
from ds4tui.errors import StoreError
from tests.cache.kv_samples import IDENTITY, true_page

STORY = Timeline.of(range(300))


class Clock:
    now = 1e9

    def __call__(self) -> float:
        return self.now


def stored(folder: Path, clock: Clock) -> DiskTier:
    """A tier that has stored STORY, and loaded it an hour later."""
    tier = DiskTier(folder, 64 << 20, IDENTITY, floor_bytes=0, clock=clock)
    assert tier.put_page(STORY, 0, true_page(STORY, 0, 300).layers)
    assert tier.flush(60.0)
    clock.now += 3600
    (rows,) = tier.offers(STORY)[0]
    tier.read_rows(rows.holder_id, 0, 300)
    assert tier.put_page(Timeline.of(range(40)), 0, true_page(STORY, 0, 40).layers)
    assert tier.put_page(Timeline.of([7] * 40), 0, true_page(Timeline.of([7] * 40), 0, 40).layers)
    assert tier.flush(60.0)
    return tier


def looked_at(folder: Path) -> DiskTier:
    return DiskTier(folder, 64 << 20, b"nobody", may_write=False)


def seen(folder: Path) -> set[tuple[str, int]]:
    return {(path.name, path.stat().st_mtime_ns) for path in folder.iterdir()}


@pytest.mark.parametrize("is_open", [True, False], ids=["a writer is there", "nobody is"])
def test_uses_are_those_of_the_writer(tmp_path: Path, is_open: bool) -> None:
    clock = Clock()
    tier = stored(tmp_path / "kv", clock)
    if not is_open:
        tier.close(60.0)
    reader = looked_at(tmp_path / "kv")
    used = {(entry.end, entry.used_at - 1e9, entry.hits) for entry in reader.entries()}
    assert (300, 3600.0, 1) in used
    reader.close(1.0)
    tier.close(60.0)


def test_nothing_is_changed_and_who_writes_later_may(tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    stored(folder, Clock()).close(60.0)
    (folder / "tmp-1-half").write_bytes(b"half")
    before = seen(folder)
    reader = DiskTier(folder, 1, b"nobody", may_write=False)  # a budget that nothing fits in
    assert len(reader.entries()) == 2 and reader.stats.why_not == "it is only looked at"
    assert not reader.drain_notes()
    with pytest.raises(StoreError):
        reader.clear()
    writer = DiskTier(folder, 64 << 20, IDENTITY, floor_bytes=0)
    assert writer.stats.is_writer
    writer.close(60.0)
    reader.close(1.0)
    assert {name for name, _ in before} >= {path.name for path in folder.iterdir()}


def test_an_index_that_cannot_be_read_costs_the_uses_only(tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    stored(folder, Clock()).close(60.0)
    assert len(read_index(folder)) == 2
    (folder / INDEX_NAME).write_bytes(b"no database at all")
    reader = looked_at(folder)
    assert {entry.hits for entry in reader.entries()} == {0}
    assert (folder / INDEX_NAME).read_bytes() == b"no database at all"
    reader.close(1.0)
