"""What is kept in memory beside the live states: parked states, segments and snapshots.

Books over opaque handles, owned by the engine thread; one tier serves all sessions. It decides
what stays; it never looks into what it holds, and never acts on a session.

      tree of timelines                 holders                        a plan for 1-2-3-5
      1 ── 2 ┬─ 3 ── 4   parked         [1 2 3 4]  a whole state       go on with the parked state
             │   └── 5   segment             [5]   rows behind 1 2 3   at 3 (snapshot), copy row 5
             └─ 6        snapshot at 3             a bounded part

  (1) Parked states, segments and snapshots together never take more than the budget.
  (2) A look-up changes nothing. Nothing goes before what replaces it was looked up: what a plan
      uses (`keep`) is never evicted.
  (3) What is refused or cannot be had evicts nothing.
  (4) What leans on rows goes before them. What nothing leads up to any more (its session went
      back or gave up) goes in `settle`, when all is at rest, and says so. A gap that is shorter
      than what is held behind it does not count: a prompt that ends there will close it.
  (5) Something short never displaces something that takes longer to compute, unless that was
      left alone for long (`cache.eviction`).
  (6) Everything that goes leaves a note in words, and a tombstone if it could be missed; so do
      rows that a live state gives up (`lose`).
  (7) At most MAX_ENTRIES things are held: look-ups and evictions stay quick however many
      branches there were.
"""

import functools
import itertools
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from ds4tui.cache.causes import Cause
from ds4tui.cache.entries import CacheNote, Counted, Entry, EntryKind, Held
from ds4tui.cache.eviction import Weighed, value_ms, victims
from ds4tui.cache.offers import DEFAULT_RATES, HeldRows, HeldSnapshot, Offers, Rates, Unheld
from ds4tui.cache.outline import Outline, fork_points
from ds4tui.cache.prefix_tree import PrefixTree, Walk
from ds4tui.cache.survey import Standing, survey
from ds4tui.cache.thinning import FORK_POINTS, Place, spacing_tokens, staying
from ds4tui.cache.timeline import Timeline
from ds4tui.cache.tombstones import Tombstones

__all__ = ["MAX_ENTRIES", "CacheNote", "Held", "MemoryTier"]

MAX_ENTRIES = 512
_NOTES_KEPT = 256  # if nobody drains them

NO_ROOM = "there is no room for it among what is worth more"

# Of the budget, for the snapshots of one branch: rows come first, they cost more to make again.
_SNAPSHOT_SHARE = 0.5
# However large the budget: at growing distance so many keep the replay after a fork anywhere in
# 100,000 tokens about a tenth of its way back, and each one makes every look-up slower.
_SNAPSHOTS_MAX = 96


class MemoryTier(Counted):
    """`budget_bytes` bounds parked states, segments and snapshots together; a function of it is
    asked each time. `clock` gives seconds."""

    def __init__(
        self,
        budget_bytes: int | Callable[[], int],
        rates: Rates = DEFAULT_RATES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rates = rates
        self.lets_go: Callable[[Held], None] | None = None  # told of what is evicted, before
        self._budget = budget_bytes
        self._clock = clock
        self._entries: dict[int, Entry] = {}
        self._tree = PrefixTree()
        self._tombstones = Tombstones(clock)
        self._ids = itertools.count(1)
        self._notes: deque[CacheNote] = deque(maxlen=_NOTES_KEPT)
        self._live: dict[int, Callable[[], Timeline]] = {}
        self._refuses_snapshots = False  # and has said so
        self._surveyed: tuple[tuple[Timeline, ...], dict[int, Standing]] | None = None

    # -- counts --------------------------------------------------------------------------------

    @property
    def budget_bytes(self) -> int:
        return self._budget() if callable(self._budget) else self._budget

    # -- looking up ----------------------------------------------------------------------------

    def offers(self, wanted: Timeline, live: Timeline | None = None) -> Offers:
        """What is held of `wanted`, and of the `live` timeline of who asks; changes nothing."""
        walk = self._tree.walk(wanted)
        rows: list[HeldRows] = []
        snapshots: list[HeldSnapshot] = []
        for key, common in self._tree.commons(wanted, walk).items():
            entry = self._entries[key]
            if entry.kind == "snapshot":
                if common == entry.end:
                    snapshots.append(HeldSnapshot(key, entry.end, False, entry.nbytes))
            elif entry.kind != "lent" and min(common, entry.end) > entry.start:
                rows.append(self._held(key, entry, common))
        return Offers(
            tuple(rows),
            tuple(snapshots),
            self._tombstones.lost(wanted),
            self.budget_bytes - self.nbytes,
            functools.cache(self._weighed),
            max(0, len(self._entries) + 1 - MAX_ENTRIES),
            unheld=self._unheld_of(live) if live is not None else None,
        )

    def _held(self, key: int, entry: Entry, common: int) -> HeldRows:
        held = HeldRows(
            key,
            "parked" if entry.kind == "parked" else "segment",
            entry.start,
            entry.end,
            common,
            entry.nbytes,
            outline=entry.outline,
            spans=entry.spans,
        )
        if entry.kind != "parked":
            return held

        ask = self._unheld_of(lambda: self._tree.timeline(key))
        return replace(
            held, can_rewind=entry.handle.can_rewind, unheld=lambda start: ask(start, key)
        )

    def _unheld_of(
        self, timeline: Timeline | Callable[[], Timeline]
    ) -> Callable[[int, int | None], Unheld]:
        """`unheld` of a timeline, which is compared once and only if it is asked."""
        commons = functools.cache(
            lambda: self._tree.commons(timeline() if callable(timeline) else timeline)
        )
        return functools.cache(lambda start, excluded: self._unheld(commons(), start, excluded))

    def unheld_from(self, timeline: Timeline, start: int) -> int:
        """The first position from `start` on whose row no parked state or segment holds;
        len(timeline) if all are held."""
        return self._unheld(self._tree.commons(timeline), start, None).start

    def _unheld(self, commons: dict[int, int], start: int, excluded: int | None) -> Unheld:
        """The same, `excluded` not counted, and who holds those before it. A tail is copied from
        there on only."""
        at = start
        holders: set[int] = set()
        for key in sorted(commons, key=lambda k: self._entries[k].start):
            entry = self._entries[key]
            is_rows = entry.kind in ("parked", "segment") and key != excluded
            end = min(commons[key], entry.end)
            if is_rows and entry.start <= at < end:
                at = end
                holders.add(key)
        return Unheld(at, frozenset(holders))

    def snapshots_of(self, timeline: Timeline) -> tuple[int, ...]:
        """Positions of the snapshots along a timeline, ascending."""
        keys = _keys_on(self._tree.walk(timeline))
        return tuple(sorted(self._entries[k].end for k in keys if self._is(k, "snapshot")))

    def worst_replay(self, timeline: Timeline) -> int:
        """The most tokens that an edit of it anywhere makes a state replay that goes back by
        snapshots only."""
        borders = [0, *self.snapshots_of(timeline), len(timeline)]
        return max(after - before for before, after in itertools.pairwise(borders))

    def handle(self, holder_id: int) -> Any:
        """The state, rows or bounded part that was given; counts as a use. KeyError if gone."""
        entry = self._entries[holder_id]
        entry.used_at = self._clock()
        return entry.handle

    def timeline(self, holder_id: int) -> Timeline:
        """What the holder stands for, up to its end. KeyError if gone."""
        return self._tree.timeline(holder_id)

    def outline(self, holder_id: int) -> Outline:
        """KeyError if gone."""
        return self._entries[holder_id].outline

    def holders(self) -> tuple[Held, ...]:
        """All that is held."""
        return tuple(self._shown(key) for key in self._entries)

    def _shown(self, key: int) -> Held:
        entry = self._entries[key]
        return Held(key, entry.kind, entry.start, self._tree.timeline(key), entry.handle)

    # -- taking in -----------------------------------------------------------------------------

    def attach(self, timeline: Callable[[], Timeline]) -> Callable[[], None]:
        """Tell the tier of a live session: rows that its state holds need no copy here, and what
        leans on them is no orphan. Returns the function that takes it back. As long as no session
        is attached nothing is taken for an orphan."""
        key = next(self._ids)
        self._live[key] = timeline

        def detach() -> None:
            self._live.pop(key, None)

        return detach

    def park(
        self,
        timeline: Timeline,
        outline: Outline,
        state: Any,
        nbytes: int,
        keep: Collection[int] = (),
    ) -> int | None:
        """Take a whole state of exactly `timeline`, which answers can_rewind; None if it is
        refused (the notes say why)."""
        entry = self._entry("parked", 0, timeline, outline, state, nbytes)
        return self._add(entry, timeline, keep)

    def add_segment(
        self,
        timeline_to_end: Timeline,
        outline: Outline,
        start: int,
        rows: Any,
        nbytes: int,
        keep: Collection[int] = (),
    ) -> int | None:
        """Take the copied rows [start, len(timeline_to_end)); None if they are refused."""
        if not 0 <= start < len(timeline_to_end):
            raise ValueError(f"no rows [{start}, {len(timeline_to_end)}) make a segment")
        entry = self._entry("segment", start, timeline_to_end, outline, rows, nbytes)
        return self._add(entry, timeline_to_end, keep)

    def add_snapshot(
        self,
        timeline_to_position: Timeline,
        bounded: Any,
        nbytes: int,
        point: str,
        keep: Collection[int] = (),
    ) -> int | None:
        """Take the bounded part of a state at the end of `timeline_to_position`; None if it is
        refused. One that stands there already is kept instead. Old ones of the branch are thinned.
        `point`: "system", "turn", "image", "before last", "chunk" or "decode"."""
        walk = self._tree.walk(timeline_to_position)
        for key in _keys_on(walk):
            standing = self._entries[key]
            if standing.kind == "snapshot" and standing.end == len(timeline_to_position):
                standing.used_at = self._clock()
                if standing.point not in FORK_POINTS:
                    standing.point = point
                return key
        entry = self._snapshot_entry(timeline_to_position, bounded, nbytes, point)
        taken = self._add(entry, timeline_to_position, keep)
        if taken is not None:
            self._refuses_snapshots = False
            self._thin(timeline_to_position, keep)
        return taken

    def refuse_snapshot(self, timeline_to_position: Timeline, nbytes: int, reason: str) -> None:
        """A bounded part at the end of it is not even copied: whoever misses it is told. It is
        noted once, until one is taken again: every prompt has many."""
        entry = self._snapshot_entry(timeline_to_position, None, nbytes)
        tokens = self._new_tokens(entry, timeline_to_position)
        if not self._refuses_snapshots:
            self._note("refused", entry, tokens, reason)
        self._refuses_snapshots = True
        self._bury(entry, timeline_to_position, tokens)

    def _snapshot_entry(
        self, timeline: Timeline, bounded: Any, nbytes: int, point: str = ""
    ) -> Entry:
        return self._entry("snapshot", len(timeline), timeline, (), bounded, nbytes, point)

    def spacing_tokens(self, snapshot_bytes: int) -> int:
        """How many decoded tokens lie between two snapshots of that size."""
        return spacing_tokens(snapshot_bytes, self.rates)

    def _entry(
        self,
        kind: EntryKind,
        start: int,
        timeline: Timeline,
        outline: Outline,
        handle: Any,
        nbytes: int,
        point: str = "",
    ) -> Entry:
        at, end, spans = self._clock(), len(timeline), timeline.spans
        return Entry(kind, start, end, outline, spans, handle, nbytes, at, point)

    def _add(self, entry: Entry, timeline: Timeline, keep: Collection[int]) -> int | None:
        tokens = self._new_tokens(entry, timeline)
        worth_ms = self.rates.prefill_ms(tokens)
        key = next(self._ids)
        # It stands there before room is made, so that what it leans on stays.
        nbytes, entry.nbytes = entry.nbytes, 0
        self._entries[key] = entry
        self._tree.add(key, timeline, entry.start if entry.kind == "segment" else None)
        self._surveyed = None
        has_room = self.make_room(nbytes, {key, *keep}, worth_ms)
        entry.nbytes = nbytes
        if has_room:
            return key
        self._note("refused", entry, tokens, NO_ROOM)
        self._bury(entry, timeline, tokens)
        self._forget(key)
        return None

    def _new_tokens(self, entry: Entry, timeline: Timeline) -> int:
        """What would have to be computed again without it; 1 or more."""
        if entry.kind == "snapshot":
            before = [p for p in self.snapshots_of(timeline) if p < entry.end]
            return entry.end - max(before, default=0)
        return max(1, entry.end - self.unheld_from(timeline, entry.start))

    # -- letting go ----------------------------------------------------------------------------

    def take_parked(self, holder_id: int) -> Any:
        """A parked state, which leaves the tier: it belongs to the caller, who calls `settle`
        when a live timeline stands for it. KeyError if gone or not parked."""
        entry = self._entries[holder_id]
        if entry.kind != "parked":
            raise KeyError(holder_id)
        state, entry.handle = entry.handle, None
        entry.kind, entry.nbytes = "lent", 0
        self._surveyed = None
        return state

    def take_back(self, holder_id: int, state: Any) -> None:
        """A parked state that was taken comes back as it was: it could not be used. KeyError if
        it was not taken."""
        entry = self._entries[holder_id]
        if entry.kind != "lent":
            raise KeyError(holder_id)
        entry.handle, entry.kind, entry.nbytes = state, "parked", state.nbytes
        self._surveyed = None

    def lose(
        self, timeline: Timeline, outline: Outline, since: int, cause: Cause, reason: str = ""
    ) -> None:
        """Rows of `timeline` from `since` on, which a live state held, are given up: whoever
        wants them is told the cause. With a `reason` it is noted, too."""
        start = self.unheld_from(timeline, since)
        if start == len(timeline):
            return
        if reason:
            said = f"tokens {start:,} to {len(timeline):,} of a live branch: {reason}"
            self._notes.append(CacheNote("dropped", len(timeline) - start, 0, said))
        self._tombstones.add_rows(cause, timeline, start, fork_points(timeline, outline))

    def settle(self) -> None:
        """The live timelines say again what the live states hold: forget what was taken, and what
        nothing leads up to any more. Snapshots along what is live are in use."""
        now = self._clock()
        for timeline in self._live.values():
            for key in _keys_on(self._tree.walk(timeline())):
                if self._is(key, "snapshot"):
                    self._entries[key].used_at = now
        for key in [k for k in self._entries if self._is(k, "lent")]:
            self._forget(key)
        self._prune()

    def drop(self, holder_id: int, reason: str) -> None:
        """Forget a holder, if it is there."""
        if holder_id in self._entries:
            self._let_go(holder_id, "dropped", self._survey()[holder_id].tokens, reason)

    def make_room(
        self, needed_bytes: int, keep: Collection[int] = (), worth_ms: float = float("inf")
    ) -> bool:
        """Whether `needed_bytes` more, of something worth `worth_ms`, fit into the budget now.
        What is worth least goes first; if it cannot be, nothing goes."""
        excess = max(0, self.nbytes + needed_bytes - self.budget_bytes)
        return self.let_go(excess, keep, worth_ms)

    def let_go(
        self, nbytes: int, keep: Collection[int] = (), worth_ms: float = float("inf")
    ) -> bool:
        """Whether things that take `nbytes` together are gone now, for something worth
        `worth_ms`: what is worth least goes first; if it cannot be, nothing goes."""
        crowd = max(0, len(self._entries) - MAX_ENTRIES)
        if nbytes <= 0 and not crowd:
            return True
        gone = victims(self._weighed(), nbytes, keep, worth_ms, crowd)
        standings = self._survey() if gone else {}
        for key in gone or ():
            reason = "the room was needed for what is worth more"
            self._let_go(key, "evicted", standings[key].tokens, reason)
        return gone is not None

    def drain_notes(self) -> tuple[CacheNote, ...]:
        """What happened since the last call, oldest first."""
        notes = tuple(self._notes)
        self._notes.clear()
        return notes

    def _thin(self, timeline: Timeline, keep: Collection[int]) -> None:
        """Of the snapshots along `timeline` some go where they are too many, never the last."""
        walk = self._tree.walk(timeline)
        keys = {self._entries[k].end: k for k in _keys_on(walk) if self._is(k, "snapshot")}
        forks = {node.end for node in walk.nodes if len(node.children) > 1}
        places = [
            Place(at, self._entries[key].point, at in forks or key in keep)
            for at, key in keys.items()
        ]
        newest = self._entries[keys[len(timeline)]]
        affordable = int(self.budget_bytes * _SNAPSHOT_SHARE) // max(1, newest.nbytes)
        affordable = min(affordable, _SNAPSHOTS_MAX)
        stay = staying(places, affordable, self.spacing_tokens(newest.nbytes))
        gone = [key for at, key in keys.items() if at not in stay]
        standings = self._survey() if gone else {}
        for key in gone:
            reason = "others stand near it, and room is short"
            self._let_go(key, "thinned", standings[key].tokens, reason)

    def _prune(self) -> None:
        # Only when all is at rest: between two timelines of a session rows that are about to be
        # live again seem to be nowhere.
        while self._live:
            orphans = {k: s.tokens for k, s in self._survey().items() if s.is_orphan}
            for key, tokens in orphans.items():
                self._let_go(key, "pruned", tokens, "no rows lead up to it any more")
            if not orphans:
                return

    def _let_go(self, key: int, kind: str, tokens: int, reason: str) -> None:
        entry = self._entries[key]
        if self.lets_go is not None and kind == "evicted":
            self.lets_go(self._shown(key))
        self._note(kind, entry, tokens, reason)
        self._bury(entry, self._tree.timeline(key), tokens)
        self._forget(key)

    def _forget(self, key: int) -> None:
        del self._entries[key]
        self._tree.remove(key)
        self._surveyed = None

    def _bury(self, entry: Entry, timeline: Timeline, tokens: int) -> None:
        if entry.kind == "snapshot":
            self._tombstones.add_snapshot(timeline, tokens)
            return
        borders = fork_points(timeline, entry.outline)
        self._tombstones.add_rows(Cause.BRANCH_EVICTED, timeline, entry.start, borders)

    def _note(self, kind: str, entry: Entry, tokens: int, reason: str) -> None:
        self._notes.append(CacheNote(kind, tokens, entry.nbytes, f"{entry.said}: {reason}"))

    # -- weighing ------------------------------------------------------------------------------

    def _survey(self) -> dict[int, Standing]:
        live = tuple(timeline() for timeline in self._live.values())
        if self._surveyed is not None:
            seen, standings = self._surveyed
            if len(seen) == len(live) and all(a is b for a, b in zip(seen, live, strict=True)):
                return standings
        rows: dict[int, int] = {}
        for walk in map(self._tree.walk, live):
            rows |= {id(node): len(node.ids) for node in walk.nodes}
            if walk.left_in is not None:
                some = walk.shared - walk.left_in.start
                rows[id(walk.left_in)] = max(some, rows.get(id(walk.left_in), 0))
        standings = survey(self._tree, self._entries, rows)
        self._surveyed = live, standings
        return standings

    def _weighed(self) -> Sequence[Weighed]:
        now, standings = self._clock(), self._survey()
        return [
            Weighed(
                key,
                value_ms(self.rates.prefill_ms(standings[key].tokens), now - entry.used_at),
                entry.nbytes,
                standings[key].stems,
            )
            for key, entry in self._entries.items()
            if entry.kind != "lent"
        ]

    def _is(self, key: int, kind: EntryKind) -> bool:
        return self._entries[key].kind == kind


def _keys_on(walk: Walk) -> list[int]:
    """Keys of the timelines that are whole prefixes of the one that was walked."""
    return [key for node in walk.nodes for key in node.keys]
