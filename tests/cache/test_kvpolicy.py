"""The eviction policy of the disk, on random folders. Numbers are those of the module's text."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.cache.kvpolicy import (
    HALF_LIFE_S,
    PROTECTION_S,
    Stored,
    default_budget_bytes,
    duration,
    evictions,
    excess_bytes,
    floor_bytes,
    freeable_bytes,
    newest_snapshots,
    worth_ms,
)
from tests.scale import scaled

NOW = 1e9
GB = 1 << 30


@st.composite
def folders(draw: st.DrawFn) -> list[Stored]:
    """Trees of pages with snapshots, of any age, the future included."""
    records: list[Stored] = []
    for entry_id in range(draw(st.integers(1, 14))):
        pages = [r for r in records if r.kind == "page"]
        stem = draw(st.sampled_from([None, *pages]))
        kind = draw(st.sampled_from(["page", "page", "snapshot"])) if stem else "page"
        end = (stem.end if stem else 0) + (draw(st.integers(1, 9)) if kind == "page" else 0)
        records.append(
            Stored(
                entry_id=entry_id,
                kind=kind,  # type: ignore[arg-type]
                end=end,
                nbytes=draw(st.integers(1, 100)),
                recompute_ms=draw(st.integers(0, 1000)),
                used_at=NOW - draw(st.integers(-10, 60)) * HALF_LIFE_S,
                hits=draw(st.integers(0, 5)),
                stem=stem.entry_id if stem else None,
                is_pinned=draw(st.integers(0, 9)) == 0,
                is_anchor=draw(st.integers(0, 5)) == 0,
                is_orphan=draw(st.integers(0, 9)) == 0,
            )
        )
    return records


def below(records: list[Stored], entry_id: int) -> set[int]:
    """All that leans on a record, itself included."""
    found = {entry_id}
    for record in records:  # stems come first
        if record.stem in found:
            found.add(record.entry_id)
    return found


@given(folders(), st.integers(0, 900), st.sets(st.integers(0, 13), max_size=2))
@settings(max_examples=scaled(300))
def test_what_goes(records: list[Stored], excess: int, keep: set[int]) -> None:
    gone = evictions(records, excess, NOW, keep)
    by_id = {record.entry_id: record for record in records}
    if gone is None:
        assert freeable_bytes(records, keep) < excess  # (1)
        return
    ids = [eviction.entry_id for eviction in gone]
    assert len(set(ids)) == len(ids) and all(eviction.reason for eviction in gone)
    assert sum(by_id[i].nbytes for i in ids) >= excess  # (1)
    assert sum(by_id[i].nbytes for i in ids[:-1]) < excess or not ids  # and no more than needed
    for place, entry_id in enumerate(ids):
        leaning = below(records, entry_id)
        assert not any(by_id[i].is_pinned or i in keep for i in leaning)  # (2)
        assert leaning - {entry_id} <= set(ids[:place])  # (3)


@given(folders(), st.sets(st.integers(0, 13), max_size=2))
def test_all_that_can_go_goes(records: list[Stored], keep: set[int]) -> None:
    all_of_it = freeable_bytes(records, keep)
    assert evictions(records, all_of_it, NOW, keep) is not None
    assert evictions(records, all_of_it + 1, NOW, keep) is None


@given(folders(), st.integers(1, 900))
@settings(max_examples=scaled(200))
def test_the_protected_go_last(records: list[Stored], excess: int) -> None:
    gone = evictions(records, excess, NOW) or ()
    newest = newest_snapshots(records)
    ids = [eviction.entry_id for eviction in gone]

    def is_protected(record: Stored) -> bool:
        recent = NOW - record.used_at <= PROTECTION_S and not record.is_orphan
        return recent and (record.is_anchor or record.entry_id in newest)

    protected = [r for r in records if r.entry_id in ids and is_protected(r)]
    if not protected:
        return
    place = ids.index(min((r.entry_id for r in protected), key=ids.index))
    for record in records:  # (4): whatever could have gone before them has
        leaning = [r for r in records if r.entry_id in below(records, record.entry_id)]
        if not any(r.is_pinned or is_protected(r) for r in leaning):
            assert record.entry_id in ids[:place]


@given(folders(), st.integers(1, 900), st.data())
def test_to_be_worth_more_never_makes_it_go(
    records: list[Stored], excess: int, data: st.DataObject
) -> None:
    gone = evictions(records, excess, NOW)
    one = data.draw(st.sampled_from(records))
    if gone is None or one.entry_id in {e.entry_id for e in gone}:
        return
    better = replace(one, recompute_ms=one.recompute_ms + data.draw(st.integers(1, 500)))
    again = evictions([better if r is one else r for r in records], excess, NOW)
    assert again is not None and one.entry_id not in {e.entry_id for e in again}  # (5)


@given(folders(), st.floats(-1e12, 1e12))
def test_a_clock_that_jumps_does_no_harm(records: list[Stored], now: float) -> None:
    all_of_it = freeable_bytes(records)
    assert evictions(records, all_of_it, now) is not None  # (6)
    assert all(worth_ms(record, now) >= 0 for record in records)


def page(entry_id: int, stem: int | None = None, **changes: object) -> Stored:
    one = Stored(entry_id, "page", 100 * (entry_id + 1), 1000, 500.0, NOW, stem=stem)
    return replace(one, **changes)  # type: ignore[arg-type]


def snapshot(entry_id: int, stem: int, end: int, **changes: object) -> Stored:
    one = Stored(entry_id, "snapshot", end, 4000, 300.0, NOW, stem=stem)
    return replace(one, **changes)  # type: ignore[arg-type]


def order(*records: Stored) -> list[int]:
    gone = evictions(records, freeable_bytes(records), NOW)
    assert gone is not None
    return [eviction.entry_id for eviction in gone]


def test_a_small_page_does_not_go_for_being_small() -> None:
    small = page(0, nbytes=30, recompute_ms=15.0)
    old = page(1, used_at=NOW - HALF_LIFE_S)
    assert order(small, old) == [1, 0]


def test_what_is_loaded_often_stays_longer() -> None:
    assert order(page(0, hits=3), page(1)) == [1, 0]


def test_nothing_leads_up_to_it() -> None:
    assert order(page(0), page(1, is_orphan=True, recompute_ms=1e9)) == [1, 0]


def test_the_newest_snapshots_of_each_branch() -> None:
    trunk, left, right = page(0), page(1, 0), page(2, 0)
    on_trunk = [snapshot(10 + i, 0, 10 * i) for i in range(4)]
    on_left = [snapshot(20, 1, 150)]
    on_right = [snapshot(30 + i, 2, 110 + i) for i in range(3)]
    records = [trunk, left, right, *on_trunk, *on_left, *on_right]
    assert newest_snapshots(records) == {20, 13, 32, 31}
    assert newest_snapshots([snapshot(5, 99, 7)]) == {5}


def test_anchors_outlast_other_records_and_pins_everything() -> None:
    anchor = page(0, is_anchor=True, recompute_ms=1.0)
    pinned = page(1, is_pinned=True, recompute_ms=0.0)
    assert order(anchor, pinned, page(2)) == [2, 0]
    forgotten = replace(anchor, used_at=NOW - PROTECTION_S - 1)
    assert order(forgotten, page(2)) == [0, 2]


def test_reasons_are_words() -> None:
    gone = evictions([page(0, used_at=NOW - 3 * 86400)], 1, NOW)
    assert gone and gone[0].reason == "room was needed; last used 3 days ago, worth 0.5 s"
    assert [duration(s) for s in (0.4, 59, 60, 7200, 90_000)] == [
        "0 s",
        "59 s",
        "1 minute",
        "2 hours",
        "1 day",
    ]


def test_the_budget_is_a_share_and_leaves_a_floor() -> None:
    assert default_budget_bytes(0, 100 * GB, 1000 * GB) == 10 * GB
    assert default_budget_bytes(4 * GB, 96 * GB, 1000 * GB) == 10 * GB  # its own counts
    assert default_budget_bytes(0, 900 * GB, 1000 * GB) == 20 * 10**9
    assert default_budget_bytes(0, 10 * GB + 5, 1000 * GB) == 5  # 10 GB stay free
    assert default_budget_bytes(0, 5 * GB, 1000 * GB) == 0
    assert default_budget_bytes(30 * GB, 5 * GB, 1000 * GB) == 30 * GB  # nothing shrinks by itself
    assert floor_bytes(20 * GB) == GB


def test_what_must_go_before_something_new() -> None:
    assert excess_bytes(10, used=50, budget=100, free=1000, floor=100) == 0
    assert excess_bytes(10, used=95, budget=100, free=1000, floor=100) == 5
    assert excess_bytes(10, used=150, budget=100, free=1000, floor=100) == 60  # it was lowered
    assert excess_bytes(10, used=50, budget=100, free=104, floor=100) == 6
    assert excess_bytes(10, used=50, budget=100, free=3, floor=100) == 10  # and not 107
