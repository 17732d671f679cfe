"""The disk tier: what is stored comes back to the bit, whatever happened to it in between."""

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4tui.cache import kvkeeper
from ds4tui.cache.kvarrays import HostPage
from ds4tui.cache.kvformat import CorruptRecord
from ds4tui.cache.kvindex import GROWTH_BYTES, INDEX_NAME
from ds4tui.cache.kvpolicy import HALF_LIFE_S
from ds4tui.cache.kvstore import DiskTier
from ds4tui.cache.offers import Rates
from ds4tui.cache.timeline import Timeline
from ds4tui.errors import StoreError
from tests.cache.kv_samples import (
    IDENTITY,
    LAYERS,
    same_page,
    same_rows,
    same_snapshot,
    true_page,
    true_snapshot,
)
from tests.cache.pictures import span, with_images

MB = 1 << 20
WAIT_S = 60.0


class Clock:
    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def opened(tmp_path: Path, clock: Clock) -> Iterator[Callable[..., DiskTier]]:
    """Opens tiers of one folder, and closes them at the end."""
    tiers: list[DiskTier] = []

    def make(budget: int | None = 64 * MB, identity: bytes = IDENTITY, **more: Any) -> DiskTier:
        tier = DiskTier(
            tmp_path / "kv",
            budget,
            identity,
            clock=clock,
            **{"floor_bytes": 0, "label": "m"} | more,
        )
        tiers.append(tier)
        return tier

    yield make
    for tier in tiers:
        tier.close(WAIT_S)


def put(tier: DiskTier, timeline: Timeline, start: int = 0, **more: Any) -> bool:
    """Store the rows from `start` on as one page, and wait until they are on disk."""
    page = true_page(timeline, start, len(timeline))
    taken = tier.put_page(timeline, start, page.layers, **more)
    assert tier.flush(WAIT_S)
    return taken


def put_snapshot(tier: DiskTier, timeline: Timeline, point: str = "turn") -> bool:
    snapshot = true_snapshot(timeline)
    taken = tier.put_snapshot(timeline, snapshot.layers, point, snapshot.logits)
    assert tier.flush(WAIT_S)
    return taken


def check_offers(tier: DiskTier, wanted: Timeline) -> int:
    """All that is offered is true to the bit; how far the rows reach."""
    rows, snapshots = tier.offers(wanted)
    reach = 0
    for held in rows:
        assert held.start <= reach and held.common <= len(wanted)
        page = tier.read_rows(held.holder_id, held.start, held.reach)
        for layer in range(LAYERS):
            true = true_page(wanted, held.start, held.reach).layers[layer]
            assert same_rows(page.rows(layer, held.start, held.reach), true)
        reach = max(reach, held.reach)
    for found in snapshots:
        assert 0 < found.position <= reach and found.on_disk
        assert found.nbytes > 0  # what a load of it costs
        snapshot = tier.read_snapshot(found.snapshot_id)
        assert same_snapshot(snapshot, true_snapshot(wanted.prefix(found.position)))
    return reach


def faults(tier: DiskTier) -> dict[str, int]:
    return dict(tier.stats.faults)


def said(tier: DiskTier) -> str:
    return "\n".join(f"{note.kind}: {note.reason}" for note in tier.drain_notes())


def folder_bytes(tier: DiskTier) -> int:
    return sum(p.lstat().st_size for p in Path(tier.stats.folder).rglob("*") if p.is_file())


def records(tier: DiskTier, suffix: str = "page") -> list[Path]:
    return sorted(Path(tier.stats.folder).glob(f"*.{suffix}"))


STORY = Timeline.of(range(1, 101))
FORK = STORY.prefix(50).extended(range(500, 560))


# -- stored and found ----------------------------------------------------------------------------


def test_what_was_stored_is_there_after_a_restart(opened: Callable[..., DiskTier]) -> None:
    tier = opened()
    assert put(tier, STORY.prefix(60)) and put_snapshot(tier, STORY.prefix(60))
    assert put(tier, STORY, 60)
    assert check_offers(tier, STORY) == 100
    tier.close(WAIT_S)
    tier = opened()
    assert check_offers(tier, STORY.extended(range(7))) == 100
    assert [s.position for s in tier.offers(STORY)[1]] == [60]
    assert tier.missing_from(STORY.extended([3])) == 100
    assert not faults(tier)


def test_forks_share_pages_in_part(opened: Callable[..., DiskTier]) -> None:
    tier = opened()
    put(tier, STORY)
    assert tier.missing_from(FORK) == 50
    assert put(tier, FORK, 50)
    assert check_offers(tier, FORK) == len(FORK) and check_offers(tier, STORY) == 100
    assert tier.stats.tokens == 100 + 60
    third = STORY.prefix(30).extended(range(900, 990))
    assert check_offers(tier, third) == 30
    assert check_offers(tier, FORK.prefix(80)) == 80


def test_nothing_is_written_twice(opened: Callable[..., DiskTier]) -> None:
    tier = opened()
    put(tier, STORY)
    before = tier.stats.stored_bytes
    assert put(tier, STORY) and put(tier, STORY.prefix(40)) and put(tier, STORY, 20)
    assert put_snapshot(tier, STORY) and put_snapshot(tier, STORY)
    assert tier.stats.stores == 2 and len(records(tier)) == 1
    longer = STORY.extended(range(200, 220))
    assert put(tier, longer)  # from 0, but only its own rows are written
    assert [p.start for p in tier.entries() if p.kind == "page"] == [0, 100]
    assert tier.stats.stored_bytes - before < 2 * before


def test_a_long_run_is_cut_into_pages_and_images_stay_whole(
    opened: Callable[..., DiskTier],
) -> None:
    tier = opened()
    text = with_images(*range(1020), span(0, 9, 3), *range(2000, 2100), span(0, 1500, 4), 7)
    assert put(tier, text)
    pages = [(e.start, e.end) for e in tier.entries()]
    assert pages == [(0, 1020), (1020, 1129), (1129, 2629), (2629, 2630)]
    assert check_offers(tier, text) == len(text)
    other_picture = with_images(*range(1020), span(0, 9, 5), 8)
    assert check_offers(tier, other_picture) == 1020


def test_what_waits_is_served_from_memory(
    opened: Callable[..., DiskTier], monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = opened()
    go_on, write = threading.Event(), kvkeeper.write_record

    def waiting(*args: Any) -> Any:
        assert go_on.wait(WAIT_S)
        return write(*args)

    monkeypatch.setattr(kvkeeper, "write_record", waiting)
    tier.put_page(STORY, 0, true_page(STORY, 0, 100).layers)
    snapshot = true_snapshot(STORY)
    tier.put_snapshot(STORY, snapshot.layers, "turn", snapshot.logits)
    assert check_offers(tier, STORY) == 100 and len(tier.offers(STORY)[1]) == 1
    assert tier.missing_from(STORY) == 100 and not tier.flush(0.0)
    with tier.open_rows(tier.offers(STORY)[0][0].holder_id) as page:
        assert same_rows(page.rows(0, 3, 9), true_page(STORY, 3, 9).layers[0])
    go_on.set()
    assert tier.flush(WAIT_S) and tier.stats.stores == 2 and tier.stats.queued_bytes == 0
    assert check_offers(tier, STORY) == 100


def test_a_page_is_read_a_layer_at_a_time(opened: Callable[..., DiskTier]) -> None:
    tier = opened()
    put(tier, STORY)
    with tier.open_rows(tier.offers(STORY)[0][0].holder_id) as page:
        tier.clear()  # what is open stays
        assert [page.has_rows(layer) for layer in range(LAYERS)] == [True, True, False]
        for layer in range(LAYERS):
            assert same_rows(page.rows(layer, 10, 90), true_page(STORY, 10, 90).layers[layer])
        with pytest.raises(ValueError, match="90 to 101"):
            page.rows(0, 90, 101)
    assert tier.stats.hits == 1 and tier.stats.load_bytes_per_s > 0


def test_snapshots_count_only_with_all_rows_below(opened: Callable[..., DiskTier]) -> None:
    tier = opened()
    assert not put_snapshot(tier, STORY)
    put(tier, STORY.prefix(50))
    assert not put_snapshot(tier, STORY) and put_snapshot(tier, STORY.prefix(50))
    assert not put(tier, STORY, 70)
    assert faults(tier) == {"gap": 3}
    put(tier, FORK, 50)
    assert put_snapshot(tier, FORK)
    records(tier)[[e.start for e in by_name(tier)].index(0)].unlink()
    tier.close(WAIT_S)
    tier = opened()
    assert tier.offers(FORK) == ((), ())
    assert "gone" in faults(tier)


def by_name(tier: DiskTier) -> list[Any]:
    """Entries of pages in the order of `records`."""
    pages = [e for e in tier.entries() if e.kind == "page"]
    sizes = {path.stat().st_size: i for i, path in enumerate(records(tier))}
    return sorted(pages, key=lambda e: sizes[e.nbytes])


def test_other_models_share_the_folder_and_are_never_offered(
    opened: Callable[..., DiskTier],
) -> None:
    tier = opened()
    put(tier, STORY)
    put_snapshot(tier, STORY)
    tier.close(WAIT_S)
    other = opened(identity=b"model-b", label="other")
    assert other.offers(STORY) == ((), ()) and other.missing_from(STORY) == 0
    assert other.stats.misses == 1 and other.stats.other_models_bytes > 0
    put(other, STORY)
    assert {(e.label, e.is_ours) for e in other.entries()} == {("m", False), ("other", True)}
    assert other.clear(IDENTITY) > 0 and check_offers(other, STORY) == 100


# -- the budget ----------------------------------------------------------------------------------


def test_the_budget_holds_for_all_files_whoever_wrote_them(
    opened: Callable[..., DiskTier], tmp_path: Path, clock: Clock
) -> None:
    tier = opened(budget=2 * MB)
    (tmp_path / "kv" / "photo.jpg").write_bytes(bytes(300_000))
    (tmp_path / "kv" / "deep").mkdir()
    (tmp_path / "kv" / "deep" / "note").write_bytes(bytes(100_000))
    for number in range(120):
        clock.now += 60
        put(tier, Timeline.of(range(1000 * number, 1000 * number + 400)))
        assert folder_bytes(tier) <= 2 * MB
        assert tier.stats.used_bytes <= 2 * MB
    assert tier.stats.stray_bytes == 400_000 and (tmp_path / "kv" / "photo.jpg").exists()
    evicted = dict(tier.stats.evictions)["room"]
    assert evicted > 0 and evicted + tier.stats.pages == 120
    assert said(tier).count("room was needed") == evicted
    # The newest are there, the oldest are not.
    assert tier.missing_from(Timeline.of(range(119_000, 119_400))) == 400
    assert tier.missing_from(Timeline.of(range(400))) == 0


def test_what_leads_up_to_it_never_makes_way(opened: Callable[..., DiskTier], clock: Clock) -> None:
    tier = opened(budget=1 * MB)
    long = Timeline.of(range(20_000))
    for end in range(400, 20_000, 400):
        clock.now += 3600
        put(tier, long.prefix(end), end - 400)
        # No gap, ever.
        assert tier.missing_from(long) == sum(e.end - e.start for e in tier.entries())
    assert check_offers(tier, long) > 400
    assert not dict(tier.stats.evictions) and "refused" in faults(tier)


def test_pins_and_anchors_stay(opened: Callable[..., DiskTier], clock: Clock) -> None:
    tier = opened(budget=2 * MB)
    put(tier, STORY.prefix(60), point="system")
    put(tier, FORK)
    tier.pin(next(e for e in tier.entries() if e.end == len(FORK)).holder_id)
    pinned = Timeline.of(range(7000, 7400))
    put(tier, pinned)
    tier.pin(tier.offers(pinned)[0][0].holder_id)
    for number in range(80):
        clock.now += 600
        put(tier, Timeline.of(range(10_000 * number + 10_000, 10_000 * number + 10_400)))
    assert tier.missing_from(STORY) == 60 and tier.missing_from(FORK) == len(FORK)
    tier.close(WAIT_S)
    os.unlink(Path(tier.stats.folder) / INDEX_NAME)  # pins outlive it
    tier = opened(budget=2 * MB)
    clock.now += 100 * HALF_LIFE_S
    for number in range(80):
        put(tier, Timeline.of(range(9_000_000 + 1000 * number, 9_000_400 + 1000 * number)))
    assert tier.missing_from(pinned) == 400 and tier.missing_from(FORK) == len(FORK)
    assert tier.stats.pinned == 2
    tier.unpin(tier.offers(pinned)[0][0].holder_id)
    assert tier.clear() > 0 and tier.missing_from(pinned) == 0
    assert tier.clear(pinned=True) > 0 and tier.entries() == ()


def test_what_is_held_does_not_make_way(opened: Callable[..., DiskTier], clock: Clock) -> None:
    tier = opened(budget=1 * MB)
    put(tier, STORY)
    held = [row.holder_id for row in tier.offers(STORY)[0]]
    clock.now += 50 * HALF_LIFE_S
    with tier.holding([*held, -1, 5]):
        for number in range(40):
            put(tier, Timeline.of(range(1000 * number + 5000, 1000 * number + 5400)))
        assert check_offers(tier, STORY) == 100
    clock.now += 50 * HALF_LIFE_S
    for number in range(40):
        put(tier, Timeline.of(range(1000 * number + 90_000, 1000 * number + 90_400)))
    assert tier.missing_from(STORY) == 0


def test_a_lowered_budget_holds_at_once_and_says_what_went(
    opened: Callable[..., DiskTier], clock: Clock
) -> None:
    tier = opened()
    for number in range(40):
        clock.now += 60
        put(tier, Timeline.of(range(1000 * number, 1000 * number + 400)))
    tier.close(WAIT_S)
    tier = opened(budget=1 * MB)
    assert folder_bytes(tier) <= 1 * MB
    assert said(tier).count("evicted:") == 40 - tier.stats.pages > 0


def test_prune_goes_down_to_what_was_asked(opened: Callable[..., DiskTier]) -> None:
    tier = opened()
    for number in range(20):
        put(tier, Timeline.of(range(1000 * number, 1000 * number + 400)))
    before = folder_bytes(tier)
    gone = tier.prune(before // 2)
    assert gone >= before - before // 2 and folder_bytes(tier) <= before // 2 + 8 * MB // 100
    tier.prune(0)
    assert tier.entries() == ()


def test_a_disk_that_others_filled_makes_it_stop_growing(
    opened: Callable[..., DiskTier], monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    tier = opened(floor_bytes=50 * MB)
    free = 900 * MB
    monkeypatch.setattr(kvkeeper.Folder, "space", lambda self: (free, 1000 * MB))
    for number in range(30):
        put(tier, Timeline.of(range(1000 * number, 1000 * number + 400)))
    pages, free = tier.stats.pages, 10 * MB
    clock.now += 60
    put(tier, STORY)
    assert check_offers(tier, STORY) == 100 and pages - 30 < tier.stats.pages <= pages
    assert tier.stats.used_bytes < 20 * MB and dict(tier.stats.evictions)["room"] >= 1


def test_the_default_budget_is_a_share_of_what_is_free(opened: Callable[..., DiskTier]) -> None:
    tier = opened(budget=None)
    assert 0 < tier.stats.budget_bytes < tier.stats.free_bytes
    assert put(tier, STORY)


# -- what others do to it ------------------------------------------------------------------------


def test_folder_and_files_are_for_their_owner_only(
    opened: Callable[..., DiskTier], tmp_path: Path
) -> None:
    tier = opened()
    assert stat.S_IMODE((tmp_path / "kv").stat().st_mode) == 0o700
    put(tier, STORY)
    tier.pin(tier.offers(STORY)[0][0].holder_id)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "kv").iterdir()}
    assert set(modes.values()) == {0o600} and len(modes) >= 4


def test_one_writes_and_others_read(opened: Callable[..., DiskTier]) -> None:
    writer = opened()
    put(writer, STORY.prefix(60))
    reader = opened()
    assert reader.stats.why_not == "another ds4tui writes in this folder"
    assert "nothing is stored" in said(reader)
    assert check_offers(reader, STORY) == 60
    assert not put(reader, STORY, 60) and faults(reader) == {"read-only": 1}
    put(writer, STORY, 60)
    assert check_offers(reader, STORY) == 100  # what was written since
    writer.clear()
    assert reader.offers(STORY) == ((), ())
    for change in (reader.clear, lambda: reader.prune(0)):
        with pytest.raises(StoreError, match="another ds4tui"):
            change()
    writer.close(WAIT_S)
    assert opened().stats.is_writer


def test_a_reader_writes_once_the_writer_has_gone(
    opened: Callable[..., DiskTier], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kvkeeper, "_TRY_AGAIN_S", 0.0)
    writer = opened()
    put(writer, STORY.prefix(60))
    reader = opened()
    assert check_offers(reader, STORY) == 60 and not reader.stats.is_writer
    put(writer, STORY, 60)
    writer.close(WAIT_S)
    writer.offers(STORY)
    assert not writer.stats.is_writer  # it is closed
    assert check_offers(reader, STORY) == 100
    assert reader.stats.is_writer and "this one does" in said(reader)
    longer = STORY.extended([7] * 9)
    assert put(reader, longer, 100)
    reader.close(WAIT_S)
    assert check_offers(opened(), longer) == 109


def test_a_reader_is_offered_a_damaged_record_once(opened: Callable[..., DiskTier]) -> None:
    writer = opened()
    put(writer, STORY)
    path = records(writer)[0]
    good = path.read_bytes()
    path.write_bytes(good[:-100] + bytes([good[-100] ^ 1]) + good[-99:])
    reader = opened()
    with pytest.raises(CorruptRecord):
        check_offers(reader, STORY)
    put(writer, Timeline.of(range(5000, 5100)))
    assert path.exists() and reader.offers(STORY) == ((), ())
    assert reader.entries()[0].start == 0 and faults(reader) == {"flipped": 1}


def test_a_folder_that_cannot_be_written_is_read(
    opened: Callable[..., DiskTier], monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = opened()
    put(tier, STORY)
    tier.close(WAIT_S)

    def refuse(*args: Any) -> bool:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(kvkeeper.Folder, "take_lock", refuse)
    tier = opened()
    assert "Read-only file system" in tier.stats.why_not and faults(tier) == {"read-only": 1}
    assert check_offers(tier, STORY) == 100 and not put(tier, FORK, 50)


def test_what_cannot_be_removed_at_the_start_is_told(
    opened: Callable[..., DiskTier], monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = opened()
    for number in range(40):
        put(tier, Timeline.of(range(1000 * number, 1000 * number + 400)))
    tier.close(WAIT_S)
    (Path(tier.stats.folder) / ".writing-1-2-3").write_bytes(b"half")
    records(tier)[0].write_bytes(b"damaged")

    def refuse(*args: Any, **more: Any) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", refuse)
        tier = opened(budget=1 * MB)
    assert faults(tier) == {"half written": 1, "cut": 1, "over budget": 1, "read-only": 3}
    assert tier.stats.pages == 39 and tier.stats.used_bytes > 1 * MB
    assert put(tier, STORY) and check_offers(tier, STORY) == 100  # now it can be
    assert folder_bytes(tier) <= 1 * MB


def test_a_record_for_which_no_memory_is_left_is_not_stored(
    opened: Callable[..., DiskTier], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> Any:
        raise MemoryError

    tier = opened()
    with monkeypatch.context() as patched:
        patched.setattr(kvkeeper, "write_record", refuse)
        put(tier, STORY)
    assert tier.entries() == () and "no memory is left" in said(tier)


def test_a_folder_that_cannot_be_is_an_error_with_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StoreError, match="cannot hold KV records") as found:
        DiskTier(tmp_path / "file", None, IDENTITY)
    assert "--no-kv-disk" in found.value.hint
    with pytest.raises(ValueError, match="0 bytes"):
        DiskTier(tmp_path / "kv", None, b"")


@pytest.mark.parametrize("damage", ["cut", "flipped", "foreign"])
@pytest.mark.parametrize("is_running", [True, False])
def test_a_damaged_record_is_a_miss_and_a_word(
    opened: Callable[..., DiskTier], damage: str, is_running: bool
) -> None:
    tier = opened()
    put(tier, STORY.prefix(60))
    put(tier, STORY, 60)
    (_, tail), _ = tier.offers(STORY)
    if not is_running:
        tier.close(WAIT_S)
    path = next(p for p in records(tier) if p.stat().st_size == tail.nbytes)
    good = path.read_bytes()
    at = len(good) - 200
    bad = {
        "cut": good[:-7],
        "flipped": good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :],
        "foreign": os.urandom(len(good)),
    }[damage]
    path.write_bytes(bad)
    if not is_running:
        tier = opened()
    rows, _ = tier.offers(STORY)
    if len(rows) == 2:
        with pytest.raises(CorruptRecord):
            tier.read_rows(rows[1].holder_id, 60, 100)
    assert check_offers(tier, STORY) == 60
    assert faults(tier)[damage] == 1 and not path.exists()
    assert damage in said(tier)
    assert put(tier, STORY, 60) and check_offers(tier, STORY) == 100


def test_a_record_of_another_version_counts_stays_and_goes_first(
    opened: Callable[..., DiskTier],
) -> None:
    tier = opened(budget=2 * MB)
    put(tier, STORY)
    tier.close(WAIT_S)
    path = records(tier)[0]
    good = path.read_bytes()
    path.write_bytes(good[:8] + b"\x09\0\0\0" + good[12:] + bytes(500_000))
    tier = opened(budget=2 * MB)
    assert tier.offers(STORY) == ((), ()) and path.exists()
    assert faults(tier) == {"version": 1} and tier.stats.stray_bytes > 500_000
    for number in range(60):
        put(tier, Timeline.of(range(1000 * number + 5000, 1000 * number + 5400)))
    assert not path.exists() and dict(tier.stats.evictions)["orphan"] == 1


def test_half_written_files_are_removed_at_the_start(opened: Callable[..., DiskTier]) -> None:
    tier = opened()
    tier.close(WAIT_S)
    left = Path(tier.stats.folder) / ".writing-123-4-5"
    left.write_bytes(bytes(1000))
    tier = opened()
    assert not left.exists() and faults(tier) == {"half written": 1}
    assert "1 half-written file was removed" in said(tier)


@pytest.mark.parametrize("damage", ["deleted", "garbage", "foreign", "log", "flipped"])
def test_a_lost_index_is_made_anew_from_the_files(
    opened: Callable[..., DiskTier], damage: str
) -> None:
    tier = opened()
    put(tier, STORY.prefix(60))
    put(tier, FORK, 50)
    put_snapshot(tier, FORK)
    tier.close(WAIT_S)
    index = Path(tier.stats.folder) / INDEX_NAME
    if damage == "deleted":
        index.unlink()
    elif damage == "garbage":
        index.write_bytes(os.urandom(9000))
    elif damage == "foreign":
        index.write_bytes(b"SQLite format 3\0" + bytes(4080))
    elif damage == "log":
        index.with_name(f"{INDEX_NAME}-wal").write_bytes(os.urandom(5000))
    else:
        good = bytearray(index.read_bytes())
        for place in range(100, len(good), 97):
            good[place] ^= 0x10
        index.write_bytes(good)
    tier = opened()
    assert check_offers(tier, FORK) == len(FORK) and len(tier.offers(FORK)[1]) == 1
    put(tier, STORY, 60)
    tier.close(WAIT_S)
    tier = opened()
    assert check_offers(tier, STORY) == 100 and not faults(tier)


def test_uses_outlive_the_process(opened: Callable[..., DiskTier], clock: Clock) -> None:
    tier = opened()
    put(tier, STORY)
    clock.now += 1000
    check_offers(tier, STORY)
    check_offers(tier, STORY)
    tier.close(WAIT_S)
    (entry,) = opened().entries()
    assert (entry.hits, entry.used_at, entry.created_at) == (2, clock.now, clock.now - 1000)


def test_a_clock_that_is_set_back_is_told_once(
    opened: Callable[..., DiskTier], clock: Clock
) -> None:
    tier = opened()
    put(tier, STORY)
    clock.now -= 1e8
    put(tier, Timeline.of(range(300)))
    put(tier, Timeline.of(range(1000, 1300)))
    assert faults(tier) == {"clock set back": 1} and tier.entries()[0].used_at == clock.now
    clock.now = -5.0
    assert put(tier, Timeline.of(range(5000, 5300)))


def test_a_deleted_folder_is_made_anew(opened: Callable[..., DiskTier], tmp_path: Path) -> None:
    tier = opened()
    put(tier, STORY)
    os.rename(tmp_path / "kv", tmp_path / "gone")
    with pytest.raises(CorruptRecord):
        tier.read_rows(tier.offers(STORY)[0][0].holder_id, 0, 100)
    assert put(tier, FORK)
    assert check_offers(tier, FORK) == len(FORK) and tier.missing_from(STORY) == 50
    assert faults(tier)["folder gone"] == 1 and tier.stats.is_writer


def test_a_deleted_lock_does_not_make_two_writers(
    opened: Callable[..., DiskTier], tmp_path: Path
) -> None:
    first = opened()
    put(first, STORY)
    (tmp_path / "kv" / "lock").unlink()
    second = opened()
    assert second.stats.is_writer and check_offers(second, STORY) == 100
    put(first, FORK, 50)
    assert not first.stats.is_writer and check_offers(first, FORK) == 50
    assert check_offers(second, FORK) == 50 and put(second, FORK, 50)
    assert check_offers(first, FORK) == len(FORK)


def test_records_that_others_removed_are_noticed(opened: Callable[..., DiskTier]) -> None:
    tier = opened()
    put(tier, STORY)
    records(tier)[0].unlink()
    put(tier, Timeline.of(range(3000, 3100)))
    assert faults(tier) == {"gone": 1} and tier.missing_from(STORY) == 0
    assert put(tier, STORY) and check_offers(tier, STORY) == 100


def test_files_that_were_only_touched_stay(opened: Callable[..., DiskTier]) -> None:
    tier = opened()
    put(tier, STORY)
    tier.close(WAIT_S)
    os.utime(records(tier)[0], (5.0, 5.0))
    (Path(tier.stats.folder) / ".DS_Store").write_bytes(b"mine")
    tier = opened()
    assert check_offers(tier, STORY) == 100 and not faults(tier)


@pytest.mark.parametrize(
    ("code", "word"),
    [
        (errno.ENOSPC, "disk full"),
        (errno.EDQUOT, "disk full"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "read-only"),
        (errno.EIO, "write failed"),
    ],
)
@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_system_that_refuses_harms_nothing(
    opened: Callable[..., DiskTier],
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    code: int,
    word: str,
) -> None:
    def refuse(*args: Any, **more: Any) -> Any:
        raise OSError(code, os.strerror(code))

    tier = opened()
    put(tier, STORY.prefix(60))
    with monkeypatch.context() as patched:
        patched.setattr(os, call, refuse)
        put(tier, STORY, 60)
    assert faults(tier) == {word: 1} and os.strerror(code) in said(tier)
    assert check_offers(tier, STORY) == 60
    assert not [p for p in Path(tier.stats.folder).iterdir() if p.name.startswith(".writing")]
    assert put(tier, STORY, 60) and check_offers(tier, STORY) == 100


def test_what_leads_up_to_it_failed_so_it_is_not_stored(
    opened: Callable[..., DiskTier], monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = opened()
    write, calls = kvkeeper.write_record, 0
    go_on = threading.Event()

    def failing_first(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        assert go_on.wait(WAIT_S)
        if calls == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(*args)

    monkeypatch.setattr(kvkeeper, "write_record", failing_first)
    tier.put_page(STORY.prefix(60), 0, true_page(STORY, 0, 60).layers)
    tier.put_page(STORY, 60, true_page(STORY, 60, 100).layers)
    go_on.set()
    assert tier.flush(WAIT_S)
    assert tier.entries() == () and faults(tier) == {"disk full": 1, "refused": 1}


# -- queue and closing ---------------------------------------------------------------------------


def test_a_full_queue_refuses_and_says_where_to_go_on(
    opened: Callable[..., DiskTier], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = true_page(STORY, 0, 100)
    tier = opened(queue_bytes=page.nbytes // 2)
    go_on, write = threading.Event(), kvkeeper.write_record

    def waiting(*args: Any) -> Any:
        assert go_on.wait(WAIT_S)
        return write(*args)

    monkeypatch.setattr(kvkeeper, "write_record", waiting)
    assert tier.put_page(STORY, 0, page.layers)  # one may be larger, alone
    longer = STORY.extended(range(500, 520))
    more = true_page(longer, 100, 120).layers
    assert not tier.put_page(longer, 100, more)
    assert faults(tier) == {"queue full": 1} and tier.missing_from(longer) == 100
    go_on.set()
    assert tier.put_page(longer, 100, more, wait_s=WAIT_S)
    assert tier.flush(WAIT_S) and check_offers(tier, longer) == 120


def test_what_waits_does_not_make_way(
    opened: Callable[..., DiskTier], monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    tier = opened(budget=1 * MB)
    go_on, write = threading.Event(), kvkeeper.write_record

    def waiting(*args: Any) -> Any:
        assert go_on.wait(WAIT_S)
        return write(*args)

    monkeypatch.setattr(kvkeeper, "write_record", waiting)
    texts = [Timeline.of(range(1000 * n, 1000 * n + 400)) for n in range(60)]
    for text in texts:
        clock.now -= 3600  # those that wait longest seem to be worth most
        assert tier.put_page(text, 0, true_page(text, 0, 400).layers)
    clock.now = 1e9
    go_on.set()
    assert tier.flush(WAIT_S)
    assert tier.missing_from(texts[-1]) == 400 and folder_bytes(tier) <= 1 * MB
    assert len(records(tier)) == tier.stats.pages == len(tier.entries()) < 60
    assert tier.stats.stores == 60


def test_closing_stops_at_its_deadline_and_can_be_gone_on_with(
    opened: Callable[..., DiskTier], monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = opened()
    write = kvkeeper.write_record
    began = threading.Event()

    def slow(folder: Path, head: Any, arrays: Any, is_stopped: Callable[[], bool]) -> Any:
        if head.start == 0:
            return write(folder, head, arrays, is_stopped)
        began.set()
        stopped = threading.Event()
        while not is_stopped():
            stopped.wait(0.001)
        return write(folder, head, arrays, is_stopped)

    monkeypatch.setattr(kvkeeper, "write_record", slow)
    tier.put_page(STORY.prefix(50), 0, true_page(STORY, 0, 50).layers)
    tier.put_page(STORY.prefix(80), 50, true_page(STORY, 50, 80).layers)
    tier.put_page(STORY, 80, true_page(STORY, 80, 100).layers)
    assert began.wait(WAIT_S)
    assert not tier.close(0.0)
    assert faults(tier)["deadline"] == 2 and "2 records were not written" in said(tier)
    monkeypatch.undo()
    tier = opened()
    assert tier.missing_from(STORY) == 50 and check_offers(tier, STORY) == 50
    assert put(tier, STORY, 50) and check_offers(tier, STORY) == 100
    assert not [p for p in Path(tier.stats.folder).iterdir() if p.name.startswith(".writing")]


def test_a_closed_tier_takes_nothing(opened: Callable[..., DiskTier]) -> None:
    tier = opened()
    assert tier.close(WAIT_S) and tier.close(WAIT_S)
    assert not tier.put_page(STORY, 0, true_page(STORY, 0, 100).layers)


# -- for people ----------------------------------------------------------------------------------


def test_entries_say_what_they_are(opened: Callable[..., DiskTier], clock: Clock) -> None:
    tier = opened(label="smollm2")
    tier.rates = Rates(prefill_tokens_per_s=100.0)
    put(tier, STORY.prefix(60), what="How do I", point="system")
    put(tier, STORY, 60)
    put_snapshot(tier, STORY)
    first, second, snapshot = tier.entries()
    assert (first.what, first.label, first.is_anchor) == ("How do I", "smollm2", True)
    assert (second.start, second.end, second.stem_id) == (60, 100, first.holder_id)
    assert (snapshot.kind, snapshot.stem_id, snapshot.point) == (
        "snapshot",
        second.holder_id,
        "turn",
    )
    assert [e.recompute_ms for e in (first, second, snapshot)] == [600.0, 400.0, 1000.0]
    stats = tier.stats
    assert (stats.pages, stats.snapshots, stats.tokens, stats.stores) == (2, 1, 100, 3)
    assert stats.store_bytes_per_s > 0
    assert abs(stats.used_bytes - folder_bytes(tier)) < GROWTH_BYTES


def test_verify_finds_and_removes_what_is_damaged(opened: Callable[..., DiskTier]) -> None:
    tier = opened()
    put(tier, STORY)
    put(tier, FORK, 50)
    assert tier.verify() == ()
    path = records(tier)[0]
    good = path.read_bytes()
    path.write_bytes(good[:-100] + bytes([good[-100] ^ 1]) + good[-99:])
    told: list[tuple[int, int]] = []
    (damage,) = tier.verify(lambda done, of: told.append((done, of)))
    assert damage.fault == "flipped" and not path.exists()
    assert told[-1][0] == told[-1][1] > 0
    assert tier.verify() == ()


def test_rows_that_are_not_those_positions_are_refused(opened: Callable[..., DiskTier]) -> None:
    tier = opened()
    with pytest.raises(ValueError, match="not the rows"):
        tier.put_page(STORY, 0, true_page(STORY, 0, 99).layers)
    with pytest.raises(ValueError, match="not the rows"):
        tier.put_page(STORY, 100, (None,))
    put(tier, STORY)
    held = tier.offers(STORY)[0][0].holder_id
    with pytest.raises(ValueError, match="No rows"):
        tier.read_rows(held, 50, 101)
    with pytest.raises(CorruptRecord):
        tier.read_snapshot(held)


def test_a_model_without_append_only_layers_has_pages_of_ids(
    opened: Callable[..., DiskTier],
) -> None:
    tier = opened()
    assert tier.put_page(STORY, 0, (None, None))
    assert tier.flush(WAIT_S)
    (held,), _ = tier.offers(STORY)
    assert same_page(tier.read_rows(held.holder_id, 0, 100), HostPage(0, 100, (None, None)))
    assert np.array_equal(tier.missing_from(STORY), 100)
