"""A pin is of a conversation: it goes on with it, and can be taken back by whatever name it had."""

import os
from pathlib import Path

import pytest

from ds4tui.cache import kvadopt, kvfile
from ds4tui.cache.kvconversations import StoredConversation, named, stored_conversations
from ds4tui.cache.kvformat import CorruptRecord, RecordHead
from ds4tui.cache.kvindex import INDEX_NAME
from ds4tui.cache.kvstore import DiskTier
from ds4tui.cache.timeline import Timeline
from tests.cache.kv_samples import IDENTITY, true_page

STORY = Timeline.of(range(1, 901))
FORK = STORY.prefix(300).extended(range(2000, 2100))


def opened(folder: Path) -> DiskTier:
    return DiskTier(folder, 64 << 20, IDENTITY, floor_bytes=0)


def put(tier: DiskTier, timeline: Timeline) -> None:
    start = tier.missing_from(timeline)
    assert tier.put_page(timeline, start, true_page(timeline, start, len(timeline)).layers)
    assert tier.flush(60.0)


def told(tier: DiskTier) -> dict[int, StoredConversation]:
    """By tokens."""
    return {found.tokens: found for found in stored_conversations(tier.entries())}


def test_a_pin_goes_on_with_its_conversation_and_is_taken_back(tmp_path: Path) -> None:
    tier = opened(tmp_path)
    put(tier, STORY.prefix(600))
    first = told(tier)[600]
    tier.pin(first.leaf_id)
    put(tier, STORY)
    assert told(tier)[900].is_pinned and tier.stats.pinned == 1
    tier.clear()
    assert told(tier).keys() == {900}
    tier.close(5.0)
    tier = opened(tmp_path)
    (found,) = named(told(tier).values(), first.name)  # by the name that it had
    assert found.tokens == 900 and found.is_pinned
    tier.unpin(found.leaf_id)
    assert not tier.stats.pinned and not told(tier)[900].is_pinned
    assert (tmp_path / "pins").read_text() == ""
    tier.clear()
    assert not told(tier)
    tier.close(5.0)


def test_pins_that_were_left_behind_can_be_taken_back(tmp_path: Path) -> None:
    """As earlier versions left them."""
    tier = opened(tmp_path)
    put(tier, STORY.prefix(600))
    (name,) = (path.name for path in tmp_path.glob("*.page"))
    put(tier, STORY)
    tier.close(5.0)
    (tmp_path / "pins").write_text(f"{name}\n")
    tier = opened(tmp_path)
    found = told(tier)[900]
    assert found.is_pinned
    tier.unpin(found.leaf_id)
    assert not tier.stats.pinned and not told(tier)[900].is_pinned
    tier.close(5.0)


def test_a_fork_from_within_has_a_pin_of_its_own(tmp_path: Path) -> None:
    tier = opened(tmp_path)
    put(tier, STORY.prefix(600))
    tier.pin(told(tier)[600].leaf_id)
    put(tier, FORK)
    found = told(tier)
    assert found[600].is_pinned and not found[400].is_pinned
    tier.unpin(found[400].leaf_id)
    assert told(tier)[600].is_pinned
    tier.close(5.0)


def test_who_clears_what_is_pinned_clears_the_pins(tmp_path: Path) -> None:
    tier = opened(tmp_path)
    put(tier, STORY)
    tier.pin(told(tier)[900].leaf_id)
    tier.clear(pinned=True)
    put(tier, STORY)
    tier.close(5.0)
    tier = opened(tmp_path)
    assert tier.stats.pages == 1 and not tier.stats.pinned
    tier.close(5.0)


def test_a_record_that_cannot_be_read_for_a_while_stays_pinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = opened(tmp_path)
    put(tier, STORY.prefix(500))
    put(tier, FORK)
    found = told(tier)
    tier.pin(found[400].leaf_id)
    (pinned,) = (tmp_path / "pins").read_text().split()
    tier.close(5.0)
    (tmp_path / INDEX_NAME).unlink()
    read_head = kvfile.read_head

    def failing(path: Path) -> tuple[RecordHead, int]:
        if path.name == pinned:
            raise CorruptRecord("unreadable", "It cannot be read: Input/output error.")
        return read_head(path)

    with monkeypatch.context() as patch:
        patch.setattr(kvadopt, "read_head", failing)
        tier = opened(tmp_path)
    tier.pin(told(tier)[500].leaf_id)
    tier.prune(0)
    tier.close(5.0)
    tier = opened(tmp_path)
    assert tier.stats.pinned == 2 and told(tier).keys() == {500, 400}
    tier.close(5.0)


def test_pins_are_on_disk_before_they_are_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = opened(tmp_path)
    put(tier, STORY)
    synced: list[int] = []
    fsync, rename = os.fsync, os.replace

    def replaced(source: Path, target: Path) -> None:
        assert os.stat(source).st_ino in synced
        rename(source, target)

    def noted(file: int) -> None:
        fsync(file)
        synced.append(os.fstat(file).st_ino)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "replace", replaced)
    tier.pin(told(tier)[900].leaf_id)
    assert os.stat(tmp_path).st_ino in synced
    tier.close(5.0)
