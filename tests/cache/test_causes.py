"""The whole vocabulary of causes, from outlines, images, tombstones and what the states say."""

from dataclasses import replace
from typing import Any

import pytest

from ds4tui.cache.causes import Cause, Lost, Side, divergence_cause
from ds4tui.cache.offers import HeldRows, Offers
from ds4tui.cache.outline import Outline, Turn, fork_points, turn_at
from ds4tui.cache.plan import SyncPlan, plan_sync
from ds4tui.cache.timeline import Timeline
from tests.cache.pictures import span, with_images
from tests.cache.test_plan import always, never, sharing

LENGTH = 10  # of every turn


def outline(*turns: tuple[str, str] | Turn) -> Outline:
    """Turns of 10 positions each: (role, text), or a Turn whose place is filled in."""
    laid: list[Turn] = []
    for i, turn in enumerate(turns):
        if isinstance(turn, tuple):
            turn = Turn(0, 0, turn[0], turn[1].encode())
        laid.append(replace(turn, start=i * LENGTH, end=(i + 1) * LENGTH))
    return tuple(laid)


def reply(text: str = "r", reasoning: bool = False, calls: bytes = b"") -> Turn:
    return Turn(0, 0, "assistant", text.encode(), reasoning, calls)


def system(text: str = "s", tools: bytes = b"") -> Turn:
    return Turn(0, 0, "system", text.encode(), tools_digest=tools)


U1, U2, U3 = ("user", "one"), ("user", "two"), ("user", "three")
OPENING = ("opening", "the digest of nothing")  # all are alike
HISTORY = (system(), U1, reply(), U2)
UNKNOWN = Turn(0, 0, "assistant", b"", has_reasoning=True)

CASES = [
    # what is held, what is wanted, where they part, the cause
    (HISTORY, (system("t"), U1, reply(), U2), 3, Cause.SYSTEM_TEXT_CHANGED),
    (HISTORY, (U1, reply(), U2), 0, Cause.SYSTEM_TEXT_CHANGED),
    ((U1, reply()), (system(), U1, reply()), 0, Cause.SYSTEM_TEXT_CHANGED),
    ((system(tools=b"x"), U1), (system(tools=b"y"), U1), 5, Cause.TOOLS_CHANGED),
    ((system("s", b"x"), U1), (system("t", b"y"), U1), 5, Cause.SYSTEM_TEXT_CHANGED),
    (HISTORY, (system(), U1, reply(), U3), 33, Cause.EARLY_MESSAGE_EDITED),
    (HISTORY, (system(), U3, reply(), U2), 12, Cause.EARLY_MESSAGE_EDITED),
    (HISTORY, (system(), U3, OPENING), 12, Cause.OTHER_CONVERSATION),
    ((*HISTORY, OPENING), (system(), U3, OPENING), 12, Cause.OTHER_CONVERSATION),
    ((U1, reply(), U2), (U3, reply("q")), 4, Cause.OTHER_CONVERSATION),
    (HISTORY, (system(), U1, reply("edited"), U2), 22, Cause.EARLY_MESSAGE_EDITED),
    (HISTORY, (system(), U1, U3), 20, Cause.EARLY_MESSAGE_EDITED),
    (HISTORY, (system(), U1, reply(), U2), 25, Cause.REPLY_RESERIALISED),
    ((system(), U1, OPENING), (system(), U1, reply(), U2), 24, Cause.REPLY_RESERIALISED),
    ((system(), U1, OPENING, UNKNOWN), (system(), U1, reply(), U2), 24, Cause.REPLY_RESERIALISED),
    ((system(), U1, UNKNOWN), (system(), U1, reply(), U2), 24, Cause.THINKING_DROPPED),
    ((system(), U1, reply("r", True), U2), (*HISTORY, OPENING), 21, Cause.THINKING_DROPPED),
    ((system(), U1, reply(calls=b"c")), (system(), U1, reply(calls=b"c")), 26,
     Cause.TOOL_ARGUMENTS_REORDERED),
    ((system(), U1, reply(calls=b"c")), (system(), U1, reply(calls=b"d")), 26,
     Cause.EARLY_MESSAGE_EDITED),
    # T02, T04: the template writes an old user turn otherwise than it wrote the last one.
    (HISTORY, (*HISTORY, U3), 38, Cause.THINKING_DROPPED),
]  # fmt: skip


@pytest.mark.parametrize(("held", "wanted", "at", "cause"), CASES)
def test_two_conversations_part_for_a_reason(
    held: tuple[Any, ...], wanted: tuple[Any, ...], at: int, cause: Cause
) -> None:
    was, now = outline(*held), outline(*wanted)
    sides = Side(len(was) * LENGTH, was, ()), Side(len(now) * LENGTH, now, ())
    assert divergence_cause(*sides, at) is cause


def test_where_one_side_ends_nothing_parted() -> None:
    was, now = Side(20, outline(U1, reply()), ()), Side(30, outline(U1, reply(), U2), ())
    assert divergence_cause(was, now, 20) is None
    assert divergence_cause(now, was, 20) is None


def test_what_was_sampled_behind_the_outline_is_a_reply() -> None:
    was, now = Side(25, outline(U1, OPENING), ()), Side(40, outline(U1, OPENING, reply(), U2), ())
    assert divergence_cause(was, now, 22) is Cause.REPLY_RESERIALISED


@pytest.mark.parametrize(
    ("sampled", "sent", "cause"),
    [
        # A block of thinking is left out before the reply goes on alike.
        ([90, 91, 92, 93, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6], Cause.THINKING_DROPPED),
        ([90, 92, 93, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6], Cause.THINKING_DROPPED),
        # A blank is left out; other ids for the same words.
        ([90, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6], Cause.REPLY_RESERIALISED),
        ([1, 2, 3, 90, 91], [1, 2, 3, 80, 81], Cause.REPLY_RESERIALISED),
        ([1, 2, 3, 90, 91], [1, 2, 80], Cause.REPLY_RESERIALISED),
    ],
)
def test_what_became_of_the_sampled_ids_tells_why(
    sampled: list[int], sent: list[int], cause: Cause
) -> None:
    prompt = list(range(1_000, 1_000 + 3 * LENGTH))
    plan = _plan(
        Timeline.of(prompt + sampled),
        Timeline.of([*prompt, *sent, *range(500, 520)]),
        live_outline=outline(system(), U1, OPENING),
        wanted_outline=(*outline(system(), U1), Turn(20, 30 + len(sent), "assistant", b"r")),
    )
    assert plan.cause is cause


def test_thinking_that_the_opening_begins_is_dropped_inside_it() -> None:
    """T02, T07: the opening ends in the mark of thinking, the history has none."""
    live = [*range(1_000, 1_029), 77, 90, 91, 92, 1, 2, 3, 4, 5]
    plan = _plan(
        Timeline.of(live),
        Timeline.of([*live[:29], 1, 2, 3, 4, 5, 6, 7]),
        live_outline=outline(system(), U1, OPENING),
        wanted_outline=(*outline(system(), U1), Turn(20, 36, "assistant", b"r")),
    )
    assert plan.cause is Cause.THINKING_DROPPED


def test_without_outlines_the_position_tells() -> None:
    assert _plan(*sharing(20, 30, 10)).cause is Cause.EARLY_MESSAGE_EDITED
    assert _plan(*sharing(20, 30, 0)).cause is Cause.OTHER_CONVERSATION


A, B, C = span(0, name=1), span(0, name=2), span(0, name=3)


@pytest.mark.parametrize(
    ("live", "wanted", "cause"),
    [
        ((1, A, 2), (1, B, 2, 3), Cause.IMAGE_REPLACED),
        ((1, A, 2, B), (1, C, 2, B), Cause.IMAGE_REPLACED),
        ((1, A, 2), (1, 2, 3), Cause.IMAGE_REMOVED),
        # T62: only the newest screenshots are kept by the client.
        ((1, A, B, 2), (1, B, C, 2), Cause.IMAGE_REMOVED),
        ((1, A, 2), (1, 9, A, 2), Cause.EARLY_MESSAGE_EDITED),
        ((1, A, 2), (1, A, 2, B), None),
        # The same picture stands twice: they are counted.
        ((1, A, 2, A, 3), (1, 8, 9, 2, A, 3, 4), Cause.IMAGE_REMOVED),
        ((1, A, 2, A, 3), (1, 2, A, 3, 4), Cause.IMAGE_REMOVED),
        ((1, A, 2, B, 3), (1, B, 2, B, 3, 4), Cause.IMAGE_REPLACED),
        ((1, A, 2, A, 3), (1, B, 2, A, 3, 4), Cause.IMAGE_REPLACED),
        ((1, A, 2, B, 3), (1, B, 2, A, 3, 4), Cause.IMAGE_REPLACED),  # they changed places
        ((1, A, 2), (1, B, A, 2), Cause.EARLY_MESSAGE_EDITED),  # one was put in
        # Blank lines around a picture, which go with it.
        ((1, 77, A, 77, 2), (1, 2, 3, 4, 5), Cause.IMAGE_REMOVED),
        ((1, 77, A, 77, 2), (1, 8, 9, 2, 3, 4), Cause.IMAGE_REMOVED),
        ((1, 77, A, 77, 2), (1, 78, B, 77, 2), Cause.IMAGE_REPLACED),
        ((1, 77, A, 77, 2, 77, A, 77), (1, 2, 77, A, 77), Cause.IMAGE_REMOVED),
        ((1, 2, 77, A, 77, 2), (1, 3, 77, A, 77, 2), Cause.EARLY_MESSAGE_EDITED),
        ((1, 2, 3, 4, 5, 6, A, 7), (1, 9, 9, 9, 9, 9, 9, 9), Cause.EARLY_MESSAGE_EDITED),
    ],
)
def test_images(live: tuple[Any, ...], wanted: tuple[Any, ...], cause: Cause | None) -> None:
    assert _plan(with_images(*live), with_images(*wanted)).cause is cause


def test_a_picture_of_the_next_turn_is_no_cause_in_this_one() -> None:
    """The end of a reply is edited, and the picture behind it is gone, too."""
    live, wanted = with_images(*range(20), A, 50, 51), with_images(*range(19), 90, 50, 51, 52)
    turns = (Turn(0, 10, "system", b"s"), Turn(10, 20, "assistant", b"was"))
    sides = {
        "live_outline": (*turns, Turn(20, 25, "user", b"u")),
        "wanted_outline": (turns[0], Turn(10, 20, "assistant", b"is"), Turn(20, 23, "user", b"u")),
    }
    assert _plan(live, wanted, **sides).cause is Cause.EARLY_MESSAGE_EDITED
    assert _plan(live, wanted).cause is Cause.IMAGE_REMOVED  # nothing says where a turn ends


def _plan(live: Timeline, wanted: Timeline, **others: Any) -> SyncPlan:
    return plan_sync(live, wanted, **{"can_rewind": always, **others})


def _bounded(live: Timeline, wanted: Timeline, *lost: Lost, **others: Any) -> SyncPlan:
    return _plan(
        live,
        wanted,
        can_rewind=never,
        needs_snapshots=True,
        offers=Offers(lost=lost, free_bytes=10**9),
        **others,
    )


def test_new_tokens_have_no_cause() -> None:
    """Invariant 5."""
    assert _plan(*sharing(0, 10, 0)).cause is None
    assert _plan(*sharing(10, 20, 10)).cause is None
    assert _plan(*sharing(20, 10, 10)).cause is None
    back = HeldRows(1, "parked", 0, 30, 30, can_rewind=always)
    assert _plan(*sharing(10, 40, 4), offers=Offers((back,))).cause is None


def test_states_that_are_gone() -> None:
    assert _plan(*sharing(5, 9, 5), poisoned="a fault").cause is Cause.SESSION_POISONED
    assert _plan(*sharing(5, 9, 0), poisoned="a fault").cause is None  # nothing of it was lost
    assert _plan(*sharing(0, 9, 0), emptied=Cause.MODEL_CHANGED).cause is Cause.MODEL_CHANGED
    kept = _plan(*sharing(5, 9, 5), emptied=Cause.MODEL_CHANGED)
    assert kept.cause is None


def test_a_window_that_wrapped() -> None:
    live, wanted = sharing(1_000, 900, 900)
    assert _bounded(live, wanted, has_window=True).cause is Cause.WINDOW_WRAPPED
    within = _plan(live, wanted, needs_snapshots=True, has_window=True)
    assert (within.kept, within.cause) == (899, None)


def test_a_snapshot_that_was_evicted() -> None:
    lost = Lost(Cause.SNAPSHOT_EVICTED, 850)
    plan = _bounded(*sharing(1_000, 900, 900), lost, has_window=True)
    assert plan.cause is Cause.SNAPSHOT_EVICTED
    beyond = Lost(Cause.SNAPSHOT_EVICTED, 899)  # of no use: all before 850 is shared
    assert _bounded(*sharing(1_000, 900, 850), beyond).cause is Cause.EARLY_MESSAGE_EDITED


def test_a_branch_that_was_evicted() -> None:
    lost = Lost(Cause.BRANCH_EVICTED, 800)
    assert _bounded(*sharing(1_000, 900, 100), lost).cause is Cause.BRANCH_EVICTED
    # It has been computed again meanwhile: nothing is missed.
    assert _plan(*sharing(850, 900, 850), offers=Offers(lost=(lost,))).cause is None


def test_the_cause_is_sought_where_most_is_shared() -> None:
    """The live state is another conversation, the parked one is this one with an edit."""
    mine = outline(U1, reply(), U2)
    other = outline(("user", "else"), reply("else"))
    near = HeldRows(1, "parked", 0, 30, 25, can_rewind=always, outline=mine)
    plan = _plan(
        *sharing(20, 30, 2),
        offers=Offers((near,)),
        live_outline=other,
        wanted_outline=outline(U1, reply(), U3),
    )
    assert (plan.kept, plan.cause) == (25, Cause.EARLY_MESSAGE_EDITED)


def test_what_cannot_be_reached_explains_nothing() -> None:
    """A segment that shares more, but rows before it are nowhere: not where they part."""
    mine, theirs = outline(U1, reply(), U2), outline(U1, reply(), U3)
    far = HeldRows(1, "segment", 22, 30, 28, outline=theirs)
    sides = {"live_outline": mine, "wanted_outline": outline(U1, reply("edited"), U3)}
    plan = _plan(*sharing(30, 30, 15), offers=Offers((far,)), **sides)
    assert (plan.held, plan.cause) == (15, Cause.EARLY_MESSAGE_EDITED)
    tools = outline(system(tools=b"x"), U1, U2), outline(system(tools=b"y"), U1, U2)
    sides = {"live_outline": tools[0], "wanted_outline": tools[1]}
    assert _plan(*sharing(30, 30, 5), offers=Offers((far,)), **sides).cause is Cause.TOOLS_CHANGED


def test_fork_points_are_borders_of_turns_and_images() -> None:
    timeline = with_images(1, 2, A, 3)
    turns = (Turn(0, 1, "user", b""), Turn(1, 4, "user", b""), Turn(4, 6, "user", b""))
    assert fork_points(timeline, turns) == (1, 2, 5, 6)  # 4 would cut the image
    assert turn_at(turns, 3) == turns[1]
    assert turn_at(turns, 6) is None
