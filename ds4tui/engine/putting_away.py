"""What is left of a branch when a session turns to another one: parked whole, its tail copied,
its bounded part snapshotted. The memory tier is asked before anything is allocated."""

import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ds4tui.cache.memory_tier import MemoryTier
from ds4tui.cache.outline import Outline
from ds4tui.cache.timeline import Timeline
from ds4tui.engine.fork_points import Point
from ds4tui.engine.pieces import State

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Branch:
    """A state, live or parked, and what it stands for; `state` is None where nothing is held."""

    state: Any  # State | None; who asks it for rows knows that it is there
    timeline: Timeline
    outline: Outline

    @property
    def rows(self) -> int:
        return len(self.timeline)

    def park(self, memory: MemoryTier, uses: Collection[int] = ()) -> None:
        """Give the whole of it to the tier, which may refuse (its notes say why); nothing of
        `uses` makes way."""
        memory.park(self.timeline, self.outline, self.state, self.state.nbytes, uses)


@dataclass(frozen=True, slots=True)
class Tail:
    """Copied rows [start, len(timeline)) of a branch that is about to be cut."""

    timeline: Timeline
    outline: Outline
    start: int
    rows: Any  # engine.state.RowSegment

    def keep(self, memory: MemoryTier) -> None:
        """Give them to the tier: once the state that they came from is cut, so that they are
        not taken for held already."""
        memory.add_segment(self.timeline, self.outline, self.start, self.rows, self.rows.nbytes)


def copied_tail(
    memory: MemoryTier, branch: Branch, cut_at: int, uses: Collection[int] = ()
) -> Tail | None:
    """Copies of the rows from `cut_at` on, as far as nobody else holds them, and a snapshot of
    the branch's end. None where no row is left or there is no room; nothing of `uses` makes
    way."""
    state, timeline = branch.state, branch.timeline
    add_snapshot(memory, state, timeline, "turn", uses)
    start = memory.unheld_from(timeline, cut_at)
    nbytes = state.rows_bytes(start, len(timeline))
    worth_ms = memory.rates.prefill_ms(len(timeline) - cut_at)
    if not nbytes or not memory.make_room(nbytes, uses, worth_ms):
        return None
    try:
        rows = state.copy_rows(start, len(timeline))
    except MemoryError as exc:  # nothing is torn: the branch is given up
        _log.warning("rows %d to %d are not kept: %s", start, len(timeline), exc or "no memory")
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
    none stands there already, and there is room."""
    if not state.needs_snapshots or not len(timeline):
        return
    standing = memory.snapshots_of(timeline)
    if standing and standing[-1] == len(timeline):
        return
    spares = len(timeline) - (standing[-1] if standing else 0)
    if not memory.make_room(state.snapshot_bytes, uses, memory.rates.prefill_ms(spares)):
        return
    try:
        bounded = state.snapshot()
    except MemoryError as exc:  # nothing is torn: only a later fork costs more
        _log.warning("no snapshot at %d: %s", len(timeline), exc or "no memory")
        return
    memory.add_snapshot(timeline, bounded, bounded.nbytes, point, uses)
