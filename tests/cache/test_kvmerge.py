"""Small pages become larger ones: to the bit, once, and whatever happens in between."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ds4tui.cache import kvtidy
from ds4tui.cache.kvindex import GROWTH_BYTES, INDEX_FILES
from ds4tui.cache.kvmerge import MERGED_POSITIONS_MIN, SMALL_POSITIONS
from ds4tui.cache.kvstore import DiskTier
from ds4tui.cache.timeline import ImageSpan, Timeline
from tests.cache.kv_samples import IDENTITY, same_page, same_snapshot, true_page, true_snapshot

WAIT_S = 60.0
IMAGE = ImageSpan(210, 40, b"m" * 16, (7,) * 40)
STORY = (
    Timeline.of(range(210))
    .extended([-(row + 1) for row in range(40)], (IMAGE,))
    .extended(range(250, 2000))
)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., DiskTier]]:
    tiers: list[DiskTier] = []

    def make(**more: Any) -> DiskTier:
        tiers.append(DiskTier(tmp_path / "kv", 64 << 20, IDENTITY, floor_bytes=0, **more))
        return tiers[-1]

    yield make
    for tier in tiers:
        tier.close(WAIT_S)


def put(tier: DiskTier, timeline: Timeline, ends: list[int], **more: Any) -> None:
    """Pages with these ends, one behind the other."""
    start = tier.missing_from(timeline)
    for end in ends:
        layers = true_page(timeline, start, end).layers
        assert tier.put_page(timeline.prefix(end), start, layers, **more)
        start = end
    assert tier.flush(WAIT_S)


def tidied(tier: DiskTier) -> list[tuple[int, int]]:
    """The pages that are there then."""
    tier.tidy()
    assert tier.tidied(WAIT_S)
    return bounds(tier)


def bounds(tier: DiskTier) -> list[tuple[int, int]]:
    return sorted((e.start, e.end) for e in tier.entries() if e.kind == "page")


def check(tier: DiskTier, wanted: Timeline, reach: int) -> None:
    """What is found of it is true, and reaches so far."""
    rows, snapshots = tier.offers(wanted)
    for held in rows:
        page = tier.read_rows(held.holder_id, held.start, held.end)
        if held.common == held.end:
            assert same_page(page, true_page(wanted, held.start, held.end))
    for found in snapshots:
        true = true_snapshot(wanted.prefix(found.position))
        assert same_snapshot(tier.read_snapshot(found.snapshot_id), true)
    assert tier.missing_from(wanted) == reach
    assert not any(entry.is_orphan for entry in tier.entries())


def test_pages_of_turns_become_one_to_the_bit(opened: Callable[..., DiskTier]) -> None:
    tier = opened()
    put(tier, STORY, [*range(100, 200, 100), 210, 300, 500, 700, 900, 1000, 1100])
    snapshot = true_snapshot(STORY.prefix(700))
    assert tier.put_snapshot(STORY.prefix(700), snapshot.layers, "turn", snapshot.logits)
    assert tier.flush(WAIT_S)
    written = tier.stats.stored_bytes - tier.stats.stored_snapshot_bytes
    assert tidied(tier) == [(0, 1000), (1000, 1100)]
    check(tier, STORY, 1100)
    told = tier.stats
    assert told.merges == 1 and 0 < told.merged_bytes <= written
    assert told.stored_bytes - told.stored_snapshot_bytes == written and not told.faults
    # Nothing is merged twice, and what is there is not written again.
    put(tier, STORY, [1200])
    assert tidied(tier) == [(0, 1000), (1000, 1100), (1100, 1200)]
    assert tier.put_page(STORY.prefix(1000), 0, true_page(STORY, 0, 1000).layers)
    assert tier.flush(WAIT_S) and tier.stats.merges == 1
    assert len(tier.offers(STORY)[1]) == 1
    used = sum(p.stat().st_size for p in Path(told.folder).iterdir())
    assert 0 <= used - tier.stats.used_bytes <= GROWTH_BYTES  # the index, as yet unseen


def test_forks_keep_what_they_lean_on(opened: Callable[..., DiskTier]) -> None:
    """From the last page of a run others may fork, in it or behind it; not from one before."""
    tier = opened()
    put(tier, STORY, [300, 600, 900])
    inside = STORY.prefix(750).extended([5] * 50)
    behind = STORY.prefix(900).extended([6] * 50)
    for fork in (inside, behind):
        put(tier, fork, [len(fork)])
    assert tidied(tier) == [(0, 900), (750, 800), (900, 950)]
    for wanted, reach in ((STORY, 900), (inside, 800), (behind, 950)):
        check(tier, wanted, reach)
    early = STORY.prefix(350).extended([7] * 50)
    put(tier, early, [400])
    tier.close(WAIT_S)
    tier = opened()
    assert (350, 400) in bounds(tier)
    for wanted, reach in ((STORY, 900), (inside, 800), (behind, 950), (early, 400)):
        check(tier, wanted, reach)


def test_a_fork_before_the_last_page_leaves_them_apart(opened: Callable[..., DiskTier]) -> None:
    tier = opened()
    put(tier, STORY, [300, 600, 900])
    put(tier, STORY.prefix(350).extended([7] * 50), [400])
    assert tidied(tier) == [(0, 300), (300, 600), (350, 400), (600, 900)]


@pytest.mark.parametrize("what", ["anchor", "pin", "held", "large", "short"])
def test_what_stays_as_it_is(what: str, opened: Callable[..., DiskTier]) -> None:
    tier = opened()
    if what == "large":
        put(tier, STORY, [SMALL_POSITIONS, 2 * SMALL_POSITIONS])
    elif what == "short":
        put(tier, STORY, [300, MERGED_POSITIONS_MIN - 1])
    else:
        put(tier, STORY, [300], point="system" if what == "anchor" else "")
        put(tier, STORY, [600, 900])
    before = bounds(tier)
    first = tier.offers(STORY)[0][0].holder_id
    if what == "pin":
        tier.pin(first)
    with tier.holding([first] if what == "held" else []):
        assert tidied(tier) == before
    if what == "held":
        assert tidied(tier) == [(0, 900)]


def test_a_plan_that_found_a_page_meanwhile_keeps_it(
    opened: Callable[..., DiskTier], monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = opened()
    put(tier, STORY, [300, 600, 900])
    first = tier.offers(STORY)[0][0].holder_id
    holding = tier.holding([first])
    merged = kvtidy.merged

    def found(*arguments: Any) -> Any:
        holding.__enter__()
        return merged(*arguments)

    monkeypatch.setattr(kvtidy, "merged", found)
    tidied(tier)
    assert same_page(tier.read_rows(first, 0, 300), true_page(STORY, 0, 300))
    check(tier, STORY, 900)
    holding.__exit__(None, None, None)
    monkeypatch.undo()
    assert tidied(tier) == [(0, 900)] and tier.stats.merges == 1, "it was there already"


def test_who_reads_a_page_that_went_goes_on_with_the_new_one(
    opened: Callable[..., DiskTier],
) -> None:
    writer = opened()
    put(writer, STORY, [300, 600, 900])
    reader = opened()
    held = reader.offers(STORY)[0][0]
    page = reader.open_rows(held.holder_id)
    assert tidied(writer) == [(0, 900)]
    rows = page.rows(0, 0, 300)  # its file is open still
    assert rows is not None and rows.count == 300
    page.close()
    check(reader, STORY, 900)
    assert bounds(reader) == [(0, 900)]


@pytest.mark.parametrize("is_lost", [False, True])
def test_what_leaned_on_old_pages_is_found_after_a_restart(
    is_lost: bool, opened: Callable[..., DiskTier]
) -> None:
    """Heads on disk name the old pages; the ids tell what they lean on now."""
    tier = opened()
    put(tier, STORY, [300, 600, 900, 1100, 1400])
    put(tier, STORY.prefix(1000).extended([7] * 50), [1050])
    assert tidied(tier) == [(0, 900), (900, 1100), (1000, 1050), (1100, 1400)]
    folder = Path(tier.stats.folder)
    tier.close(WAIT_S)
    for name in INDEX_FILES if is_lost else ():
        (folder / name).unlink(missing_ok=True)
    tier = opened()
    assert not any(entry.is_orphan for entry in tier.entries())
    check(tier, STORY, 1400)


def test_nothing_makes_way_for_a_merge(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path / "kv", 10**9, IDENTITY, floor_bytes=0)
    put(tier, STORY, [300, 600, 900])
    used = tier.stats.used_bytes
    tier.close(WAIT_S)
    tier = DiskTier(tmp_path / "kv", used + (520 << 10), IDENTITY, floor_bytes=0)
    assert tidied(tier) == [(0, 300), (300, 600), (600, 900)]
    assert not tier.stats.evictions and tier.stats.used_bytes <= tier.stats.budget_bytes
    tier.close(WAIT_S)


@pytest.mark.parametrize("name", ["write", "fsync", "replace", "unlink"])
def test_a_merge_that_fails_harms_nothing(
    name: str, opened: Callable[..., DiskTier], monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = opened()
    put(tier, STORY, [300, 600, 900])

    def refused(*arguments: Any, **more: Any) -> Any:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, name, refused)
        tidied(tier)
        check(tier, STORY, 900)
    assert "write failed" in dict(tier.stats.faults)
    tier.close(WAIT_S)
    tier = opened()
    check(tier, STORY, 900)
    tidied(tier)
    check(tier, STORY, 900)


def test_a_damaged_page_is_not_merged(opened: Callable[..., DiskTier]) -> None:
    tier = opened()
    put(tier, STORY, [300, 600, 900])
    path = next(p for p in Path(tier.stats.folder).glob("*.page"))
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert len(tidied(tier)) == 2 and dict(tier.stats.faults) == {"flipped": 1}
    assert not tier.stats.merges
