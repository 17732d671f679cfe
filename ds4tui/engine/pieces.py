"""What a plan is executed with: the rows and bounded parts that it names, looked up before
anything changes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ds4tui.cache.memory_tier import MemoryTier
from ds4tui.cache.offers import HOLDER_LIVE
from ds4tui.cache.plan import SyncPlan
from ds4tui.errors import EngineError

Rows = Any  # engine.state.RowSource: a state or a segment, which answers rows(layer, start, end)
Bounded = Any  # engine.state.BoundedState


class State(Protocol):
    """What a session needs of engine.state.ModelState."""

    @property
    def length(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def needs_snapshots(self) -> bool: ...
    @property
    def snapshot_bytes(self) -> int: ...
    def can_rewind(self, to: int) -> bool: ...
    def rows_bytes(self, start: int, end: int) -> int: ...
    def copy_rows(self, start: int, end: int) -> Any: ...
    def snapshot(self) -> Any: ...
    def rebuild(self, keep: int, parts: Any, bounded: Any = None) -> None: ...


@dataclass(frozen=True, slots=True)
class Pieces:
    """`parts` are (source, start, end), each behind the one before; `bounded` is what bounded
    layers are set from, None where they go back by themselves."""

    parts: tuple[tuple[Rows, int, int], ...]
    bounded: Bounded

    def rebuild(self, state: State, keep: int) -> None:
        """Make `state` hold its first `keep` rows and the parts. Raises as ModelState.rebuild."""
        state.rebuild(keep, self.parts, self.bounded)


def look_up(
    plan: SyncPlan, memory: MemoryTier, live: State | None, neighbours: Mapping[int, State | None]
) -> Pieces:
    """Raises EngineError, and nothing has changed, if something is not there any more."""
    sources: dict[int, Rows] = {HOLDER_LIVE: live, **neighbours}
    try:
        if plan.base == "parked":
            memory.timeline(plan.base_id or 0)
        parts = tuple(
            (sources[p.holder] if p.holder in sources else memory.handle(p.holder), p.start, p.end)
            for p in plan.parts
        )
        bounded = memory.handle(plan.snapshot_id) if plan.snapshot_id is not None else None
    except KeyError as exc:
        raise EngineError(
            f"What the plan takes is not held any more ({exc}).", "Ask for a new plan."
        ) from exc
    if any(source is None for source, _, _ in parts):
        raise EngineError("The rows that the plan takes are gone.", "Ask for a new plan.")
    return Pieces(parts, bounded)
