"""What a plan is executed with: the rows and bounded parts that it names, looked up before
anything changes."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ds4tui.cache.candidates import RowPart
from ds4tui.cache.kvstore import DiskTier
from ds4tui.cache.memory_tier import MemoryTier
from ds4tui.cache.offers import HOLDER_LIVE, HeldRows
from ds4tui.cache.outline import Outline
from ds4tui.cache.plan import SyncPlan
from ds4tui.cache.timeline import Timeline
from ds4tui.engine.disk_rows import DiskRows, begin_reading, bounded_from_disk, is_on_disk
from ds4tui.engine.models.rows import Rows as ModelRows
from ds4tui.errors import EngineError

Rows = Any  # engine.state.RowSource: a state or a segment, which answers rows(layer, start, end)
Bounded = Any  # engine.state.BoundedState


class Model(Protocol):
    """What a session needs of a model. When `forward` returns, the rows are in the state and
    computed; it gives float32 [n, vocab] for the rows asked for, None for logits="none"."""

    @property
    def context_tokens(self) -> int: ...
    def new_state(self) -> Any: ...
    def forward(self, rows: ModelRows, state: Any) -> Any: ...
    def kv_bytes(self, tokens: int) -> int: ...


class State(Protocol):
    """What a session needs of engine.state.ModelState."""

    @property
    def length(self) -> int: ...
    @property
    def layers(self) -> Any: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def needs_snapshots(self) -> bool: ...
    @property
    def snapshot_bytes(self) -> int: ...
    def has_room(self, count: int) -> bool: ...
    def can_rewind(self, to: int) -> bool: ...
    def rewind(self, to: int) -> None: ...
    def rows(self, layer: int, start: int, end: int) -> Any: ...
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
    is_bounded_from_disk: bool = False

    def rebuild(self, state: State, keep: int) -> None:
        """Make `state` hold its first `keep` rows and the parts. Raises as ModelState.rebuild,
        and CorruptRecord for a page that cannot be read: the state is to be thrown away then."""
        state.rebuild(keep, self.parts, self.bounded)

    def keep_bounded(
        self, memory: MemoryTier, timeline: Timeline, put_away: Collection[int] = ()
    ) -> None:
        """A bounded part that was read from disk serves the next fork from memory, where there is
        room for it: what the plan has just put away makes none."""
        if self.is_bounded_from_disk:
            memory.add_snapshot(timeline, self.bounded, self.bounded.nbytes, "turn", put_away)


class Neighbour(Protocol):
    """Another session of the pool."""

    number: int

    @property
    def timeline(self) -> Timeline: ...
    @property
    def outline(self) -> Outline: ...


def neighbours_rows(neighbours: Iterable[Neighbour], wanted: Timeline) -> tuple[HeldRows, ...]:
    """What other sessions hold of `wanted`, as rows that can be copied."""
    found = ((other, other.timeline) for other in neighbours if len(other.timeline))
    held = (
        HeldRows(
            -other.number,
            "segment",
            0,
            len(t),
            t.common_prefix(wanted),
            outline=other.outline,
            spans=t.spans,
        )
        for other, t in found
    )
    return tuple(rows for rows in held if rows.common)


def look_up(
    plan: SyncPlan,
    memory: MemoryTier,
    live: State | None,
    neighbours: Mapping[int, State | None],
    disk: DiskTier | None = None,
    layers: Sequence[Any] = (),
) -> Pieces:
    """`layers` are those of a state of the model. Raises EngineError, and nothing has changed, if
    something is not there any more, CorruptRecord if it cannot be read."""
    on_hand: dict[int, Rows] = {HOLDER_LIVE: live, **neighbours}

    def source(part: RowPart) -> Rows:
        if part.holder in on_hand:
            return on_hand[part.holder]
        if disk is not None and is_on_disk(part.holder):
            return DiskRows(disk, part.holder, part.start, part.end, layers)
        return memory.handle(part.holder)

    snapshot_id = plan.snapshot_id
    from_disk = disk is not None and snapshot_id is not None and is_on_disk(snapshot_id)
    if disk is not None:
        disk.read_ahead([holder for holder in plan.uses if is_on_disk(holder)])
    try:
        if plan.base == "parked":
            memory.timeline(plan.base_id or 0)
        parts = tuple((source(part), part.start, part.end) for part in plan.parts)
        bounded: Bounded = None
        if from_disk:
            bounded = bounded_from_disk(disk, snapshot_id, layers)  # type: ignore[arg-type]
        elif snapshot_id is not None:
            bounded = memory.handle(snapshot_id)
    except KeyError as exc:
        raise EngineError(
            f"What the plan takes is not held any more ({exc}).", "Ask for a new plan."
        ) from exc
    if any(found is None for found, _, _ in parts):
        raise EngineError("The rows that the plan takes are gone.", "Ask for a new plan.")
    begin_reading([found for found, _, _ in parts if isinstance(found, DiskRows)])
    return Pieces(parts, bounded, from_disk)
