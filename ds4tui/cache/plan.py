"""How a session gets from its timeline to a wanted one, as a pure value with its reason.

`plan_sync` decides, nothing here acts: the session executes a SyncPlan, the log, the panel and
HTTP show it. Capability is a question to the state (`can_rewind`), asked before anything
changes. The kinds: `extend` keeps all that is resident, `rewind` truncates to a prefix of it,
`cold` starts from nothing.

**Grade.** What `extend` and `rewind` keep is *restore-exact*: the kept rows are bit for bit what
they were when they were first reached, since truncation leaves them untouched. A `cold` plan
keeps nothing and is *recompute-equal*: the same mathematics, perhaps in other chunks than an
earlier run of the same prompt, so its numbers may differ from that run's by rounding. (A cold
run beside a kept state is likewise recompute-equal to it; only the kept rows are exact.)
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from ds4tui.cache.causes import Cause
from ds4tui.cache.offers import DEFAULT_RATES, HOLDER_LIVE, NO_OFFERS, Offers, Rates, Sizes
from ds4tui.cache.outline import Outline
from ds4tui.cache.timeline import Timeline

# "memory" (the live state), "parked", "segment", "snapshot", "disk", joined by "+"; or "none".
Source = str
Grade = Literal["restore-exact", "recompute-equal"]
Base = Literal["live", "parked", "fresh"]
PutAway = Literal["nothing", "whole", "tail", "drop"]
Images = Literal["match", "changed", "removed", "none"]

# Enough to recognise the words around a divergence in a log or panel, few enough for one line.
_WINDOW = 8


NO_SIZES = Sizes()


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
class RowPart:
    """Rows [start, end) are copied from `holder`, a HeldRows id or HOLDER_LIVE."""

    holder: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """Counts are tokens. kept + to_evaluate = prompt, to_evaluate >= 1, kept <= common,
    dropped = live - kept.

    `images` says how the resident images fare: `match` (all are in the prompt, in the same
    order; new ones may follow), `changed` (the first that does not has another picture in its
    place), `removed` (it is gone), `none` (no image is resident).
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

    @property
    def uses(self) -> frozenset[int]:
        """Ids of all that the plan takes from the memory tier: nothing of it may be evicted."""
        ids = {part.holder for part in self.parts if part.holder != HOLDER_LIVE}
        return frozenset(ids | {i for i in (self.base_id, self.snapshot_id) if i is not None})


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
    """The cheapest true way from `live` to `wanted`.

    `can_rewind(to)` says whether the state can be truncated to its first `to` positions; it is
    asked at most once, and not when nothing has to be dropped. `poisoned` is why the live state
    cannot be trusted, None when it can. A wanted timeline that is wholly resident has its last
    token (or the image it ends in) evaluated again: its logits are needed.

    Raises ValueError for an empty `wanted`: there is nothing to evaluate.
    """
    if not len(wanted):
        raise ValueError("an empty timeline cannot be evaluated")
    common = live.common_prefix(wanted)
    # Some row must be evaluated to get logits: the last one, or the image it belongs to.
    keepable = min(common, wanted.snapped(len(wanted) - 1))
    obstacle = _obstacle(live, common, keepable, can_rewind, poisoned)
    kept = 0 if obstacle else keepable
    dropped = len(live) - kept
    return SyncPlan(
        held=common,
        replayed=keepable - kept,
        base="live" if kept else "fresh",
        base_rows=kept,
        put_away="drop" if dropped else "nothing",
        estimated_ms=rates.prefill_ms(len(wanted) - kept),
        kind=_kind(kept, len(live)),
        kept=kept,
        dropped=len(live) - kept,
        to_evaluate=len(wanted) - kept,
        live=len(live),
        prompt=len(wanted),
        common=common,
        source="memory" if kept else "none",
        grade="restore-exact" if kept else "recompute-equal",
        images=_images(live, wanted),
        divergence=_divergence(live, wanted, common),
        reason=(
            f"{obstacle}: {_tokens(len(wanted))} from the start"
            if obstacle
            else _reason(len(live), len(wanted), common, kept)
        ),
    )


def _kind(kept: int, live: int) -> PlanKind:
    if not kept:
        return PlanKind.COLD
    return PlanKind.EXTEND if kept == live else PlanKind.REWIND


def _obstacle(
    live: Timeline,
    common: int,
    keepable: int,
    can_rewind: Callable[[int], bool],
    poisoned: str | None,
) -> str:
    """Why nothing can be kept, in words; "" if something can."""
    if poisoned is not None:
        return f"the state was given up ({poisoned})"
    if not len(live):
        return "nothing is resident"
    if not common:
        return f"nothing in common with the {_tokens(len(live))} that are resident"
    if not keepable:
        return "the prompt has nothing before its last token"
    if keepable < len(live) and not can_rewind(keepable):
        return f"the state cannot go back from {len(live):,} to {keepable:,}"
    return ""


def _reason(live: int, prompt: int, common: int, kept: int) -> str:
    dropped, new = live - kept, prompt - kept
    if not dropped:
        return f"{_tokens(new, 'new ')} after {kept:,} that are resident"
    if common == prompt:
        again = "one token" if new == 1 else _tokens(new)
        rest = f"; {_tokens(live - common)} after it dropped" if live > common else ""
        return f"{again} evaluated again: the whole prompt is resident{rest}"
    return f"fork at {kept:,}: {_tokens(dropped)} of the old branch dropped, {new:,} new"


def _tokens(count: int, adjective: str = "") -> str:
    return f"{count:,} {adjective}token{'' if count == 1 else 's'}"


def _images(live: Timeline, wanted: Timeline) -> Images:
    resident = [span.fingerprint for span in live.spans]
    asked = [span.fingerprint for span in wanted.spans]
    if not resident:
        return "none"
    for place, fingerprint in enumerate(resident):
        if place == len(asked):
            return "removed"
        if asked[place] != fingerprint:
            # A later picture that has moved up means that one before it is gone.
            return "removed" if asked[place] in resident[place:] else "changed"
    return "match"


def _divergence(live: Timeline, wanted: Timeline, common: int) -> Divergence | None:
    if common in (len(live), len(wanted)):
        return None
    return Divergence(common, _window(live, common), _window(wanted, common))


def _window(timeline: Timeline, position: int) -> tuple[int, ...]:
    window = timeline.ids[max(0, position - _WINDOW) : position + _WINDOW]
    return tuple(int(i) for i in window)
