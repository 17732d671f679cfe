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
  (5) What is put away fits into the room that the wanted state leaves, and takes it from nothing
      that the way uses, nor from anything that is worth as much: only rows that nobody else holds
      count as its worth. What must go for the wanted state itself is `lacking_bytes`.
  (6) Copy the smaller side: it follows from the bytes that each way copies.
  (7) Rows are copied out of the live state only where that is parked whole: else it is gone on
      with itself.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ds4tui.cache.offers import HOLDER_LIVE, HeldRows, HeldSnapshot, Offers, Rates, Sizes, Unheld

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
    branches that are lost by it. `put_away_bytes` are taken for what is put away, the least of
    which is worth `worth_ms`; `lacking_bytes` must go from the tier before it can be done, and
    nothing of `leans_on` for it: that holds what need not be copied."""

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
    put_away_bytes: int = 0
    worth_ms: float = math.inf
    lacking_bytes: int = 0
    leans_on: frozenset[int] = frozenset()

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
    _page_bytes: dict[int, int] = field(default_factory=dict)

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

    def page_bytes(self) -> dict[int, int]:
        """What is to be read of each page on disk; 0 where that is not known."""
        if not self._page_bytes:
            pages = (held for held in self.offers.rows if held.kind == "page")
            self._page_bytes.update((page.holder_id, page.nbytes) for page in pages)
        return self._page_bytes


def covered_to(rows: Sequence[HeldRows], start: int = 0) -> int:
    """The first position from `start` on that none of `rows` covers."""
    at = start
    for held in sorted(rows, key=lambda h: h.start):
        if held.start <= at:
            at = max(at, held.reach)
    return at


def can_keep_any(situation: Situation) -> bool:
    """Whether there is a way that keeps anything, however long it takes."""
    return any(way.kept for way in _ways(situation))


def best_way(situation: Situation) -> Way:
    """The least estimated time, what is given up weighed in; ties to fewer tokens, then to the
    live state, then to fewer copies."""
    return _going_on(situation) or min(_ways(situation), key=lambda way: _rank(situation, way))


def _going_on(situation: Situation) -> Way | None:
    """The live state as it is, where nothing else has more: no way is sooner, or loses less."""
    live = situation.live
    if not live or situation.common != live or live > situation.limit:
        return None
    if covered_to(situation.holders()) > live:
        return None
    return _way(situation, situation.live_rows()[0], live, None)


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
        rows = 0 if base is None else min(base.reach, situation.limit)
        for kept in sorted({rows, _worth_taking_to(situation, rows, reach), reach}):
            way = _way(situation, base, kept, None)
            if way is not None:
                yield way


def _worth_taking_to(situation: Situation, start: int, reach: int) -> int:
    """Up to where rows from `start` on are had sooner than they are computed: of a page on disk
    all is read, so the last one may have too few that are wanted."""
    best_ms = gained_ms = 0.0
    best = start
    for part in _parts(situation.holders(), start, reach) or ():
        gained_ms += situation.rates.prefill_ms(part.end - part.start)
        gained_ms -= _taking_ms(situation, part)
        if gained_ms >= best_ms:
            best, best_ms = part.end, gained_ms
    return best


def _ways_with_bounded_part(situation: Situation, reach: int) -> Iterator[Way]:
    bases = _bases(situation)
    for base in bases:
        way = _way(situation, base, min(base.reach, situation.limit), None)
        if way is not None:
            yield way
    usable = [s for s in situation.offers.snapshots if 0 < s.position <= reach]
    usable.sort(key=lambda s: (-s.position, s.on_disk))
    in_memory = covered_to([held for held in situation.holders() if held.kind != "page"])
    nearby = [s for s in usable if s.position <= in_memory and not s.on_disk]
    tried = (*usable[:_SNAPSHOTS_TRIED], *nearby[:_SNAPSHOTS_TRIED])
    for snapshot in dict.fromkeys(tried):
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
        way = _costed(situation, Way(kept, parts=parts, snapshot=snapshot))
        return None if taken and way.put_away != "whole" else way  # (7)
    if base.holder_id == HOLDER_LIVE:
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
    room = _room_bytes(situation, way, parked)
    branches = (_live_branch(situation, way), _parked_branch(way, parked))
    put: dict[_Branch, _Left] = {}
    taken, keep = 0, way.uses
    # The dearer one first: all that makes way for both is worth less than either.
    for branch in sorted(branches, key=lambda b: -b.unheld):
        put[branch] = _put_away(situation, way, branch, room - taken, keep)
        taken, keep = taken + put[branch].nbytes, keep | put[branch].leans_on
    left, tail = (put[branch] for branch in branches)
    ms = situation.rates.prefill_ms(situation.prompt - way.kept)
    ms += _copying_ms(situation, way, left.copied_bytes + tail.copied_bytes)
    put_away_bytes = left.nbytes + tail.nbytes
    return replace(
        way,
        put_away=left.what,
        base_tail=tail.what,
        estimated_ms=ms,
        given_up=left.given_up + tail.given_up,
        put_away_bytes=put_away_bytes,
        worth_ms=min(left.worth_ms, tail.worth_ms),
        lacking_bytes=max(0, put_away_bytes - room),
        leans_on=left.leans_on | tail.leans_on,
    )


def _room_bytes(situation: Situation, way: Way, parked: HeldRows | None) -> int:
    """Bytes for what is put away, beside the wanted state; below 0 if something must go for that
    alone. A state that is left or taken over gives its place."""
    sizes, offers = situation.sizes, situation.offers
    live = sizes.whole_bytes(situation.live) if situation.live else 0
    given = parked.nbytes if parked is not None else 0
    begins_with = live if way.base == "live" else given
    grown = max(sizes.wanted_bytes, begins_with)
    room = offers.free_bytes + given - (grown - live if offers.is_shared else 0)
    if offers.device_bytes is None:
        return room
    return min(room, offers.device_bytes + given + live - grown)


@dataclass(frozen=True, slots=True)
class _Left:
    """What becomes of a branch that is left: bytes that it takes, bytes that are copied for it,
    tokens that are lost; what is put away is worth `worth_ms`."""

    what: PutAway = "nothing"
    nbytes: int = 0
    copied_bytes: int = 0
    given_up: int = 0
    worth_ms: float = math.inf
    leans_on: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class _Branch:
    """What is left of one: `rows` that are cut off, of which the last `unheld` are nowhere else
    and `holders` have the others; parking it whole takes `whole_bytes`, 0 where that cannot be."""

    is_live: bool
    rows: int = 0
    unheld: int = 0
    holders: frozenset[int] = frozenset()
    whole_bytes: int = 0


def _live_branch(situation: Situation, way: Way) -> _Branch:
    live, cut = situation.live, min(situation.common, way.kept)
    if live == cut:
        return _Branch(True)
    ask = situation.offers.unheld
    found = ask(cut, way.base_id) if ask is not None else Unheld(cut)
    unheld = live - found.start
    whole = situation.sizes.whole_bytes(live) if way.base != "live" and unheld else 0
    return _Branch(True, live - cut, unheld, found.holders, whole)


def _parked_branch(way: Way, base: HeldRows | None) -> _Branch:
    if base is None or base.end <= base.common:
        return _Branch(False)
    cut = way.base_rows
    found = base.unheld(cut) if base.unheld is not None else Unheld(cut)
    return _Branch(False, base.end - cut, base.end - found.start, found.holders)


def _put_away(
    situation: Situation, way: Way, branch: _Branch, room: int, keep: frozenset[int]
) -> _Left:
    if not branch.rows:
        return _Left()
    worth = situation.rates.prefill_ms(max(1, branch.unheld))
    whole = branch.whole_bytes
    if whole and situation.offers.has_room(whole, room, worth, keep):
        return _Left("whole", whole, worth_ms=worth)
    if not way.kept:
        return _given_up(branch.unheld)
    return _tail(situation, branch, room, keep | branch.holders)


def _tail(situation: Situation, branch: _Branch, room: int, keep: frozenset[int]) -> _Left:
    """What nobody else holds of a branch, copied if there is room; who holds the rest stays."""
    nbytes = branch.unheld * situation.sizes.row_bytes + situation.sizes.snapshot_bytes
    worth = situation.rates.prefill_ms(max(1, branch.unheld))
    if nbytes and not situation.offers.has_room(nbytes, room, worth, keep):
        return _given_up(branch.unheld)
    return _Left("tail", nbytes, nbytes, 0, worth, branch.holders) if nbytes else _Left()


def _given_up(unheld: int) -> _Left:
    return _Left("drop", given_up=unheld) if unheld else _Left()


def _copying_ms(situation: Situation, way: Way, put_away_bytes: int) -> float:
    rates, snapshot = situation.rates, way.snapshot
    ms = sum(_taking_ms(situation, part) for part in way.parts) + rates.copy_ms(put_away_bytes)
    if snapshot is None:
        return ms
    # A state that holds nothing yet does not say what its bounded part takes.
    nbytes = snapshot.nbytes or situation.sizes.snapshot_bytes
    return ms + rates.copy_ms(nbytes) + (rates.load_ms(nbytes) if snapshot.on_disk else 0.0)


def _taking_ms(situation: Situation, part: RowPart) -> float:
    """Rows of a holder in their new place; a page is read whole before."""
    nbytes = (part.end - part.start) * situation.sizes.row_bytes
    page_bytes = situation.page_bytes().get(part.holder)
    ms = situation.rates.copy_ms(nbytes)
    return ms if page_bytes is None else ms + situation.rates.load_ms(page_bytes or nbytes)
