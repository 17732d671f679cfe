"""What is left of a branch when a session turns to another one: parked whole, its tail copied,
its bounded part snapshotted. The memory tier is asked before anything is allocated; for a copy
that finds no memory nothing is torn, and only the branch is given up."""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, TypeVar

from ds4tui.cache.causes import Cause
from ds4tui.cache.memory_tier import NO_ROOM, MemoryTier
from ds4tui.cache.outline import Outline
from ds4tui.cache.timeline import Timeline
from ds4tui.engine.fork_points import Point
from ds4tui.engine.no_memory import is_no_memory
from ds4tui.engine.pieces import State

_log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Branch:
    """A state, live or parked, and what it stands for; `state` is None where nothing is held."""

    state: Any  # State | None; who asks it for rows knows that it is there
    timeline: Timeline
    outline: Outline

    @property
    def rows(self) -> int:
        return len(self.timeline)

    def park(self, memory: MemoryTier, uses: Collection[int] = ()) -> int | None:
        """Give the whole of it to the tier, which may refuse (None; its notes say why); nothing
        of `uses` makes way."""
        return memory.park(self.timeline, self.outline, self.state, self.state.nbytes, uses)

    def give_up(
        self, memory: MemoryTier, since: int, cause: Cause = Cause.BRANCH_EVICTED, reason: str = ""
    ) -> None:
        """Rows from `since` on are lost, and remembered as that; noted where a `reason` is
        given."""
        memory.lose(self.timeline, self.outline, since, cause, reason)


@dataclass(frozen=True, slots=True)
class Tail:
    """Copied rows [start, len(timeline)) of a branch that is about to be cut."""

    timeline: Timeline
    outline: Outline
    start: int
    rows: Any  # engine.state.RowSegment

    def keep(self, memory: MemoryTier, uses: Collection[int] = ()) -> int | None:
        """Give them to the tier: once the state that they came from is cut, so that they are
        not taken for held already. Nothing of `uses` makes way."""
        return memory.add_segment(
            self.timeline, self.outline, self.start, self.rows, self.rows.nbytes, uses
        )


def copied_tail(
    memory: MemoryTier, branch: Branch, cut_at: int, uses: Collection[int] = ()
) -> Tail | None:
    """Copies of the rows from `cut_at` on, as far as nobody else holds them, and a snapshot of
    the branch's end. None where no row is left; where there is no room they are given up, and
    that is noted. Nothing of `uses` makes way."""
    state, timeline = branch.state, branch.timeline
    add_snapshot(memory, state, timeline, "turn", uses)
    start = memory.unheld_from(timeline, cut_at)  # who holds those before is among `uses`
    nbytes = state.rows_bytes(start, len(timeline))
    if not nbytes:
        return None
    worth_ms = memory.rates.prefill_ms(len(timeline) - start)
    rows = None
    if memory.make_room(nbytes, uses, worth_ms):
        rows = _copied(lambda: state.copy_rows(start, len(timeline)), "the end of a branch")
    if rows is None:
        branch.give_up(memory, start, reason="there is no room for a copy")
        return None
    return Tail(timeline, branch.outline, start, rows)


def add_snapshot(
    memory: MemoryTier,
    state: State,
    timeline: Timeline,
    point: Point,
    uses: Collection[int] = (),
) -> None:
    """Give the tier the bounded part of `state`, which stands for `timeline`, if there is one,
    none stands there already, and there is room; else whoever misses it is told."""
    if not state.needs_snapshots or not len(timeline):
        return
    standing = memory.snapshots_of(timeline)
    if standing and standing[-1] == len(timeline):
        return
    spares = len(timeline) - (standing[-1] if standing else 0)
    if not memory.make_room(state.snapshot_bytes, uses, memory.rates.prefill_ms(spares)):
        memory.refuse_snapshot(timeline, state.snapshot_bytes, NO_ROOM)
        return
    bounded = _copied(state.snapshot, f"a snapshot at {len(timeline)}")
    if bounded is None:
        memory.refuse_snapshot(timeline, state.snapshot_bytes, "there is no memory for a copy")
        return
    memory.add_snapshot(timeline, bounded, bounded.nbytes, point, uses)


def _copied(copy: Callable[[], T], what: str) -> T | None:
    """What `copy` gives; None if there was no memory for it."""
    try:
        return copy()
    except (MemoryError, RuntimeError) as exc:
        if not is_no_memory(exc):
            raise
        _log.warning("%s is not kept: %s", what, exc or "no memory")
        return None
