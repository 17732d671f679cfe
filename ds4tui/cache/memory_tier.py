"""What is kept in memory beside the live states: parked states, segments and snapshots.

Books over opaque handles, owned by the engine thread; one tier serves all sessions.
"""

import itertools
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from ds4tui.cache.offers import DEFAULT_RATES, Evictable, HeldRows, HeldSnapshot, Offers, Rates
from ds4tui.cache.outline import Outline
from ds4tui.cache.timeline import Timeline


@dataclass(frozen=True, slots=True)
class CacheNote:
    """Something that the tier did, for log, panel and HTTP. `kind` is "evicted", "refused",
    "thinned", "pruned" or "dropped"; `tokens` and `nbytes` are of the thing."""

    kind: str
    tokens: int
    nbytes: int
    reason: str


@dataclass(slots=True)
class _Entry:
    entry_id: int
    kind: str
    timeline: Timeline
    outline: Outline
    start: int
    handle: Any
    nbytes: int
    used_at: float
    point: str = ""


class MemoryTier:
    """`budget_bytes` bounds parked states, segments and snapshots together; a function of it is
    asked each time."""

    def __init__(
        self,
        budget_bytes: int | Callable[[], int],
        rates: Rates = DEFAULT_RATES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rates = rates
        self._budget = budget_bytes
        self._clock = clock
        self._entries: dict[int, _Entry] = {}
        self._ids = itertools.count(1)
        self._notes: list[CacheNote] = []
        self._live: dict[int, Callable[[], Timeline]] = {}

    @property
    def budget_bytes(self) -> int:
        return self._budget() if callable(self._budget) else self._budget

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for entry in self._entries.values())

    @property
    def parked_bytes(self) -> int:
        return self._bytes_of("parked")

    @property
    def segment_bytes(self) -> int:
        return self._bytes_of("segment")

    @property
    def snapshot_bytes(self) -> int:
        return self._bytes_of("snapshot")

    @property
    def parked_count(self) -> int:
        return self._count_of("parked")

    @property
    def segment_count(self) -> int:
        return self._count_of("segment")

    @property
    def snapshot_count(self) -> int:
        return self._count_of("snapshot")

    def attach(self, timeline: Callable[[], Timeline]) -> Callable[[], None]:
        """Tell the tier of a live session: rows that its state holds need no copy here, and what
        leans on them is no orphan. Returns the function that takes it back."""
        key = next(self._ids)
        self._live[key] = timeline
        return lambda: self._live.pop(key, None) and None

    def offers(self, wanted: Timeline) -> Offers:
        """What is held of `wanted`; changes nothing."""
        rows: list[HeldRows] = []
        snapshots: list[HeldSnapshot] = []
        for entry in self._entries.values():
            common, end = entry.timeline.common_prefix(wanted), len(entry.timeline)
            if entry.kind == "snapshot":
                if common == end:
                    snapshots.append(HeldSnapshot(entry.entry_id, end))
            elif common > entry.start:
                can_rewind = entry.handle.can_rewind if entry.kind == "parked" else None
                rows.append(
                    HeldRows(
                        entry.entry_id,
                        "parked" if entry.kind == "parked" else "segment",
                        entry.start,
                        end,
                        common,
                        entry.nbytes,
                        can_rewind,
                        entry.outline,
                        entry.timeline.spans,
                    )
                )
        evictable = tuple(
            Evictable(entry.entry_id, self._value(entry), entry.nbytes)
            for entry in self._entries.values()
        )
        free = max(0, self.budget_bytes - self.nbytes)
        return Offers(tuple(rows), tuple(snapshots), (), free, evictable)

    def park(self, timeline: Timeline, outline: Outline, state: Any, nbytes: int) -> int | None:
        """Take a whole state of exactly `timeline`; None if it is refused (the notes say why)."""
        return self._add("parked", timeline, outline, 0, state, nbytes)

    def add_segment(
        self, timeline_to_end: Timeline, outline: Outline, start: int, rows: Any, nbytes: int
    ) -> int | None:
        """Take the copied rows [start, len(timeline_to_end)); None if refused."""
        return self._add("segment", timeline_to_end, outline, start, rows, nbytes)

    def add_snapshot(
        self, timeline_to_position: Timeline, bounded: Any, nbytes: int, point: str
    ) -> int | None:
        """Take the bounded part of a state at the end of `timeline_to_position`."""
        start = len(timeline_to_position)
        return self._add("snapshot", timeline_to_position, (), start, bounded, nbytes, point)

    def unheld_from(self, timeline: Timeline, start: int) -> int:
        """The first position from `start` on whose row no parked state or segment holds;
        len(timeline) if all are held. A tail is copied from there on only."""
        at = start
        for entry in sorted(self._entries.values(), key=lambda e: e.start):
            if entry.kind != "snapshot" and entry.start <= at:
                at = max(at, entry.timeline.common_prefix(timeline))
        return at

    def handle(self, holder_id: int) -> Any:
        """The state, rows or bounded part that was given; counts as a use. KeyError if gone."""
        entry = self._entries[holder_id]
        entry.used_at = self._clock()
        return entry.handle

    def timeline(self, holder_id: int) -> Timeline:
        """What the holder stands for, up to its end. KeyError if gone."""
        return self._entries[holder_id].timeline

    def outline(self, holder_id: int) -> Outline:
        return self._entries[holder_id].outline

    def take_parked(self, holder_id: int) -> Any:
        """A parked state, which leaves the tier: it belongs to the caller. KeyError if gone."""
        if self._entries[holder_id].kind != "parked":
            raise KeyError(holder_id)
        return self._entries.pop(holder_id).handle

    def drop(self, holder_id: int, reason: str) -> None:
        """Forget a holder, if it is there."""
        entry = self._entries.pop(holder_id, None)
        if entry is not None:
            self._note("dropped", entry, reason)

    def make_room(
        self, needed_bytes: int, keep: Collection[int] = (), worth_ms: float = float("inf")
    ) -> bool:
        """Whether `needed_bytes` more fit into the budget now; evicts what is worth less."""
        while self.nbytes + needed_bytes > self.budget_bytes:
            entry = min(
                (e for e in self._entries.values() if e.entry_id not in keep),
                key=self._value,
                default=None,
            )
            if entry is None or self._value(entry) >= worth_ms:
                return False
            del self._entries[entry.entry_id]
            self._note("evicted", entry, "the room was needed")
        return True

    def drain_notes(self) -> tuple[CacheNote, ...]:
        """What happened since the last call, oldest first."""
        notes, self._notes = tuple(self._notes), []
        return notes

    def _add(
        self,
        kind: str,
        timeline: Timeline,
        outline: Outline,
        start: int,
        handle: Any,
        nbytes: int,
        point: str = "",
    ) -> int | None:
        entry_id, now = next(self._ids), self._clock()
        entry = _Entry(entry_id, kind, timeline, outline, start, handle, nbytes, now, point)
        if not self.make_room(nbytes, worth_ms=self._value(entry)):
            self._note("refused", entry, "no room")
            return None
        self._entries[entry_id] = entry
        return entry_id

    def _value(self, entry: _Entry) -> float:
        return self.rates.prefill_ms(max(1, len(entry.timeline) - entry.start))

    def _note(self, kind: str, entry: _Entry, reason: str) -> None:
        tokens = len(entry.timeline) - entry.start
        self._notes.append(CacheNote(kind, tokens, entry.nbytes, f"{entry.kind}: {reason}"))

    def _bytes_of(self, kind: str) -> int:
        return sum(entry.nbytes for entry in self._entries.values() if entry.kind == kind)

    def _count_of(self, kind: str) -> int:
        return sum(entry.kind == kind for entry in self._entries.values())
