"""The ways to get to a wanted timeline, and the best of them. Pure; `plan_sync` names it.

A way goes on with a *base* (the live state, a parked one, or a fresh one), of which the first
`base_rows` rows stay by truncation, copies *parts* of rows from other holders behind them, and
sets the bounded part from a snapshot where there is one. Invariants:

  (1) base_rows and the parts are contiguous from 0 to `kept`; each row comes from a holder that
      has it for exactly these ids.
  (2) A segment, page or snapshot is used only if all rows before it are covered.
  (3) A state that needs snapshots has its bounded part at `kept`: its own end, a rewind that it
      says it can do, or a snapshot. Nothing else may stand in for it.
  (4) A base is asked whether it can be truncated; none is when nothing of it is cut off.
  (5) What is put away fits into the room there is, and takes it from nothing that the way uses.
  (6) Copy the smaller side: it follows from the bytes that each way copies.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ds4tui.cache.offers import HOLDER_LIVE, HeldRows, HeldSnapshot, Offers, Rates, Sizes

Base = Literal["live", "parked", "fresh"]
PutAway = Literal["nothing", "whole", "tail", "drop"]

# People and agents come back to about every other branch that they leave: a way that gives one
# up is charged half of what it would take to compute it again.
_RETURN_CHANCE = 0.5

# More would only repeat what these do a little better: the deepest come first.
_BASES_TRIED = 4
_SNAPSHOTS_TRIED = 4


@dataclass(frozen=True, slots=True)
class RowPart:
    """Rows [start, end) are copied from `holder`, a HeldRows id or HOLDER_LIVE."""

    holder: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Way:
    """One way to keep the first `kept` tokens; fields as SyncPlan's. `given_up` counts tokens of
    branches that are lost by it."""

    kept: int
    base: Base = "fresh"
    base_id: int | None = None
    base_rows: int = 0
    base_tail: PutAway = "nothing"
    parts: tuple[RowPart, ...] = ()
    snapshot: HeldSnapshot | None = None
    put_away: PutAway = "nothing"
    estimated_ms: float = 0.0
    given_up: int = 0

    @property
    def uses(self) -> frozenset[int]:
        """Ids of all that is taken from the memory tier."""
        ids = {part.holder for part in self.parts if part.holder != HOLDER_LIVE}
        if self.base_id is not None:
            ids.add(self.base_id)
        if self.snapshot is not None:
            ids.add(self.snapshot.snapshot_id)
        return frozenset(ids)


@dataclass(frozen=True, slots=True)
class Situation:
    """All that decides. `live` rows are resident and can be trusted, `common` of them are the
    wanted timeline's, which has `prompt` tokens; at most `limit` may be kept (its last token, or
    the image that it ends in, is evaluated in any case)."""

    live: int
    common: int
    prompt: int
    limit: int
    can_rewind: Callable[[int], bool]
    needs_snapshots: bool
    offers: Offers
    rates: Rates
    sizes: Sizes
    _asked: dict[tuple[int, int], bool] = field(default_factory=dict)

    def can_cut(self, base: HeldRows, to: int) -> bool:
        """Whether a live or parked state can go back to `to` by itself; asked once."""
        if to == base.end:
            return True
        key = (base.holder_id, to)
        if key not in self._asked:
            ask = self.can_rewind if base.holder_id == HOLDER_LIVE else base.can_rewind
            self._asked[key] = ask is not None and ask(to)
        return self._asked[key]

    def live_rows(self) -> tuple[HeldRows, ...]:
        """The live state as a holder among others, if it holds anything of use."""
        if not self.common:
            return ()
        return (HeldRows(HOLDER_LIVE, "live", 0, self.live, self.common),)

    def holders(self) -> tuple[HeldRows, ...]:
        return self.live_rows() + self.offers.rows


def covered_to(rows: Sequence[HeldRows], start: int = 0) -> int:
    """The first position from `start` on that none of `rows` covers."""
    at = start
    for held in sorted(rows, key=lambda h: h.start):
        if held.start <= at:
            at = max(at, held.reach)
    return at


def best_way(situation: Situation) -> Way:
    """The least estimated time, what is given up weighed in; ties to fewer tokens, then to the
    live state, then to fewer copies."""
    return min(_ways(situation), key=lambda way: _rank(situation, way))


def _rank(situation: Situation, way: Way) -> tuple[float, int, int, int]:
    regret_ms = _RETURN_CHANCE * situation.rates.prefill_ms(way.given_up)
    order = ("live", "parked", "fresh").index(way.base)
    return (round(way.estimated_ms + regret_ms, 6), -way.kept, order, len(way.parts))


def _ways(situation: Situation) -> Iterator[Way]:
    yield _costed(situation, Way(0))
    reach = min(covered_to(situation.holders()), situation.limit)
    if situation.needs_snapshots:
        yield from _ways_with_bounded_part(situation, reach)
        return
    for base in (*_bases(situation), None):
        for kept in {reach, reach if base is None else min(base.reach, situation.limit)}:
            way = _way(situation, base, kept, None)
            if way is not None:
                yield way


def _ways_with_bounded_part(situation: Situation, reach: int) -> Iterator[Way]:
    bases = _bases(situation)
    for base in bases:
        way = _way(situation, base, min(base.reach, situation.limit), None)
        if way is not None:
            yield way
    usable = [s for s in situation.offers.snapshots if 0 < s.position <= reach]
    usable.sort(key=lambda s: (-s.position, s.on_disk))
    for snapshot in usable[:_SNAPSHOTS_TRIED]:
        for start in (*bases, None):
            way = _way(situation, start, snapshot.position, snapshot)
            if way is not None:
                yield way


def _bases(situation: Situation) -> tuple[HeldRows, ...]:
    parked = [held for held in situation.offers.rows if held.kind == "parked"]
    parked.sort(key=lambda held: -held.reach)
    return situation.live_rows() + tuple(parked[:_BASES_TRIED])


def _way(
    situation: Situation, base: HeldRows | None, kept: int, snapshot: HeldSnapshot | None
) -> Way | None:
    """`kept` tokens on `base` (None: a fresh state); None if that cannot be done."""
    if not kept:
        return None
    rows = min(base.reach, kept) if base is not None else 0
    parts = _parts(situation.holders(), rows, kept)
    if parts is None:
        return None
    if snapshot is None and base is not None:
        assert not situation.needs_snapshots or rows == kept, "(3) rows alone are no state"
        if not situation.can_cut(base, rows):
            return None
    taken = [part.end for part in parts if part.holder == HOLDER_LIVE]
    if taken and not situation.needs_snapshots:
        # Rows are all of it only if the state says that it can be cut there.
        if not situation.can_cut(situation.live_rows()[0], taken[-1]):
            return None
    if base is None:
        way = Way(kept, parts=parts, snapshot=snapshot)
    elif base.holder_id == HOLDER_LIVE:
        way = Way(kept, "live", base_rows=rows, parts=parts, snapshot=snapshot)
    else:
        way = Way(kept, "parked", base.holder_id, rows, "nothing", parts, snapshot)
    return _costed(situation, way, base)


def _parts(holders: Sequence[HeldRows], start: int, end: int) -> tuple[RowPart, ...] | None:
    """Rows [start, end) from as few holders as may be, memory before disk; None if some row is
    nowhere."""
    parts: list[RowPart] = []
    at = start
    while at < end:
        found = [held for held in holders if held.start <= at < held.reach]
        if not found:
            return None
        best = max(found, key=lambda held: (held.kind != "page", held.reach))
        stop = min(best.reach, end)
        if best.kind == "page":
            nearer = [h.start for h in holders if h.kind != "page" and at < h.start < h.reach]
            stop = min([stop, *nearer])
        parts.append(RowPart(best.holder_id, at, stop))
        at = stop
    return tuple(parts)


# -- what becomes of what is left, and what it all costs -----------------------------------------


def _costed(situation: Situation, way: Way, base: HeldRows | None = None) -> Way:
    """`way` with what becomes of the old branches, and its time."""
    parked = base if way.base == "parked" else None
    freed = parked.nbytes if parked is not None else 0
    put_away, live_bytes, live_copied, live_lost = _put_live_away(situation, way, freed)
    tail, tail_copied, tail_lost = _cut_parked(situation, way, parked, freed - live_bytes)
    ms = situation.rates.prefill_ms(situation.prompt - way.kept)
    ms += _copying_ms(situation, way, live_copied + tail_copied)
    return replace(
        way,
        put_away=put_away,
        base_tail=tail,
        estimated_ms=ms,
        given_up=live_lost + tail_lost,
    )


def _put_live_away(situation: Situation, way: Way, freed: int) -> tuple[PutAway, int, int, int]:
    """What becomes of the live state's dropped rows; bytes that it takes of the room, bytes that
    are copied for it, tokens given up."""
    live, sizes = situation.live, situation.sizes
    left = live - min(situation.common, way.kept)
    if not left:
        return "nothing", 0, 0, 0
    worth = situation.rates.prefill_ms(left)
    whole = sizes.whole_bytes(live)
    if way.base != "live" and situation.offers.has_room(whole - freed, worth, way.uses):
        return "whole", whole, 0, 0
    tail = left * sizes.row_bytes + sizes.snapshot_bytes
    if way.kept and situation.offers.has_room(tail - freed, worth, way.uses):
        return "tail", tail, tail, 0
    return "drop", 0, 0, left


def _cut_parked(
    situation: Situation, way: Way, base: HeldRows | None, freed: int
) -> tuple[PutAway, int, int]:
    """The same for the rows of a parked base that are cut off: what, bytes copied, given up."""
    if base is None or base.end <= base.common:
        return "nothing", 0, 0
    left = base.end - way.base_rows
    worth = situation.rates.prefill_ms(left)
    tail = left * situation.sizes.row_bytes + situation.sizes.snapshot_bytes
    if situation.offers.has_room(tail - freed, worth, way.uses):
        return "tail", tail, 0
    return "drop", 0, left


def _copying_ms(situation: Situation, way: Way, put_away_bytes: int) -> float:
    rates, sizes = situation.rates, situation.sizes
    pages = {held.holder_id for held in situation.offers.rows if held.kind == "page"}
    loaded = sum(p.end - p.start for p in way.parts if p.holder in pages) * sizes.row_bytes
    copied = sum(p.end - p.start for p in way.parts if p.holder not in pages) * sizes.row_bytes
    if way.snapshot is not None and way.snapshot.on_disk:
        loaded += sizes.snapshot_bytes
    elif way.snapshot is not None:
        copied += sizes.snapshot_bytes
    return rates.copy_ms(copied + put_away_bytes) + rates.load_ms(loaded)
