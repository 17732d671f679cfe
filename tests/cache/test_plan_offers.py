"""plan_sync over a live state and what is held beside it, with the numbers that founded the
project, for families that truncate and for families that need snapshots."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ds4tui.cache.eviction import Weighed
from ds4tui.cache.offers import (
    HOLDER_LIVE,
    HeldRows,
    HeldSnapshot,
    Offers,
    Rates,
    Sizes,
    Unheld,
)
from ds4tui.cache.plan import PlanKind, RowPart, SyncPlan, plan_sync
from ds4tui.cache.timeline import Timeline
from tests.cache.test_plan import always, must_not_ask, never, sharing

GB = 10**9
ROOMY = 10**15
SIZES = Sizes(row_bytes=100_000)
RECURRENT = Sizes(row_bytes=65_536, snapshot_bytes=146_800_000)
RATES = Rates(prefill_tokens_per_s=1000, copy_bytes_per_s=10 * GB, load_bytes_per_s=1 * GB)


def plan_of(
    live: Timeline,
    wanted: Timeline,
    *rows: HeldRows,
    snapshots: tuple[tuple[int, int], ...] = (),
    free_bytes: int = ROOMY,
    can_rewind: Callable[[int], bool] = always,
    **others: Any,
) -> SyncPlan:
    held = tuple(HeldSnapshot(*snapshot) for snapshot in snapshots)
    told = {name: others.pop(name) for name in Offers.__slots__ if name in others}
    offers = Offers(rows, held, free_bytes=free_bytes, **told)
    others = {"sizes": SIZES, "rates": RATES, **others}
    return plan_sync(live, wanted, can_rewind=can_rewind, offers=offers, **others)


def bounded(live: Timeline, wanted: Timeline, *rows: HeldRows, **others: Any) -> SyncPlan:
    """Of a family whose state says that it cannot go back."""
    others = {"can_rewind": never, "sizes": RECURRENT, **others}
    return plan_of(live, wanted, *rows, needs_snapshots=True, **others)


def parked(holder: int, end: int, common: int, can_rewind: Any = always) -> HeldRows:
    return HeldRows(holder, "parked", 0, end, common, end * SIZES.row_bytes, can_rewind)


def segment(holder: int, start: int, end: int, common: int) -> HeldRows:
    return HeldRows(holder, "segment", start, end, common)


def page(holder: int, start: int, end: int, common: int, nbytes: int = 0) -> HeldRows:
    return HeldRows(holder, "page", start, end, common, nbytes)


# -- the founding reports ------------------------------------------------------------------------


def test_a_prompt_wholly_resident_in_a_longer_session_costs_one_token() -> None:
    plan = plan_of(*sharing(165_755, 4_977, 4_977))
    assert (plan.kept, plan.to_evaluate, plan.replayed, plan.cause) == (4_976, 1, 0, None)
    assert (plan.base, plan.put_away) == ("fresh", "whole")
    assert plan.parts == (RowPart(HOLDER_LIVE, 0, 4_976),)
    assert plan.reason == (
        "one token evaluated again: the whole prompt is resident; "
        "the old branch of 165,755 tokens is parked whole"
    )


def test_a_fork_evaluates_four_and_the_old_branch_stays_whole() -> None:
    plan = plan_of(*sharing(165_755, 4_977, 4_973))
    assert (plan.kept, plan.to_evaluate, plan.dropped) == (4_973, 4, 160_782)
    assert (plan.kind, plan.base, plan.put_away) == (PlanKind.REWIND, "fresh", "whole")
    assert "the old branch of 165,755 tokens is parked whole, 4 new" in plan.reason


def test_going_back_to_the_old_branch_costs_its_new_tokens_only() -> None:
    live, wanted = sharing(4_977, 165_755 + 412, 4_973)
    plan = plan_of(live, wanted, parked(1, 165_755, 165_755))
    assert (plan.kept, plan.to_evaluate, plan.source) == (165_755, 412, "parked")
    assert (plan.base, plan.base_id, plan.base_rows, plan.parts) == ("parked", 1, 165_755, ())
    assert (plan.kind, plan.put_away, plan.cause) == (PlanKind.RESTORE, "whole", None)
    assert plan.reason == (
        "412 new tokens after 165,755 that are held: 165,755 from a parked branch; "
        "the old branch of 4,977 tokens is parked whole"
    )


def test_a_tail_mismatch_evaluates_the_tail() -> None:
    plan = plan_of(*sharing(340_263, 340_551, 340_144))
    assert (plan.kept, plan.to_evaluate, plan.dropped) == (340_144, 407, 119)
    assert (plan.base, plan.base_rows, plan.put_away) == ("live", 340_144, "tail")
    assert plan.tail_start == 340_144
    assert "119 tokens of the old branch are kept aside" in plan.reason


@pytest.mark.parametrize(
    ("sizes", "at", "evaluated"),
    [
        ((165_755, 4_977, 4_977), 4_976, 1),
        ((165_755, 4_977, 4_973), 4_973, 4),
        ((340_263, 340_551, 340_144), 340_144, 407),
    ],
)
def test_the_same_for_a_family_that_needs_snapshots(
    sizes: tuple[int, int, int], at: int, evaluated: int
) -> None:
    plan = bounded(*sharing(*sizes), snapshots=((7, at), (8, 100), (9, at + 1_000)))
    assert (plan.kept, plan.to_evaluate, plan.snapshot_id) == (at, evaluated, 7)
    assert (plan.replayed, plan.source) == (0, "memory+snapshot")
    assert plan.put_away == ("whole" if sizes[0] == 165_755 else "tail")


def test_a_family_that_cannot_rewind_does_not_lose_its_state_by_trying() -> None:
    plan = bounded(*sharing(165_755, 4_977, 4_973))
    assert (plan.kind, plan.kept, plan.base) == (PlanKind.COLD, 0, "fresh")
    assert (plan.put_away, plan.held, plan.replayed) == ("whole", 4_973, 4_973)
    assert plan.reason == (
        "the state cannot go back from 165,755 to 4,973: 4,977 tokens from the start; "
        "the old branch of 165,755 tokens is parked whole"
    )


def test_going_back_to_a_parked_state_that_cannot_rewind() -> None:
    live, wanted = sharing(4_977, 165_755 + 412, 4_973)
    plan = bounded(live, wanted, parked(1, 165_755, 165_755, never))
    assert (plan.kept, plan.to_evaluate, plan.base) == (165_755, 412, "parked")


def test_an_exact_hit_of_a_parked_state_needs_a_snapshot_before_its_last_token() -> None:
    """T25, T26, T39: nothing is fed twice, and nothing is claimed that no state stands for."""
    live, wanted = sharing(10, 500, 0)
    held = parked(1, 500, 500, never)
    assert bounded(live, wanted, held).kept == 0
    plan = bounded(live, wanted, held, snapshots=((2, 499),))
    assert (plan.kept, plan.to_evaluate, plan.base, plan.snapshot_id) == (499, 1, "parked", 2)
    assert (plan.base_rows, plan.base_tail) == (499, "nothing")


# -- rows ----------------------------------------------------------------------------------------


def test_rows_come_from_several_holders() -> None:
    live, wanted = sharing(50, 400, 40)
    plan = plan_of(
        live, wanted, segment(1, 30, 100, 90), segment(2, 90, 200, 200), segment(3, 60, 95, 95)
    )
    assert plan.parts == (RowPart(1, 40, 90), RowPart(2, 90, 200))
    assert (plan.base, plan.base_rows, plan.kept, plan.source) == (
        "live",
        40,
        200,
        "memory+segment",
    )


def test_a_segment_without_its_prefix_is_of_no_use() -> None:
    """Invariant 2 of ways."""
    plan = plan_of(*sharing(50, 400, 40), segment(1, 41, 300, 300))
    assert (plan.kept, plan.held) == (40, 40)


def test_a_snapshot_whose_rows_are_not_covered_is_of_no_use() -> None:
    live, wanted = sharing(50, 400, 40)
    assert bounded(live, wanted, snapshots=((7, 41),)).kept == 0
    assert bounded(live, wanted, snapshots=((7, 41), (8, 35))).kept == 35
    assert bounded(live, wanted, segment(1, 40, 41, 41), snapshots=((7, 41),)).kept == 41


def test_a_bounded_state_is_never_made_of_rows_alone() -> None:
    """Invariant 3 of ways (T24, T28, T30)."""
    plan = bounded(*sharing(50, 400, 40), parked(1, 300, 250, never), segment(2, 0, 399, 399))
    assert (plan.kept, plan.held) == (0, 399)


def test_a_window_goes_back_within_its_slack_without_a_snapshot() -> None:
    live, wanted = sharing(1_000, 1_010, 990)
    plan = bounded(live, wanted, can_rewind=lambda to: to >= 980, has_window=True)
    assert (plan.kept, plan.base, plan.snapshot_id, plan.put_away) == (990, "live", None, "tail")


def test_a_replay_is_told() -> None:
    plan = bounded(*sharing(1_000, 1_010, 990), snapshots=((7, 900),), has_window=True)
    assert (plan.kept, plan.held, plan.replayed, plan.to_evaluate) == (900, 990, 90, 110)
    assert "90 tokens before that evaluated again from 900, the nearest snapshot" in plan.reason
    assert plan.cause == "window wrapped"


def test_nothing_snaps_to_a_grid() -> None:
    """T33, T35, T41: whatever is shared is kept, to the token."""
    for common in (1, 2, 63, 64, 65, 527, 528, 529, 1_500, 1_600, 2_047, 2_049):
        live, wanted = sharing(2_300, 2_290, common)
        assert plan_of(live, wanted).kept == common
        exact = bounded(live, wanted, snapshots=((1, common),), sizes=Sizes(1, 1))
        assert exact.kept == common


# -- what becomes of the old branch --------------------------------------------------------------


def test_the_smaller_side_is_copied() -> None:
    """Invariant 6 of ways."""
    for common in (10, 400, 499, 500, 501, 700, 999):
        plan = plan_of(*sharing(1_000, 1_000, common))
        smaller = "whole" if common < 500 else "tail"
        assert (common, plan.put_away) == (common, smaller)
        assert plan.base == ("fresh" if smaller == "whole" else "live")


def test_without_room_the_live_state_is_cut_not_copied() -> None:
    plan = plan_of(*sharing(165_755, 4_977, 4_973), free_bytes=0)
    assert (plan.base, plan.put_away, plan.parts) == ("live", "drop", ())
    assert "160,782 tokens of the old branch dropped (no room)" in plan.reason


def test_what_is_worth_less_makes_room_and_what_is_used_does_not() -> None:
    """Invariant 5 of ways."""
    live, wanted = sharing(1_000, 2_000, 400)
    own = 1_000 * SIZES.row_bytes
    cheap = Weighed(5, 1.0, own)
    dear = Weighed(6, 1e9, own)
    used = Weighed(9, 1.0, own)
    held = segment(9, 400, 1_500, 1_500)
    assert plan_of(live, wanted, held, free_bytes=0, evictable=(cheap,)).put_away == "whole"
    for others in ((dear,), (used,)):
        plan = plan_of(live, wanted, held, free_bytes=0, evictable=others)
        assert (plan.kept, plan.put_away) == (1_500, "drop")


def test_a_parked_state_that_is_taken_makes_room_for_the_live_one() -> None:
    live, wanted = sharing(1_000, 1_100, 4)
    plan = plan_of(live, wanted, parked(3, 1_050, 1_050), free_bytes=0)
    assert (plan.base, plan.put_away) == ("parked", "whole")


def test_what_would_be_given_up_counts() -> None:
    """Cutting the live state is faster, but there is no room for its tail; taking the parked one
    makes room for all."""
    live, wanted = sharing(1_000, 700, 500)
    room = 400 * SIZES.row_bytes
    plan = plan_of(live, wanted, parked(3, 2_000, 600), free_bytes=room)
    assert (plan.base, plan.put_away, plan.base_tail) == ("parked", "whole", "tail")
    assert plan.estimated_ms == 100 + 1_400 * 0.01


def test_one_token_is_kept_aside_in_words() -> None:
    assert "1 token of the old branch is kept aside" in plan_of(*sharing(100, 120, 99)).reason


def test_the_end_of_a_parked_base_is_kept_aside() -> None:
    live, wanted = sharing(10, 1_100, 4)
    plan = plan_of(live, wanted, parked(3, 1_050, 1_000))
    assert (plan.base, plan.base_rows, plan.base_tail) == ("parked", 1_000, "tail")
    short = plan_of(*sharing(10, 150, 4), parked(3, 1_050, 100))
    assert (short.base, short.parts, short.kept) == ("fresh", (RowPart(3, 0, 100),), 100)


def test_a_live_state_that_the_prompt_goes_on_from_leaves_no_branch() -> None:
    plan = plan_of(*sharing(100, 100, 100))
    assert (plan.kept, plan.dropped, plan.put_away) == (99, 1, "tail")  # what leans on it stays
    assert plan.reason == "one token evaluated again: the whole prompt is resident"
    longer = plan_of(*sharing(100, 400, 100), parked(1, 300, 300))
    assert (longer.base, longer.kept, longer.put_away) == ("parked", 300, "nothing")


def test_a_state_that_is_replayed_stays_until_it_is_there_again() -> None:
    """The prompt is wholly resident, but the nearest snapshot is far: if the replay is cancelled
    the old state is still whole."""
    plan = bounded(*sharing(1_000, 1_000, 1_000), snapshots=((7, 900),))
    assert (plan.kept, plan.replayed, plan.put_away) == (900, 99, "whole")
    near = bounded(*sharing(9_000, 9_000, 9_000), snapshots=((7, 8_990),))
    assert (near.kept, near.put_away) == (8_990, "tail")
    assert "branch" not in near.reason


# -- the room that the wanted state leaves -------------------------------------------------------


def grown(rows: int, **others: Any) -> dict[str, Any]:
    sizes = Sizes(SIZES.row_bytes, wanted_bytes=rows * SIZES.row_bytes)
    return {"sizes": sizes, "is_shared": True, **others}


def test_the_wanted_state_grows_in_the_room_of_what_is_put_away() -> None:
    """Invariant 5 of ways: 150 live, a prompt of 300 that shares nothing with them."""
    row = SIZES.row_bytes
    for free, put_away in ((299, "drop"), (300, "whole")):
        plan = plan_of(*sharing(150, 300, 0), free_bytes=free * row, **grown(300))
        assert (plan.put_away, plan.lacking_bytes) == (put_away, 0)
    # The live state's own place is left to what is parked, where that is larger.
    smaller = plan_of(*sharing(150, 30, 0), free_bytes=30 * row, **grown(30))
    assert smaller.put_away == "whole"
    # A state that is cut keeps its buffers: nothing is left of them for the copy of its end.
    cut = sharing(150, 130, 120)
    assert plan_of(*cut, free_bytes=29 * row, **grown(130)).put_away == "drop"
    assert plan_of(*cut, free_bytes=30 * row, **grown(130)).put_away == "tail"
    # Where live states have room of their own, growth takes nothing from what is put away.
    apart = plan_of(*sharing(150, 300, 0), free_bytes=150 * row, **grown(300, is_shared=False))
    assert apart.put_away == "whole"


def test_what_can_be_allocated_bounds_what_is_put_away() -> None:
    row = SIZES.row_bytes
    for left, put_away in ((299, "drop"), (300, "whole")):
        sized = grown(300, is_shared=False, device_bytes=left * row)
        assert plan_of(*sharing(150, 300, 0), **sized).put_away == put_away
    taken = grown(1_100, is_shared=False, device_bytes=50 * row)
    plan = plan_of(*sharing(150, 1_100, 4), parked(3, 1_050, 1_050), **taken)
    assert (plan.base, plan.put_away, plan.lacking_bytes) == ("parked", "whole", 0)


def test_what_a_plan_lacks_must_go_first() -> None:
    row = SIZES.row_bytes
    live = sharing(150, 300, 0)
    plan = plan_of(*live, free_bytes=100 * row, **grown(300))
    assert (plan.put_away, plan.lacking_bytes, plan.worth_ms) == ("drop", 50 * row, math.inf)
    cheap = (Weighed(5, 1.0, 300 * row),)
    plan = plan_of(*live, free_bytes=100 * row, evictable=cheap, **grown(300))
    assert (plan.put_away, plan.lacking_bytes, plan.worth_ms) == ("whole", 200 * row, 150.0)
    dear = (Weighed(5, 150.0, 300 * row),)
    plan = plan_of(*live, free_bytes=100 * row, evictable=dear, **grown(300))
    assert (plan.put_away, plan.lacking_bytes) == ("drop", 50 * row)


def test_two_branches_that_are_put_away_do_not_have_the_same_room() -> None:
    """Of the live branch and the end of the parked one that is taken, the dearer one stays."""
    live, wanted = sharing(300, 1_010, 4)
    held = parked(3, 1_100, 1_000)
    row = SIZES.row_bytes
    cases = {
        400: ("whole", "tail"),
        399: ("whole", "drop"),
        299: ("tail", "drop"),
        295: ("drop", "tail"),
    }
    for beside, said in cases.items():
        sized = grown(1_100, free_bytes=(beside - 300) * row)
        plan = plan_of(live, wanted, held, **sized)
        assert (plan.base, plan.put_away, plan.base_tail) == ("parked", *said)
        # Of what makes way, all is worth less than either.
        less = (Weighed(9, 99.0, 400 * row),)
        sized = grown(1_100, free_bytes=(beside - 700) * row, evictable=less)
        plan = plan_of(live, wanted, held, **sized)
        assert (plan.base, plan.put_away, plan.base_tail) == ("parked", *said)


@pytest.mark.parametrize(("holder", "base_tail"), [(8, "drop"), (9, "tail")])
def test_what_one_tail_leans_on_makes_no_way_for_the_other(holder: int, base_tail: str) -> None:
    """100 rows of the live branch are to be copied, 8 holds those before them; there is no room
    for 50 of the parked one beside, unless something else gives its place."""
    row = SIZES.row_bytes
    live, wanted = sharing(300, 1_010, 4)
    held = replace(parked(3, 1_100, 1_000), unheld=lambda start: Unheld(1_050))
    plan = plan_of(
        live,
        wanted,
        held,
        unheld=lambda start, excluded: Unheld(max(start, 200), frozenset({8})),
        evictable=(Weighed(holder, 1.0, 60 * row),),
        **grown(1_100, free_bytes=(100 - 300) * row),
    )
    assert (plan.base, plan.put_away, plan.base_tail) == ("parked", "tail", base_tail)
    assert plan.leans_on == {8}


def test_only_rows_that_nobody_else_holds_are_worth_a_place() -> None:
    row = SIZES.row_bytes
    live = sharing(1_000, 1_010, 600)

    def unheld(start: int, excluded: int | None) -> Unheld:
        return Unheld(max(start, 900), frozenset({8}))

    plan = plan_of(*live, free_bytes=100 * row, unheld=unheld)
    assert (plan.put_away, plan.put_away_bytes, plan.worth_ms) == ("tail", 100 * row, 100.0)
    assert plan.uses == plan.leans_on == {8}  # who holds the rest may not make way
    others = (Weighed(7, 100.0, 500 * row), Weighed(8, 1.0, 500 * row))
    assert plan_of(*live, free_bytes=0, unheld=unheld, evictable=others).put_away == "drop"
    wholly = plan_of(*live, free_bytes=0, unheld=lambda start, excluded: Unheld(1_000))
    assert (wholly.put_away, wholly.estimated_ms) == ("nothing", 410.0)
    assert "the old branch of 1,000 tokens is held already" in wholly.reason


def test_rows_are_copied_out_of_the_live_state_only_where_it_is_parked() -> None:
    """Invariant 7 of ways, and what makes the growth that is predicted true."""
    for free, common in itertools.product((0, 100, 300, 900, 2_000), (1, 100, 500, 899, 999)):
        for needs_snapshots in (False, True):
            plan = plan_of(
                *sharing(1_000, 1_200, common),
                segment(4, common - 1, 1_100, 1_100),
                snapshots=((5, common), (6, 1_100)),
                free_bytes=free * SIZES.row_bytes,
                needs_snapshots=needs_snapshots,
            )
            copies = any(part.holder == HOLDER_LIVE for part in plan.parts)
            assert not copies or plan.put_away == "whole"


# -- time ----------------------------------------------------------------------------------------


def test_loading_slower_than_computing_is_not_done() -> None:
    live, wanted = sharing(10, 5_000, 10)
    on_disk = page(4, 10, 4_000, 4_000)
    fast = plan_of(live, wanted, on_disk)
    assert (fast.kind, fast.kept, fast.source) == (PlanKind.LOAD, 4_000, "memory+disk")
    slow = plan_of(live, wanted, on_disk, rates=Rates(1000, 20, 1e10, 1e6))
    assert (slow.kind, slow.kept) == (PlanKind.EXTEND, 10)
    assert slow.estimated_ms == 4_990


def test_a_near_snapshot_in_memory_beats_one_on_a_slow_disk() -> None:
    live, wanted = sharing(1_000, 1_010, 990)
    snapshots = (HeldSnapshot(1, 990, on_disk=True), HeldSnapshot(2, 960))
    kept = {}
    for load_bytes_per_s in (1e6, 1e10):
        plan = plan_sync(
            live,
            wanted,
            can_rewind=never,
            needs_snapshots=True,
            offers=Offers(snapshots=snapshots, free_bytes=ROOMY),
            sizes=RECURRENT,
            rates=Rates(1000, 20, 1e10, load_bytes_per_s),
        )
        kept[load_bytes_per_s] = (plan.kept, plan.snapshot_id, plan.kind)
    assert kept[1e6] == (960, 2, PlanKind.RESTORE)
    assert kept[1e10] == (990, 1, PlanKind.LOAD)


def test_memory_is_read_before_disk() -> None:
    live, wanted = sharing(10, 5_000, 10)
    plan = plan_of(live, wanted, page(4, 0, 4_000, 4_000), segment(5, 500, 1_500, 1_500))
    assert plan.parts == (RowPart(4, 10, 500), RowPart(5, 500, 1_500), RowPart(4, 1_500, 4_000))


def test_a_poisoned_state_gives_nothing_but_the_tier_does() -> None:
    live, wanted = sharing(500, 600, 500)
    plan = plan_of(live, wanted, parked(1, 450, 450), can_rewind=must_not_ask, poisoned="a fault")
    assert (plan.kept, plan.base, plan.source) == (450, "parked", "parked")
    assert plan.cause == "session poisoned"


def test_a_plan_names_all_that_it_uses() -> None:
    live, wanted = sharing(10, 900, 4)
    plan = bounded(
        live, wanted, parked(1, 500, 500, never), segment(2, 500, 800, 800), snapshots=((3, 800),)
    )
    assert (plan.kept, plan.uses) == (800, {1, 2, 3})


def test_one_comparison_whatever_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 4: hundreds of offers cost no further look at the ids."""
    counted: list[int] = []
    original = Timeline.common_prefix

    def counting(self: Timeline, other: Timeline) -> int:
        counted.append(len(other))
        return original(self, other)

    live, wanted = sharing(340_263, 340_551, 340_144)
    held = [parked(i, 10_000 + i, 5_000 + i) for i in range(1, 300)]
    monkeypatch.setattr(Timeline, "common_prefix", counting)
    plan = plan_of(live, wanted, *held)
    assert (counted, plan.to_evaluate) == ([340_551], 407)


def test_a_plan_keeps_no_view_of_the_ids() -> None:
    plan = plan_of(*sharing(340_263, 340_551, 340_144))
    assert not any(isinstance(getattr(plan, f), np.ndarray) for f in SyncPlan.__slots__)


# -- what a load costs ---------------------------------------------------------------------------

PAGE_BYTES = 30_000_000  # of 1,024 rows: 30 ms at 1 GB/s, as much as 30 tokens
START = Sizes(row_bytes=PAGE_BYTES // 1024)  # of a session that holds nothing yet


def start_plan(prompt: int, *rows: HeldRows, **others: Any) -> SyncPlan:
    wanted = Timeline.of(range(prompt))
    return plan_of(Timeline.empty(), wanted, *rows, **{"sizes": START, **others})


@pytest.mark.parametrize(("shared", "kept"), [(1, 0), (5, 0), (30, 0), (40, 40), (1_024, 1_024)])
def test_a_page_is_read_whole_however_few_rows_are_wanted(shared: int, kept: int) -> None:
    plan = start_plan(2_000, page(-9, 0, 1_024, shared, PAGE_BYTES))
    assert plan.kept == kept
    assert plan.kind is (PlanKind.LOAD if kept else PlanKind.COLD)
    assert plan.estimated_ms <= 2_000  # never more than to compute all of it


def test_a_record_takes_its_time_however_small_it_is() -> None:
    assert start_plan(100, page(-9, 0, 1, 1, 100)).kind is PlanKind.COLD
    assert start_plan(100, page(-9, 0, 8, 8, 100)).kind is PlanKind.LOAD
    slow = Rates(prefill_tokens_per_s=1000, load_ms_each=20.0)
    assert start_plan(100, page(-9, 0, 8, 8, 100), rates=slow).kind is PlanKind.COLD


def test_the_pages_that_are_worth_it_are_loaded_without_the_one_that_is_not() -> None:
    pages = [page(-9 - i, 1_024 * i, 1_024 * (i + 1), 2_053, PAGE_BYTES) for i in range(3)]
    plan = start_plan(3_000, *pages)
    assert (plan.kept, plan.kind, len(plan.parts)) == (2_048, PlanKind.LOAD, 2)
    live, wanted = sharing(1_024, 3_000, 1_024)
    plan = plan_of(live, wanted, page(-9, 1_024, 2_048, 1_029, PAGE_BYTES), sizes=START)
    assert (plan.kept, plan.kind) == (1_024, PlanKind.EXTEND)
    plan = plan_of(live, wanted, page(-9, 1_024, 2_048, 2_048, PAGE_BYTES), sizes=START)
    assert (plan.kept, plan.kind) == (2_048, PlanKind.LOAD)


@pytest.mark.parametrize(("at", "kind"), [(20, PlanKind.COLD), (1_024, PlanKind.LOAD)])
def test_a_snapshot_on_disk_costs_its_bytes_before_any_state_is_live(
    at: int, kind: PlanKind
) -> None:
    """A session that holds nothing does not know what a bounded part takes."""
    plan = plan_sync(
        Timeline.empty(),
        Timeline.of(range(2_000)),
        can_rewind=never,
        needs_snapshots=True,
        offers=Offers(
            (page(-9, 0, 1_024, 1_024, 1_000_000),),
            (HeldSnapshot(-10, at, True, RECURRENT.snapshot_bytes),),
            free_bytes=ROOMY,
        ),
        rates=RATES,
        sizes=START,
    )
    assert (plan.kind, plan.kept) == (kind, at if kind is PlanKind.LOAD else 0)


def test_a_snapshot_in_memory_is_found_behind_many_deeper_ones_on_disk() -> None:
    """They need a page of which few rows are wanted."""
    live, wanted = sharing(1_000, 1_100, 1_000)
    deeper = [HeldSnapshot(-20 - i, 1_001 + i, True, 150_000_000) for i in range(6)]
    plan = bounded(
        live,
        wanted,
        page(-9, 1_000, 2_024, 1_010, PAGE_BYTES),
        snapshots=((5, 900), *((s.snapshot_id, s.position, True, s.nbytes) for s in deeper)),
        can_rewind=lambda to: to == 1_000,
    )
    assert (plan.kept, plan.kind) == (1_000, PlanKind.EXTEND)
    edited = Timeline.of([*range(990), *range(5_000, 5_100)])
    plan = bounded(
        live,
        edited,
        page(-9, 0, 1_024, 990, PAGE_BYTES),
        snapshots=((5, 900), *((-20 - i, 980 + i, True, 150_000_000) for i in range(6))),
    )
    assert (plan.kept, plan.snapshot_id, plan.kind) == (900, 5, PlanKind.RESTORE)
