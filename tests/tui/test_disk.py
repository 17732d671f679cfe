"""What the disk panel says, as values."""

from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.advice import disk_fault
from ds4tui.cache.kvconversations import StoredConversation
from ds4tui.cache.kvformat import Fault
from ds4tui.cache.kvtally import DiskStats
from ds4tui.engine.stats import EngineStats, MemoryNote
from ds4tui.tui.disk import NO_DISK, NO_MODEL, disk_panel, disk_rows
from ds4tui.tui.panels import PanelView, kv_panel
from tests.scale import scaled


def conversation(n: int = 1, **more: Any) -> StoredConversation:
    values: dict[str, Any] = {
        "name": f"ab12cd{n:02}", "label": "smollm2", "model_id": "707a11a8", "tokens": 1543,
        "what": "person: Why is the sky blue?", "pages": 4, "snapshots": 0,
        "nbytes": 118_044_288, "own_bytes": 70_846_912, "used_at": 1_796_093_391.0,
        "created_at": 1_796_093_000.0, "hits": 2, "spares_s": 5.2, "is_pinned": False,
        "is_ours": True, "is_broken": False, "leaf_id": -n,
    }  # fmt: skip
    return StoredConversation(**values | more)


DISK = DiskStats(
    folder="/home/me/kv", is_writer=True, budget_bytes=20 * 10**9, used_bytes=3_234_000_000,
    other_models_bytes=200_000_000, free_bytes=85_100_000_000, floor_bytes=10_700_000_000, pages=81,
    snapshots=14, pinned=1, anchors=3, tokens=120_000, hits=12, misses=1, stores=90,
    loaded_tokens=13_000, loaded_bytes=540_000_000, stored_bytes=2_900_000_000,
    stored_snapshot_bytes=90_000_000, load_bytes_per_s=1.1e9, store_bytes_per_s=4e8,
    last_load_bytes_per_s=1.2e9, last_store_bytes_per_s=3e8,
    evictions=(("orphan", 2), ("room", 10)), faults=(("flipped", 1),),
)  # fmt: skip
NOTES = (
    MemoryNote(1.0, "evicted", "evicted 5 tokens: of memory"),
    MemoryNote(2.0, "stored", "disk: stored 2,048 tokens, 94.4 MB: a turn has ended"),
)
STATS = EngineStats(
    "idle", disk=DISK, conversations=(conversation(), conversation(2, is_pinned=True)),
    conversation_count=14, notes=NOTES,
)  # fmt: skip


def told(disk: DiskStats = DISK, width: int = 120, **more: Any) -> str:
    return disk_panel(replace(STATS, disk=disk, **more), width).plain


def test_room_traffic_and_what_happened_are_told() -> None:
    text = told()
    for part in (
        "3.2 GB of 20.0 GB (16%)",
        "of it     3.0 GB of this model · 200.0 MB of other models",
        "free      85.1 GB on the disk, of which 10.7 GB stay free",
        "writes    yes, this process; nothing waits",
        "Conversations: 14\n81 pages, 14 snapshots, 3 system prompts, 120k tokens",
        "1,543   70.8 MB      6s  you: Why is the sky blue?",
        "pinned · you: Why",
        "and 12 more: ds4tui cache ls",
        "loads     12 records, 13,000 tokens, 540.0 MB; the last at 1.2 GB/s, all at 1.1 GB/s",
        "stores    90 records, 2.9 GB (90.0 MB of snapshots); the last at 300.0 MB/s",
        "misses    1 prompt of which nothing was stored",
        "evicted   2: nothing led up to them any more; 10: room was needed",
        "pins      1 conversation",
        "1 × flipped\n          Records whose checksum was wrong",
        "stored 2,048 tokens, 94.4 MB: a turn has ended",
    ):
        assert part in text, part
    assert "of memory" not in text


def test_why_nothing_is_stored_is_told() -> None:
    reader = replace(DISK, is_writer=False, why_not="another ds4tui writes in this folder")
    assert "no: nothing is stored: another ds4tui writes in this folder; what is" in told(reader)
    failed = replace(DISK, failed="ValueError: x")
    assert "no: nothing more is stored: ValueError: x" in told(failed)
    assert "24.0 MB wait to be written" in told(replace(DISK, queued_bytes=24_000_000))
    assert "looks for what is not stored yet" in told(is_storing=True)
    assert "the folder does not grow" in told(replace(DISK, free_bytes=10**9))


def test_what_is_not_ours_or_of_no_use_is_told() -> None:
    text = told(conversations=(
        conversation(is_ours=False, label="qwen", what="agent: fix"),
        conversation(2, is_broken=True, what="person: \x1b[2Jhi"),
    ))  # fmt: skip
    assert "qwen · agent: fix" in text
    assert "of no use, its beginning is gone · you: " in text and "\x1b" not in text


def test_without_a_disk_or_a_model() -> None:
    assert disk_panel(None, 80).plain == NO_MODEL
    assert disk_panel(EngineStats(), 80).plain == NO_DISK and disk_rows(EngineStats()) is None
    empty = disk_panel(EngineStats(disk=DiskStats()), 80).plain
    assert "None is stored yet" in empty and "Faults\nnone" in empty


def test_the_kv_panel_says_it_shortly() -> None:
    text = kv_panel(PanelView(STATS), 32).plain
    assert "Disk\ntaken     3.2 GB (16%)\nstored    120k tok · 81 pages" in text
    reader = replace(DISK, why_not="another ds4tui writes in this folder")
    assert (
        "nothing is stored: another" in kv_panel(PanelView(replace(STATS, disk=reader)), 32).plain
    )
    assert "a turn has ended" not in text  # no news for that panel


@pytest.mark.parametrize(
    "word", [*get_args(Fault), "queue full", "no memory", "disk full", "over budget"]
)
def test_every_fault_has_its_sentence(word: str) -> None:
    assert disk_fault(word).meaning.lower() != f"{word}."


def test_a_fault_of_later_is_told_by_its_word() -> None:
    assert "2 × odd\n          Odd." in told(replace(DISK, faults=(("odd", 2),)))


@settings(max_examples=scaled(40), deadline=None)
@given(
    st.integers(10, 220),
    st.integers(0, 2 * 10**13), st.integers(0, 10**13), st.integers(0, 10**13),
    st.text(max_size=60), st.integers(0, 5),
)  # fmt: skip
def test_it_fits_any_width_and_numbers(
    width: int, used: int, budget: int, free: int, words: str, count: int
) -> None:
    disk = DiskStats(
        folder=words, used_bytes=used, budget_bytes=budget, free_bytes=free, why_not=words,
        faults=((words, count),),
    )  # fmt: skip
    listed = tuple(conversation(n, what=words, tokens=used) for n in range(count))
    stats = EngineStats("idle", disk=disk, conversations=listed)
    content = disk_panel(stats, width)
    assert content.is_same(disk_panel(stats, width))
    assert not any(ord(c) < 0x20 and c != "\n" for c in content.plain)
