"""What the tier tells of itself: counts, rates, and why it does not store."""

from pathlib import Path

from ds4tui.cache.kvstore import DiskTier
from ds4tui.cache.timeline import Timeline
from tests.cache.kv_samples import IDENTITY, true_page, true_snapshot


def test_loads_and_stores_are_told_with_snapshots_apart(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path / "kv", 64 << 20, IDENTITY, floor_bytes=0)
    timeline = Timeline.of(range(300))
    assert tier.put_page(timeline, 0, true_page(timeline, 0, 300).layers, point="system")
    snapshot = true_snapshot(timeline)
    assert tier.put_snapshot(timeline, snapshot.layers, "turn") and tier.flush(30.0)
    (held,), (found,) = tier.offers(timeline)
    tier.read_rows(held.holder_id, 0, 300)
    tier.read_snapshot(found.snapshot_id)
    told = tier.stats
    sizes = {p.suffix: p.stat().st_size for p in (tmp_path / "kv").iterdir() if p.suffix}
    assert (told.stores, told.hits, told.loaded_tokens, told.anchors) == (2, 2, 300, 1)
    assert told.stored_bytes == sizes[".page"] + sizes[".snapshot"] == told.loaded_bytes
    assert told.stored_snapshot_bytes == sizes[".snapshot"]
    assert told.opened_ms > 0 and told.last_load_bytes_per_s > 0 < told.last_store_bytes_per_s
    assert told.floor_bytes == 0 < told.free_bytes
    assert "1 pages and 1 snapshots of this model" in told.words
    tier.drain_notes()
    tier.clear()
    assert tier.stats.evictions == (("asked", 2),)
    (note,) = tier.drain_notes()
    assert (note.kind, note.tokens, note.reason) == ("cleared", 300, "somebody asked for it")
    assert note.nbytes == told.stored_bytes
    assert tier.close(5.0)


def test_stores_loads_and_misses_are_told_with_their_reasons(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path / "kv", 64 << 20, IDENTITY, floor_bytes=0)
    timeline = Timeline.of(range(300))
    for _ in range(2):  # asked again: once
        assert tier.offers(timeline) == ((), ())
    for end in (200, 300):
        page = true_page(timeline, end - 200 if end == 200 else 200, end)
        assert tier.put_page(timeline.prefix(end), page.start, page.layers, why="a turn has ended")
    assert tier.flush(30.0)
    for held in tier.offers(timeline)[0]:
        tier.read_rows(held.holder_id, held.start, held.end)
    notes = [(note.kind, note.tokens, note.reason) for note in tier.drain_notes()]
    assert notes == [
        ("missed", 300, "nothing of this prompt is stored"),
        ("stored", 300, "a turn has ended"),
        ("loaded", 300, "a prompt goes on from there"),
    ]
    assert tier.close(5.0)


def test_who_gives_up_storing_says_so_in_words(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path / "kv", 64 << 20, IDENTITY, floor_bytes=0)
    tier.give_up("ValueError: no")
    assert tier.stats.failed == "ValueError: no" and ("engine", 1) in tier.stats.faults
    assert [note.reason for note in tier.drain_notes()] == [
        "nothing more is stored: ValueError: no"
    ]
    assert tier.close(5.0)


def test_what_is_pinned_beyond_a_lowered_budget_is_told(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path / "kv", 64 << 20, IDENTITY, floor_bytes=0)
    timeline = Timeline.of(range(1000))
    assert tier.put_page(timeline, 0, true_page(timeline, 0, 1000).layers) and tier.flush(30.0)
    tier.pin(tier.offers(timeline)[0][0].holder_id)
    assert tier.close(5.0)
    lowered = DiskTier(tmp_path / "kv", 100_000, IDENTITY, floor_bytes=0)
    assert dict(lowered.stats.faults) == {"over budget": 1}
    assert "pinned" in lowered.drain_notes()[-1].reason
    assert lowered.missing_from(timeline) == 1000
    assert lowered.close(5.0)
