"""plan_sync: table of cases with the numbers that founded the project, and its laws."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.cache.causes import Cause, Lost
from ds4tui.cache.offers import HeldRows, Offers, Rates, Sizes
from ds4tui.cache.plan import Divergence, PlanKind, SyncPlan, plan_sync
from ds4tui.cache.timeline import Timeline
from tests.cache.pictures import span, with_images
from tests.scale import scaled


def always(to: int) -> bool:
    return True


def never(to: int) -> bool:
    return False


def must_not_ask(to: int) -> bool:
    raise AssertionError(f"asked for a rewind to {to}")


def sharing(live: int, prompt: int, common: int) -> tuple[Timeline, Timeline]:
    """A live and a wanted timeline of those lengths that share `common` ids."""
    ids = np.arange(max(live, prompt))
    other = ids[:prompt].copy()
    other[common:] += 1_000_000
    return Timeline.of(ids[:live]), Timeline.of(other)


FOUNDING = [
    # live, prompt, common: kind, kept, evaluated, reason
    (
        (165_755, 4_977, 4_977),
        (PlanKind.REWIND, 4_976, 1),
        "one token evaluated again: the whole prompt is resident; 160,778 tokens after it dropped",
    ),
    (
        (165_755, 4_977, 4_973),
        (PlanKind.REWIND, 4_973, 4),
        "fork at 4,973 (early message edited): 160,782 tokens of the old branch dropped, 4 new",
    ),
    (
        (340_263, 340_551, 340_144),
        (PlanKind.REWIND, 340_144, 407),
        "fork at 340,144 (early message edited): 119 tokens of the old branch dropped, 407 new",
    ),
    (
        (4_973, 5_385, 4_973),
        (PlanKind.EXTEND, 4_973, 412),
        "412 new tokens after 4,973 that are resident",
    ),
    (
        (4_973, 4_974, 4_973),
        (PlanKind.EXTEND, 4_973, 1),
        "1 new token after 4,973 that are resident",
    ),
    (
        (4_977, 4_977, 4_977),
        (PlanKind.REWIND, 4_976, 1),
        "one token evaluated again: the whole prompt is resident",
    ),
    ((0, 900, 0), (PlanKind.COLD, 0, 900), "nothing is resident: 900 tokens from the start"),
    (
        (50, 900, 0),
        (PlanKind.COLD, 0, 900),
        "nothing in common with the 50 tokens that are resident: 900 tokens from the start",
    ),
    (
        (50, 1, 1),
        (PlanKind.COLD, 0, 1),
        "the prompt has nothing before its last token: 1 token from the start",
    ),
]


@pytest.mark.parametrize(("sizes", "expected", "reason"), FOUNDING)
def test_the_founding_numbers(
    sizes: tuple[int, int, int], expected: tuple[PlanKind, int, int], reason: str
) -> None:
    live, prompt, common = sizes
    plan = plan_sync(*sharing(live, prompt, common), can_rewind=always)
    assert (plan.live, plan.prompt, plan.common) == (live, prompt, common)
    assert (plan.kind, plan.kept, plan.to_evaluate) == expected
    assert plan.dropped == live - plan.kept
    assert plan.reason == reason
    kept = plan.kind is not PlanKind.COLD
    assert plan.source == ("memory" if kept else "none")
    assert plan.grade == ("restore-exact" if kept else "recompute-equal")


def test_extending_asks_for_no_rewind() -> None:
    assert plan_sync(*sharing(10, 20, 10), can_rewind=must_not_ask).kind is PlanKind.EXTEND


def test_a_state_that_cannot_rewind_makes_the_plan_cold() -> None:
    asked = []

    def refuse(to: int) -> bool:
        asked.append(to)
        return False

    plan = plan_sync(*sharing(20, 15, 9), can_rewind=refuse)
    assert asked == [9]
    assert (plan.kind, plan.kept, plan.dropped, plan.to_evaluate) == (PlanKind.COLD, 0, 20, 15)
    assert plan.common == 9
    assert plan.reason == "the state cannot go back from 20 to 9: 15 tokens from the start"


def test_a_poisoned_state_keeps_nothing_and_says_why() -> None:
    live, wanted = sharing(20, 25, 20)
    plan = plan_sync(live, wanted, can_rewind=must_not_ask, poisoned="the device failed")
    assert (plan.kind, plan.kept, plan.to_evaluate) == (PlanKind.COLD, 0, 25)
    assert plan.reason == "the state was given up (the device failed): 25 tokens from the start"


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        plan_sync(Timeline.of([1]), Timeline.empty(), can_rewind=always)


def test_the_divergence_shows_both_sides() -> None:
    plan = plan_sync(
        Timeline.of(range(100)),
        Timeline.of([*range(50), *range(500, 503)]),
        can_rewind=always,
    )
    assert plan.divergence == Divergence(50, tuple(range(42, 58)), (*range(42, 50), 500, 501, 502))
    early = plan_sync(Timeline.of([1, 2, 3]), Timeline.of([1, 9]), can_rewind=never)
    assert early.divergence == Divergence(1, (1, 2, 3), (1, 9))


@pytest.mark.parametrize("sizes", [(5, 9, 5), (9, 5, 5), (5, 5, 5), (0, 5, 0)])
def test_a_prefix_does_not_diverge(sizes: tuple[int, int, int]) -> None:
    assert plan_sync(*sharing(*sizes), can_rewind=always).divergence is None


A, B, C = span(0, name=1), span(0, name=2), span(0, name=3)


@pytest.mark.parametrize(
    ("live", "wanted", "images", "kept"),
    [
        ((1, 2), (1, 2, 3), "none", 2),
        ((1, 2), (1, 2, A, 3), "none", 2),
        ((1, A, 2), (1, A, 2, 3), "match", 5),
        ((1, A, 2), (1, A, 2, B, 3), "match", 5),
        ((1, A, 2, 3), (1, A, 9), "match", 4),
        ((1, A, 2), (1, B, 2), "changed", 1),
        ((1, A, 2, B, 3), (1, A, 2, C, 3), "changed", 5),
        ((1, A, 2), (1, 2, 3), "removed", 1),
        ((1, A, 2, B, 3), (1, A, 2, 5), "removed", 5),
        ((1, A, 2, B, 3), (1, A, 2, A, 3), "changed", 5),
        # Only the newest screenshots are kept by the client: the oldest has gone.
        ((1, A, B, 2), (1, B, C, 2), "removed", 1),
        # The same one stands twice, or comes to: they are counted.
        ((1, A, 2, A, 3), (1, 2, A, 3), "removed", 1),
        ((1, A, 2, B, 3), (1, B, 2, B, 3), "changed", 1),
        ((1, A, 2, B, 3), (1, B, 2, A, 3), "changed", 1),
        # The prompt ends in an image that is resident: it is evaluated again as a whole.
        ((1, A, 2), (1, A), "match", 1),
    ],
)
def test_images(live: tuple, wanted: tuple, images: str, kept: int) -> None:
    plan = plan_sync(with_images(*live), with_images(*wanted), can_rewind=always)
    assert (plan.images, plan.kept) == (images, kept)


def test_a_resident_image_at_the_end_is_evaluated_again() -> None:
    plan = plan_sync(with_images(1, A), with_images(1, A), can_rewind=always)
    assert plan.to_evaluate == 3
    assert plan.reason == "3 tokens evaluated again: the whole prompt is resident"


ids_lists = st.lists(st.integers(0, 2), max_size=12)


@given(ids_lists, ids_lists.filter(bool), st.integers(0, 12), st.booleans())
@settings(max_examples=scaled(200))
def test_the_laws(live: list[int], wanted: list[int], slack: int, is_poisoned: bool) -> None:
    def within_slack(to: int) -> bool:
        return len(live) - to <= slack

    plan = _plan(live, wanted, within_slack, is_poisoned)
    assert plan.kept + plan.to_evaluate == plan.prompt == len(wanted)
    assert plan.to_evaluate >= 1
    assert 0 <= plan.kept <= plan.common <= min(plan.live, plan.prompt)
    assert plan.dropped == plan.live - min(plan.kept, plan.common)
    assert live[: plan.kept] == wanted[: plan.kept]
    assert (plan.kind is PlanKind.COLD) == (plan.kept == 0)
    assert (plan.kind is PlanKind.EXTEND) == (0 < plan.kept == plan.live)
    if plan.kind is PlanKind.REWIND:
        assert within_slack(plan.kept)
    if not is_poisoned and slack >= len(live):  # nothing in the way: nothing kept too little
        assert plan.kept == min(plan.common, len(wanted) - 1)
    assert plan == _plan(live, wanted, within_slack, is_poisoned)


def _plan(
    live: list[int], wanted: list[int], can_rewind: Callable[[int], bool], is_poisoned: bool
) -> SyncPlan:
    return plan_sync(
        Timeline.of(live),
        Timeline.of(wanted),
        can_rewind=can_rewind,
        poisoned="a reason" if is_poisoned else None,
    )


def test_what_is_only_slower_is_not_told_as_impossible() -> None:
    """Copying takes longer than computing, and the live state is worth more than it spares."""
    live, wanted = sharing(1_000, 110, 10)
    slow = Rates(prefill_tokens_per_s=1000, copy_bytes_per_s=100)
    offers = Offers(free_bytes=10**9)
    plan = plan_sync(live, wanted, can_rewind=always, rates=slow, offers=offers, sizes=Sizes(1))
    assert (plan.kind, plan.held, plan.put_away) == (PlanKind.COLD, 10, "whole")
    assert plan.reason.startswith(
        "the 10 tokens that are held are computed sooner than copied: 110 tokens from the start"
    )
    stuck = plan_sync(live, wanted, can_rewind=never, rates=slow, offers=offers, sizes=Sizes(1))
    assert stuck.reason.startswith("the state cannot go back from 1,000 to 10")


def test_no_cause_where_all_that_is_evaluated_is_new() -> None:
    """Invariant 5, whatever went on before."""
    lost = (Lost(Cause.BRANCH_EVICTED, 100), Lost(Cause.SNAPSHOT_EVICTED, 99))
    for common in (99, 100):  # another last token, and the same
        live, wanted = sharing(300, 100, common)
        plan = plan_sync(live, wanted, can_rewind=always, offers=Offers(lost=lost))
        assert (plan.kept, plan.cause) == (99, None)
    goes_on = sharing(100, 140, 100)
    assert plan_sync(*goes_on, can_rewind=always, offers=Offers(lost=lost)).cause is None
    held = HeldRows(3, "segment", 0, 100, 100)
    offers = Offers((held,), free_bytes=10**9)
    plan = plan_sync(
        Timeline.empty(),
        goes_on[1],
        can_rewind=always,
        offers=offers,
        emptied=Cause.MODEL_CHANGED,
        poisoned="a fault",
    )
    assert (plan.kept, plan.cause) == (100, None)
