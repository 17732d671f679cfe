"""How a session turns to another branch, as its plan says.

The live state is out of the session by now. What fails on the way loses as little as can be: a
parked state that was taken goes back to the tier while nothing of it is changed; what is lost is
remembered, so that whoever wants it again is told why it is not there.
"""

from dataclasses import dataclass, field
from typing import Any

from ds4tui.cache.causes import Cause
from ds4tui.cache.memory_tier import MemoryTier
from ds4tui.cache.plan import SyncPlan
from ds4tui.engine.pieces import Pieces
from ds4tui.engine.putting_away import Branch, Tail, copied_tail


@dataclass(slots=True)
class Switch:
    """`left` is the live branch that is left, `base` the one that is gone on with: the same, a
    parked one that was taken out of the tier, or a fresh state."""

    memory: MemoryTier
    plan: SyncPlan
    left: Branch
    base: Branch
    put_away: set[int] = field(default_factory=set)  # ids of what the tier took for it
    _tails: list[Tail] = field(default_factory=list)
    _is_left_safe: bool = False
    _is_base_changed: bool = False

    def made(self, pieces: Pieces) -> Any:
        """The state that holds what the plan keeps. Raises whatever fails on the way; `failed`
        is to be called then."""
        self._put_away()
        if self.left is not self.base:
            self.left = Branch(None, self.left.timeline, self.left.outline)  # free, if not parked
        if not self.plan.kept == self.plan.base_rows == self.base.rows:
            self._is_base_changed = True
            pieces.rebuild(self.base.state, self.plan.base_rows)
        return self.base.state

    def _put_away(self) -> None:
        """Park the state that is left, or copy what is cut off; the copies are the tier's once
        the new timeline is live."""
        plan, left, base = self.plan, self.left, self.base
        if plan.put_away == "whole":
            self._took(left.park(self.memory, plan.uses))
            self._is_left_safe = True
        cuts = [(left, plan.tail_start)] if plan.put_away == "tail" else []
        cuts += [(base, plan.base_rows)] if plan.base_tail == "tail" else []
        copied = [copied_tail(self.memory, cut, at, plan.uses) for cut, at in cuts]
        self._tails = [tail for tail in copied if tail is not None]

    def done(self, rows: int | None = None) -> None:
        """The new timeline is live, with `rows` rows if not with all that the plan keeps: what
        was copied is the tier's now, what is lost is remembered."""
        kept = self.plan.kept if rows is None else rows
        for tail in self._tails:
            self._took(tail.keep(self.memory, self.put_away))
        if self.plan.put_away == "drop":
            self.left.give_up(self.memory, min(self.plan.tail_start, kept))
        if self.plan.base_tail == "drop":
            self.base.give_up(self.memory, min(self.plan.base_rows, kept))
        if kept < self.plan.base_rows:
            self.base.give_up(self.memory, kept)

    def _took(self, holder_id: int | None) -> None:
        if holder_id is not None:
            self.put_away.add(holder_id)

    def sound_rows(self) -> int:
        """How many rows of the base are those that were wanted, after a rebuild that met a record
        that cannot be read; the state is cut to them. 0: it is of no use."""
        state = self.base.state
        rows = self.plan.base_rows if state.needs_snapshots else state.length
        if not rows or not state.can_rewind(rows):
            return 0
        state.rewind(rows)
        return int(rows)

    def failed(self, *, is_state_sound: bool) -> None:
        """Nothing is live: what is whole goes to the tier, and what is lost is remembered.
        `is_state_sound`: all that failed was to get memory, so that a parked base of which
        nothing is cut off or added yet is good."""
        if self.plan.base_id is not None and self._is_base_whole(is_state_sound):
            self.memory.take_back(self.plan.base_id, self.base.state)
        elif self.plan.base_id is not None:
            self.base.give_up(self.memory, 0, Cause.SESSION_POISONED)
        if not self._is_left_safe:
            self.left.give_up(self.memory, 0, Cause.SESSION_POISONED)
        self.memory.settle()

    def _is_base_whole(self, is_state_sound: bool) -> bool:
        """Whether nothing of it is changed: a rebuild cuts first, and then adds."""
        if not self._is_base_changed:
            return True
        lengths = {layer.length for layer in self.base.state.layers}
        return is_state_sound and lengths == {self.base.rows}
