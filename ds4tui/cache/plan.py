"""How a session gets from its timeline to a wanted one, as a pure value with its reason.

`plan_sync` decides, nothing here acts: the session executes a SyncPlan, the log, the panel and
HTTP show it. Look-ups (`Offers`) happen before and are passed in, capability is a question to the
states (`can_rewind`), asked before anything changes. Which ways there are and what each costs is
`cache.candidates`; the words are `cache.reasons` and `cache.causes`.

The kinds: `extend` keeps all that is live, `rewind` a prefix of it and nothing else, `restore`
takes anything from a parked state, a segment or a snapshot, `load` anything from disk, `cold`
starts from nothing. Invariants (tests name them; those of ways are in `cache.candidates`):

  (1) kept + to_evaluate = prompt, to_evaluate >= 1, dropped = live - min(kept, common).
  (2) A prompt that is wholly resident costs one token (or the image it ends in) on every family,
      if a state or snapshot stands just before it.
  (3) Planning changes nothing, and the same arguments give the same plan.
  (4) An id is compared once with the live timeline; no copy of a timeline is made.
  (5) A cause is given whenever something that was computed before is computed again, as far as
      the vocabulary has a word for it; never when all that is evaluated is new.

**Grade.** What is kept is *restore-exact*: bit for bit the rows that were computed for these ids,
since truncating, parking and copying leave them untouched. A `cold` plan keeps nothing and is
*recompute-equal*: the same mathematics, perhaps in other chunks than an earlier run of the same
prompt, so its numbers may differ from that run's by rounding. (What is evaluated again beside
kept rows is likewise recompute-equal; only the kept rows are exact.)
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

from ds4tui.cache.candidates import Base, PutAway, RowPart, Situation, Way, best_way, covered_to
from ds4tui.cache.causes import Cause, Lost, Side, divergence_cause, left_out, lost_cause
from ds4tui.cache.offers import (
    DEFAULT_RATES,
    HOLDER_LIVE,
    NO_OFFERS,
    HeldRows,
    Offers,
    Rates,
    Sizes,
)
from ds4tui.cache.outline import Outline, turn_at
from ds4tui.cache.reasons import reason
from ds4tui.cache.timeline import Timeline

__all__ = ["Base", "Divergence", "PlanKind", "PutAway", "RowPart", "SyncPlan", "plan_sync"]

# "memory" (the live state), "parked", "segment", "snapshot", "disk", joined by "+"; or "none".
Source = str
Grade = Literal["restore-exact", "recompute-equal"]
Images = Literal["match", "changed", "removed", "none"]

# Enough to recognise the words around a divergence in a log or panel, few enough for one line.
_WINDOW = 8

NO_SIZES = Sizes()
_NOTHING = Side(0, (), ())


class PlanKind(StrEnum):
    EXTEND = "extend"
    REWIND = "rewind"
    RESTORE = "restore"
    LOAD = "load"
    COLD = "cold"


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where two timelines part: `position` is the first id that they do not share (the start of
    the image where that is an image row). The windows are the ids of both sides from up to 8
    before it to up to 8 after (positions [position - 8, position + 8))."""

    position: int
    live_window: tuple[int, ...]
    wanted_window: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """Counts are tokens; see the invariants above.

    `images` says how the live images fare: `match` (all are in the prompt, in the same order; new
    ones may follow), `changed` (the first that does not has another picture in its place),
    `removed` (it is gone), `none` (no image is live).

    How it is done: go on with `base`, of which the first `base_rows` rows stay ("live": the
    session's own state; "parked": the tier's `base_id`; "fresh": a new state); copy `parts`
    behind them, up to `kept`; set the bounded part from `snapshot_id` (it stands at `kept`), or
    leave it to the base's own rewind if that is None.

    `put_away` is what becomes of the live state first: "nothing" is left of it that is not held
    elsewhere, it is parked "whole", its "tail" [tail_start, live) is copied into a segment as far
    as nobody else holds it, or that is given up ("drop"). `base_tail` says the same of the rows of
    a parked base from `base_rows` on. That takes `put_away_bytes`, for something worth `worth_ms`
    or more; `lacking_bytes` must go from the tier before the plan is executed, only what is worth
    less if anything is put away.

    `held` is the longest prefix that anything resident matches, `replayed` what of it is
    computed again although its rows are there (the bounded part was not). `cause` is why anything
    must be evaluated again, None if all of it is new.
    """

    kind: PlanKind
    kept: int
    dropped: int
    to_evaluate: int
    live: int
    prompt: int
    common: int
    source: Source
    grade: Grade
    images: Images
    divergence: Divergence | None
    reason: str
    held: int = 0
    replayed: int = 0
    base: Base = "live"
    base_id: int | None = None
    base_rows: int = 0
    base_tail: PutAway = "nothing"
    parts: tuple[RowPart, ...] = ()
    snapshot_id: int | None = None
    put_away: PutAway = "nothing"
    estimated_ms: float = 0.0
    cause: Cause | None = None
    put_away_bytes: int = 0
    worth_ms: float = math.inf
    lacking_bytes: int = 0
    leans_on: frozenset[int] = frozenset()

    @property
    def uses(self) -> frozenset[int]:
        """Ids of all that the plan takes from the memory tier, or need not copy since it is
        there: nothing of it may be evicted."""
        ids = {part.holder for part in self.parts if part.holder != HOLDER_LIVE}
        ids |= {i for i in (self.base_id, self.snapshot_id) if i is not None}
        return self.leans_on | ids

    @property
    def tail_start(self) -> int:
        """The first of the live state's rows that the wanted state does not keep."""
        return self.live - self.dropped


def plan_sync(
    live: Timeline,
    wanted: Timeline,
    *,
    can_rewind: Callable[[int], bool],
    needs_snapshots: bool = False,
    poisoned: str | None = None,
    offers: Offers = NO_OFFERS,
    rates: Rates = DEFAULT_RATES,
    sizes: Sizes = NO_SIZES,
    live_outline: Outline = (),
    wanted_outline: Outline = (),
    has_window: bool = False,
    emptied: Cause | None = None,
) -> SyncPlan:
    """The cheapest true way from `live` to `wanted`: the least estimated time, where a branch that
    is given up counts half of what it took to compute; ties to fewer tokens.

    `can_rewind(to)` says whether the live state can be truncated to its first `to` positions; it
    is asked at most once for a position, and not when nothing has to be dropped.
    `needs_snapshots`: some layer has a bounded part; `has_window`: one is a window. `poisoned` is
    why the live state cannot be trusted, None when it can; `emptied` why nothing is live, where
    that is to be told. A wanted timeline that is wholly resident has its last token (or the image
    it ends in) evaluated again: its logits are needed.

    Raises ValueError for an empty `wanted`: there is nothing to evaluate.
    """
    if not len(wanted):
        raise ValueError("an empty timeline cannot be evaluated")
    common = live.common_prefix(wanted)
    is_trusted = poisoned is None
    if not is_trusted:
        offers = replace(offers, lost=(*offers.lost, Lost(Cause.SESSION_POISONED, common)))
    situation = Situation(
        live=len(live) if is_trusted else 0,
        common=common if is_trusted else 0,
        prompt=len(wanted),
        # Some row must be evaluated to get logits: the last one, or the image it belongs to.
        limit=wanted.snapped(len(wanted) - 1),
        can_rewind=can_rewind,
        needs_snapshots=needs_snapshots,
        offers=offers,
        rates=rates,
        sizes=sizes,
    )
    held = covered_to(situation.holders())
    way = best_way(situation)
    replayed = max(0, min(held, situation.limit) - way.kept)
    cause = _cause(
        situation,
        way,
        held,
        _live_side(live, wanted, common, live_outline) if is_trusted else _NOTHING,
        Side(len(wanted), wanted_outline, wanted.spans),
        has_window=has_window,
        emptied=emptied,
    )
    return SyncPlan(
        kind=_kind(situation, way),
        kept=way.kept,
        dropped=len(live) - min(way.kept, common),
        to_evaluate=len(wanted) - way.kept,
        live=len(live),
        prompt=len(wanted),
        common=common,
        source="+".join(_sources(situation, way)) or "none",
        grade="restore-exact" if way.kept else "recompute-equal",
        images=_images(live, wanted),
        divergence=_divergence(live, wanted, common),
        reason=reason(situation, way, held, cause, poisoned),
        held=held,
        replayed=replayed,
        base=way.base,
        base_id=way.base_id,
        base_rows=way.base_rows,
        base_tail=way.base_tail,
        parts=way.parts,
        snapshot_id=way.snapshot.snapshot_id if way.snapshot is not None else None,
        put_away=way.put_away,
        estimated_ms=way.estimated_ms,
        cause=cause,
        put_away_bytes=way.put_away_bytes,
        worth_ms=way.worth_ms,
        lacking_bytes=way.lacking_bytes,
        leans_on=way.leans_on,
    )


def _live_side(live: Timeline, wanted: Timeline, common: int, outline: Outline) -> Side:
    # A reply is sampled behind the last prompt; the opening may begin its thinking.
    last = outline[-1] if outline else None
    is_reply = last is not None and (last.end <= common or turn_at(outline, common) == last)
    skipped = left_out(live, wanted, common) if is_reply else 0
    return Side(len(live), outline, live.spans, skipped)


def _cause(
    situation: Situation,
    way: Way,
    held: int,
    live: Side,
    wanted: Side,
    *,
    has_window: bool,
    emptied: Cause | None,
) -> Cause | None:
    if way.kept == situation.limit:
        return None  # what is evaluated is new, or must be for its logits
    nearest = None if situation.common == held else _nearest(situation.offers.rows, held)
    side = live if nearest is None else Side(nearest.end, nearest.outline, nearest.spans)
    why_parted = divergence_cause(side, wanted, held) if side.length else None
    replayed = min(held, situation.limit) - way.kept
    lost = lost_cause(situation.offers.lost, held, way.kept, min(held, situation.limit))
    if lost is not None:
        return lost
    # Two things may be at work: the one that costs more is told.
    if has_window and replayed > max(0, situation.prompt - held if why_parted else 0):
        return Cause.WINDOW_WRAPPED
    return why_parted or (emptied if not held else None)


def _nearest(rows: Sequence[HeldRows], held: int) -> HeldRows | None:
    """The holder that shares all that is held, where the live state does not."""
    return next((rows_ for rows_ in rows if rows_.reach == held), None)


def _kind(situation: Situation, way: Way) -> PlanKind:
    if not way.kept:
        return PlanKind.COLD
    sources = _sources(situation, way)
    if "disk" in sources:
        return PlanKind.LOAD
    if sources != ["memory"]:
        return PlanKind.RESTORE
    is_whole = way.base == "live" and way.kept == situation.live
    return PlanKind.EXTEND if is_whole else PlanKind.REWIND


def _sources(situation: Situation, way: Way) -> list[str]:
    kinds = {held.holder_id: held.kind for held in situation.offers.rows}
    kinds[HOLDER_LIVE] = "live"
    used = {kinds[part.holder] for part in way.parts}
    if way.base != "fresh":
        used.add("live" if way.base == "live" else "parked")
    names = {"memory": "live" in used, "parked": "parked" in used, "segment": "segment" in used}
    on_disk = way.snapshot is not None and way.snapshot.on_disk
    names["snapshot"] = way.snapshot is not None and not on_disk
    names["disk"] = "page" in used or on_disk
    return [name for name, is_used in names.items() if is_used]


def _images(live: Timeline, wanted: Timeline) -> Images:
    resident = [span.fingerprint for span in live.spans]
    asked = [span.fingerprint for span in wanted.spans]
    if not resident:
        return "none"
    for place, fingerprint in enumerate(resident):
        if place == len(asked):
            return "removed"
        if asked[place] != fingerprint:
            now = asked[place]
            is_gone = asked.count(fingerprint) < resident.count(fingerprint)
            is_new = asked.count(now) > resident.count(now)  # or it has moved up
            return "removed" if is_gone and not is_new else "changed"
    return "match"


def _divergence(live: Timeline, wanted: Timeline, common: int) -> Divergence | None:
    if common in (len(live), len(wanted)):
        return None
    return Divergence(common, _window(live, common), _window(wanted, common))


def _window(timeline: Timeline, position: int) -> tuple[int, ...]:
    window = timeline.ids[max(0, position - _WINDOW) : position + _WINDOW]
    return tuple(int(i) for i in window)
