"""What of the live states goes to disk, and when: a little at a time, beside the work.

The engine thread copies rows to host memory, a layer at a time, for a small share of the time
that its steps take, and for longer while it has nothing else to do; the disk tier's thread does
the rest. What is stored already is never copied.

  (1) A record is made of rows of one state that was not rebuilt meanwhile: `Session.changes`.
  (2) Rows go before the snapshot that stands behind them.
  (3) While a prompt is evaluated pages are stored as they fill; when it is over, what it brought;
      when the job has ended, all of it. What memory lets go of is stored before, what is left
      when the engine closes as far as the deadline allows.
  (4) Conversations below MIN_TOKENS are not stored: they are computed again as quickly.
  (5) Storing never harms: what fails is logged and told, and no more is stored. Where there was no
      memory for a copy, that is told too, and the next step tries again.
  (6) What was held when people cleared the folder is not stored again before it is used.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ds4tui.cache.kvarrays import HostRows, HostSnapshot
from ds4tui.cache.kvformat import PAGE_POSITIONS_MAX
from ds4tui.cache.kvstore import DiskTier
from ds4tui.cache.memory_tier import Held, MemoryTier
from ds4tui.cache.timeline import Timeline
from ds4tui.engine.disk_arrays import host_rows, host_snapshot
from ds4tui.engine.no_memory import is_no_memory
from ds4tui.engine.session import Session, SessionState

_log = logging.getLogger(__name__)

MIN_TOKENS = 256
# Decoding shall not be delayed by more than 2 %, of which the writing thread has its part.
SHARE = 0.01
IDLE_SLICE_S = 0.005
# Snapshots are large: in a long prompt one so often, besides that of the end of a turn.
SNAPSHOT_SPACING = 10_000
# A queue that stays full, or a folder that takes nothing: given up until more has come.
_TRIES = 200
_WAIT_S = 0.02
# What is about to be lost waits so long for each page's place in the queue, as long as the disk
# takes pages: they are computed more slowly than written.
LOSS_WAIT_S = 2.0
# Ends of jobs whose conversation is known by name; what memory holds is far less.
_NAMES_MAX = 1024


# How many seconds a page may wait for its place in the queue, asked for each.
Wait = Callable[[], float]


@dataclass(slots=True)
class _Copying:
    """A page on its way: rows [start, len(timeline)) of the state as it is since `changes`."""

    timeline: Timeline
    start: int
    point: str
    layers: list[HostRows | None] = field(default_factory=list)
    tries: int = 0


@dataclass(slots=True)
class _Snapshot:
    """The bounded part at the end of `timeline`, on its way."""

    timeline: Timeline
    host: HostSnapshot
    point: str
    tries: int = 0


@dataclass(slots=True)
class _Shelf:
    """How far one session is stored, since it was last rebuilt."""

    changes: int = -1
    stored: int = 0  # positions that need no storing
    due: int = 0  # positions that shall be stored
    snapshot_at: int = 0  # where the last stored snapshot stands
    snapshot_due: int = 0  # one shall be stored there
    looked_at: tuple[int, int] = (-1, -1)
    copying: _Copying | None = None
    snapshot: "_Snapshot | None" = None
    what: str = ""
    why: str = ""  # something is due, in words
    # What was due when what lies before it was found gone: (changes, due, snapshot_due, why).
    again: "tuple[int, int, int, str] | None" = None


class Storing:
    """Owned by the engine thread."""

    def __init__(self, disk: DiskTier, memory: MemoryTier, sessions: Sequence[Session]) -> None:
        self._disk, self._memory = disk, memory
        self._sessions = sessions
        self._shelves = {session.number: _Shelf() for session in sessions}
        self.failed = ""  # why nothing more is stored
        self._credit_s = 0.0
        self._swept: set[int] = set()  # of what memory holds, that which was looked at
        self._running: set[int] = set()  # numbers of sessions
        self._what: dict[bytes, str] = {}  # what conversation it was, by digest of its timeline
        self._clearings = disk.clearings
        self._cleared: set[bytes] = set()  # digests of the timelines that nobody wants stored
        memory.lets_go = self._let_go

    def begun(self, session: Session, what: str) -> None:
        """A job begins: `what` tells people which conversation it is of."""
        self._look_for_clearing()
        self._shelves[session.number].what = what
        self._running.add(session.number)

    def stepped(
        self, session: Session, seconds: float, *, is_prefilled: bool, is_over: bool
    ) -> None:
        """A step that took so long is done; its prompt is evaluated whole, its job has ended."""
        if self.failed:
            return
        self._look_for_clearing()
        (self._running.discard if is_over else self._running.add)(session.number)
        if is_over:
            self._named(session.timeline, self._shelves[session.number].what)
        with self._harmless(session):
            self._want(session, is_prefilled, is_over)
        self._credit_s = min(self._credit_s + SHARE * seconds, IDLE_SLICE_S)
        while self._credit_s > 0:
            began = time.perf_counter()
            if not self._one(wait_s=0.0):
                break
            self._credit_s -= time.perf_counter() - began

    def _named(self, timeline: Timeline, what: str) -> None:
        """So that people know it again when it is stored later, from where it was put away."""
        self._what[timeline.digest()] = what
        while len(self._what) > _NAMES_MAX:
            del self._what[next(iter(self._what))]

    @property
    def is_pending(self) -> bool:
        """Whether there is something to do while nothing else is."""
        return not self.failed and any(self._is_due(session) for session in self._sessions)

    def idle(self) -> None:
        """Nothing else is to be done: some milliseconds of storing."""
        self._look_for_clearing()
        until = time.perf_counter() + IDLE_SLICE_S
        while time.perf_counter() < until and self._one(_WAIT_S):
            pass
        if not self.is_pending:
            with self._harmless():
                self._sweep(lambda: 0.0)
                self._disk.tidy()

    def finish(self, deadline_s: float) -> None:
        """Copy all that is resident and not stored, as far as the deadline allows."""
        self._look_for_clearing()
        until = time.monotonic() + deadline_s
        for session in self._sessions:
            with self._harmless(session):
                self._want(session, is_prefilled=True, is_over=True)
                self._shelves[session.number].why = "ds4tui ends"
        while time.monotonic() < until and self._one(_WAIT_S):
            pass
        with self._harmless():
            self._sweep(lambda: max(0.0, until - time.monotonic()))

    def before_loss(self, session: Session) -> None:
        """The live state is about to be given up."""
        self._look_for_clearing()
        if self._is_cleared(session.timeline):
            return
        if session.state is not None and len(session.timeline) >= MIN_TOKENS:
            what = self._shelves[session.number].what
            why = "another session needs its memory"
            self._store_whole(session.timeline, 0, session.state, what, why, _before_loss)

    def _look_for_clearing(self) -> None:
        """(6)"""
        if self._clearings == self._disk.clearings:
            return
        self._clearings = self._disk.clearings
        resting = [s.timeline for s in self._sessions if s.number not in self._running]
        held = [held.timeline for held in self._memory.holders()]
        self._cleared = {timeline.digest() for timeline in (*resting, *held)}
        for number, shelf in self._shelves.items():
            self._shelves[number] = _Shelf(what=shelf.what)

    def _is_cleared(self, timeline: Timeline) -> bool:
        return bool(self._cleared) and timeline.digest() in self._cleared

    # -- what is due ---------------------------------------------------------------------------

    def _want(self, session: Session, is_prefilled: bool, is_over: bool) -> None:
        shelf, end = self._shelf(session), len(session.timeline)
        if end < MIN_TOKENS or self._is_cleared(session.timeline):
            return
        if is_over or (is_prefilled and end - shelf.stored >= MIN_TOKENS):
            shelf.due = max(shelf.due, end)
            shelf.why = "a turn has ended" if is_over else "a prompt is evaluated"
            if is_over:
                shelf.snapshot_due = end
        else:
            full = (end - shelf.stored) // PAGE_POSITIONS_MAX * PAGE_POSITIONS_MAX
            if shelf.stored + full > shelf.due:
                shelf.due, shelf.why = shelf.stored + full, "pages are full"

    def _shelf(self, session: Session) -> _Shelf:
        """Looked at anew after each rebuild."""
        shelf = self._shelves[session.number]
        if shelf.changes != session.changes:
            stored = self._disk.missing_from(session.timeline) if len(session.timeline) else 0
            looks = session.needs_snapshots and stored  # a look-up that finds nothing is a miss
            held = self._disk.offers(session.timeline)[1] if looks else ()
            at = max((snapshot.position for snapshot in held), default=0)
            again = shelf.again
            shelf = _Shelf(session.changes, stored, 0, at, what=shelf.what)
            if again is not None and again[0] == session.changes:
                _, shelf.due, shelf.snapshot_due, shelf.why = again
            self._shelves[session.number] = shelf
        return shelf

    def _is_due(self, session: Session) -> bool:
        with self._harmless(session):
            shelf = self._shelf(session)
            is_snapshot_due = session.needs_snapshots and shelf.snapshot_due > shelf.snapshot_at
            return shelf.due > shelf.stored or is_snapshot_due
        return False

    # -- one piece of it -----------------------------------------------------------------------

    def _one(self, wait_s: float) -> bool:
        """Copy one layer of one page, or store what is copied; False if nothing is due, or
        nothing can be done now."""
        for session in self._sessions:
            with self._harmless(session):
                if not self.failed and self._piece(session, wait_s):
                    return True
        return False

    @contextmanager
    def _harmless(self, session: Session | None = None) -> Iterator[None]:
        """What fails in it is the end of storing; where it was memory that could not be had, of
        what was on its way from `session` only."""
        try:
            yield
        except Exception as exc:  # the root of this work
            if is_no_memory(exc):
                self._not_kept(exc, session)
            else:
                _log.error("nothing more is stored on disk", exc_info=exc)
                self.failed = f"{type(exc).__name__}: {exc}"
                self._disk.give_up(self.failed)

    def _not_kept(self, exc: Exception, session: Session | None) -> None:
        _log.warning("not stored on disk: %s", exc or "no memory")
        self._disk.not_kept("there was no memory for a copy")
        if session is not None:
            shelf = self._shelves[session.number]
            shelf.snapshot = None
            self._give_up(shelf, f"rows from {shelf.stored} on, for now")

    def _piece(self, session: Session, wait_s: float) -> bool:
        shelf = self._shelf(session)
        state = session.state
        if state is None or session.state_name is SessionState.POISONED:
            return False
        if shelf.due > shelf.stored:
            if shelf.copying is None:
                shelf.copying = self._begun_page(session, shelf)
            return self._go_on(shelf, shelf.copying, state, wait_s)
        return session.needs_snapshots and self._snapshot_piece(session, shelf, wait_s)

    def _begun_page(self, session: Session, shelf: _Shelf) -> _Copying:
        start, timeline = shelf.stored, session.timeline
        end = timeline.snapped(min(shelf.due, start + PAGE_POSITIONS_MAX))
        if end <= start:  # an image that is longer than a page
            end = next((s.end for s in timeline.spans if s.start == start), shelf.due)
        system_end = _system_end(session)
        if start < system_end <= end and system_end >= MIN_TOKENS:
            return _Copying(timeline.prefix(system_end), start, "system")
        return _Copying(timeline.prefix(end), start, "")

    def _go_on(self, shelf: _Shelf, page: _Copying, state: Any, wait_s: float) -> bool:
        end, at = len(page.timeline), len(page.layers)
        if at < len(state.layers):
            rows = state.rows(at, page.start, end)
            page.layers.append(None if rows is None else host_rows(rows))
            return True
        kept = self._disk.put_page(
            page.timeline,
            page.start,
            page.layers,
            point=page.point,
            what=shelf.what,
            why=shelf.why,
            wait_s=wait_s,
        )
        if kept:
            shelf.stored, shelf.copying = end, None
            return True
        page.tries += 1
        if page.tries >= _TRIES:
            self._give_up(shelf, f"rows {page.start} to {end}")
        elif self._disk.missing_from(page.timeline) != page.start:
            # Something before it was evicted or cleared: what is due goes from there.
            shelf.again = shelf.changes, shelf.due, shelf.snapshot_due, shelf.why
            shelf.changes = -1
            return True
        return False

    def _give_up(self, shelf: _Shelf, why: str) -> None:
        _log.info("not stored on disk: %s", why)
        shelf.copying = None
        shelf.due, shelf.snapshot_due = shelf.stored, shelf.snapshot_at

    # -- snapshots -----------------------------------------------------------------------------

    def _snapshot_piece(self, session: Session, shelf: _Shelf, wait_s: float) -> bool:
        if shelf.snapshot is None:
            if shelf.looked_at == (shelf.stored, shelf.snapshot_due):
                return False
            shelf.snapshot = self._next_snapshot(session, shelf)
            if shelf.snapshot is not None:
                return True
            shelf.looked_at = shelf.stored, shelf.snapshot_due
            if shelf.snapshot_due <= shelf.stored:
                shelf.snapshot_due = shelf.snapshot_at  # it stands already, or cannot be had
            return False
        found = shelf.snapshot
        if self._disk.put_snapshot(
            found.timeline,
            found.host.layers,
            found.point,
            what=shelf.what,
            why=shelf.why,
            wait_s=wait_s,
        ):
            shelf.snapshot_at, shelf.snapshot = len(found.timeline), None
            return True
        found.tries += 1
        if found.tries >= _TRIES:
            shelf.snapshot = None
            self._give_up(shelf, f"the snapshot at {len(found.timeline)}")
        return False

    def _next_snapshot(self, session: Session, shelf: _Shelf) -> _Snapshot | None:
        """That of the system prompt's end, one now and then, and that of the end of a turn."""
        timeline, system_end = session.timeline, _system_end(session)
        for held in sorted(self._memory.offers(timeline).snapshots, key=lambda s: s.position):
            at = held.position
            if not shelf.snapshot_at < at <= shelf.stored:
                continue
            is_anchor = at == system_end and at >= MIN_TOKENS
            is_last = at == shelf.snapshot_due
            if is_anchor or is_last or at - shelf.snapshot_at >= SNAPSHOT_SPACING:
                bounded = self._memory.handle(held.snapshot_id)
                point = "system" if is_anchor else "turn" if is_last else "chunk"
                return _Snapshot(timeline.prefix(at), host_snapshot(bounded), point)
        at = len(timeline)
        if at == shelf.snapshot_due and shelf.snapshot_at < at <= shelf.stored:
            assert session.state is not None
            return _Snapshot(timeline, host_snapshot(session.state.snapshot()), "turn")
        return None

    # -- what is not live ----------------------------------------------------------------------

    def _sweep(self, wait: Wait) -> None:
        """Store parked branches and segments that are not stored yet."""
        holders = self._memory.holders()
        self._swept &= {held.holder_id for held in holders}
        for held in holders:
            if held.holder_id not in self._swept and self._store_held(
                held, "it rests in memory only", wait
            ):
                self._swept.add(held.holder_id)

    def _let_go(self, held: Held) -> None:
        """Memory lets go of a branch: what of it is not stored is, as far as the queue takes it."""
        self._look_for_clearing()
        self._store_held(held, "memory lets it go", _before_loss)

    def _store_held(self, held: Held, why: str, wait: Wait) -> bool:
        if held.kind not in ("parked", "segment") or len(held.timeline) < MIN_TOKENS:
            return True
        if self._is_cleared(held.timeline):
            return True
        what = self._what.get(held.timeline.digest(), "")
        return self._store_whole(held.timeline, held.start, held.handle, what, why, wait)

    def _store_whole(
        self, timeline: Timeline, first: int, source: Any, what: str, why: str, wait: Wait
    ) -> bool:
        """False if it should be tried again: there was no memory for it now."""
        if self.failed:
            return True
        with self._harmless():
            self._put_whole(timeline, first, source, what, why, wait)
            return True
        return bool(self.failed)

    def _put_whole(
        self, timeline: Timeline, first: int, source: Any, what: str, why: str, wait: Wait
    ) -> None:
        at, end = self._disk.missing_from(timeline), len(timeline)
        layers = source.layers
        while first <= at < end:
            stop = min(end, at + PAGE_POSITIONS_MAX)
            stop = timeline.snapped(stop) if timeline.snapped(stop) > at else end
            found = (source.rows(i, at, stop) for i in range(len(layers)))
            rows = tuple(None if r is None else host_rows(r) for r in found)
            if not self._disk.put_page(
                timeline.prefix(stop), at, rows, what=what, why=why, wait_s=wait()
            ):
                return
            at = stop
        if at == end and getattr(source, "needs_snapshots", False):
            bounded = host_snapshot(source.snapshot())
            self._disk.put_snapshot(
                timeline, bounded.layers, "turn", what=what, why=why, wait_s=wait()
            )


def _before_loss() -> float:
    return LOSS_WAIT_S


def _system_end(session: Session) -> int:
    """Where the system prompt ends, if all of it is resident; else 0."""
    ends = [turn.end for turn in session.outline if turn.role == "system"]
    return ends[0] if ends and ends[0] <= len(session.timeline) else 0
