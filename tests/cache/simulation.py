"""A session without a model: a state is a list of rows, each tagged by all ids before it.

A row is true if its tag is that of the ids it stands for, so a plan that keeps a wrong row, or
sets a wrong bounded part, is found at once, whatever the executing side believes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ds4tui.cache.memory_tier import MemoryTier
from ds4tui.cache.offers import HOLDER_LIVE, Rates, Sizes
from ds4tui.cache.plan import SyncPlan, plan_sync
from ds4tui.cache.timeline import Timeline

Tag = bytes

RATES = Rates(prefill_tokens_per_s=100, copy_bytes_per_s=1e9)


@dataclass(frozen=True, slots=True)
class Family:
    """`slack` rows can be taken back without a snapshot; None: any number."""

    name: str
    slack: int | None
    row_bytes: int = 10
    snapshot_bytes: int = 30

    @property
    def needs_snapshots(self) -> bool:
        return self.slack is not None

    @property
    def sizes(self) -> Sizes:
        return Sizes(self.row_bytes, self.snapshot_bytes if self.needs_snapshots else 0)


FAMILIES = (Family("truncating", None), Family("window", 3), Family("recurrent", 0))


@dataclass(eq=False)
class SimState:
    """Rows as tags, and the tag of the bounded part."""

    family: Family
    rows: list[Tag] = field(default_factory=list)
    bounded: Tag = b""
    is_given_away: bool = False

    def can_rewind(self, to: int) -> bool:
        if self.family.slack is None:
            return 0 <= to <= len(self.rows)
        return to == 0 or len(self.rows) - self.family.slack <= to <= len(self.rows)

    def nbytes(self) -> int:
        return self.family.sizes.whole_bytes(len(self.rows))


@dataclass(frozen=True)
class Segment:
    start: int
    rows: tuple[Tag, ...]


class SimSession:
    """Executes plans in the order that the contract asks for, checking each step."""

    def __init__(self, family: Family, tier: MemoryTier) -> None:
        self.family, self.tier = family, tier
        self.state = SimState(family)
        self.timeline = Timeline.empty()
        self.poisoned: str | None = None
        self.evaluated = 0
        tier.attach(lambda: self.timeline)

    def plan(self, wanted: Timeline) -> SyncPlan:
        offers = self.tier.offers(wanted)
        return plan_sync(
            self.timeline,
            wanted,
            can_rewind=self.state.can_rewind,
            needs_snapshots=self.family.needs_snapshots,
            poisoned=self.poisoned,
            offers=offers,
            rates=self.tier.rates,
            sizes=self.family.sizes,
        )

    def sync(
        self, wanted: Timeline, stop_after: int | None = None, borders: Sequence[int] = ()
    ) -> SyncPlan:
        """Get to `wanted`; with `stop_after`, cancelled after so many evaluated tokens. There are
        snapshots at `borders`."""
        plan = self.plan(wanted)
        assert plan == self.plan(wanted), "planning changed something"
        self._execute(plan, wanted)
        last = wanted.snapped(len(wanted) - 1)
        end = len(wanted)
        if stop_after is not None:
            end = max(plan.kept, wanted.snapped(min(end, plan.kept + stop_after)))
        for border in borders:
            if plan.kept < border < min(last, end):
                self._evaluate(wanted, border)
                self.snapshot("turn")
        self._evaluate(wanted, min(last, end))
        self.snapshot("before last")
        self._evaluate(wanted, end)
        return plan

    def append(self, ids: Sequence[int]) -> None:
        spacing = self.tier.spacing_tokens(self.family.snapshot_bytes)
        for i, token in enumerate(ids):
            self._evaluate(self.timeline.extended([token]), len(self.timeline) + 1)
            if i % spacing == spacing - 1:
                self.snapshot("decode")
        self.snapshot("turn")

    def poison(self) -> None:
        self.state, self.timeline = SimState(self.family), Timeline.empty()
        self.poisoned = "a fault"
        self.tier.settle()

    def snapshot(self, point: str) -> None:
        if self.family.needs_snapshots and len(self.timeline):
            self.tier.add_snapshot(
                self.timeline, self.state.bounded, self.family.snapshot_bytes, point
            )

    def _evaluate(self, wanted: Timeline, end: int) -> None:
        start = len(self.timeline)
        self.state.rows += [wanted.digest(position + 1) for position in range(start, end)]
        self.evaluated += max(0, end - start)
        if end > start:
            self.timeline = wanted.prefix(end)
            self.state.bounded = self.timeline.digest()

    def _execute(self, plan: SyncPlan, wanted: Timeline) -> None:
        tier, old, old_timeline = self.tier, self.state, self.timeline
        sources = {p.holder: tier.handle(p.holder) for p in plan.parts if p.holder != HOLDER_LIVE}
        sources[HOLDER_LIVE] = old
        bounded = tier.handle(plan.snapshot_id) if plan.snapshot_id is not None else None
        base, base_timeline = self._base(plan)
        if plan.base_tail == "tail":
            self._keep_tail(base, base_timeline, plan.base_rows, plan)
        if plan.put_away == "tail":
            self._keep_tail(old, old_timeline, plan.tail_start, plan)
        copied = [tag for part in plan.parts for tag in _rows(sources[part.holder], part)]
        if plan.put_away == "whole":
            tier.park(old_timeline, (), old, old.nbytes(), keep=plan.uses)
        if bounded is None and plan.kept:
            assert base.can_rewind(plan.base_rows)
            assert not copied or not self.family.needs_snapshots
            bounded = wanted.digest(plan.base_rows)
            if plan.base_rows == len(base.rows):
                bounded = base.bounded
        base.rows = base.rows[: plan.base_rows] + copied
        if self.family.needs_snapshots:
            base.bounded = bounded or b""
        self._check(base, plan, wanted)
        self.state, self.timeline, self.poisoned = base, wanted.prefix(plan.kept), None
        tier.settle()

    def _base(self, plan: SyncPlan) -> tuple[SimState, Timeline]:
        if plan.base == "live":
            return self.state, self.timeline
        if plan.base == "fresh":
            return SimState(self.family), Timeline.empty()
        assert plan.base_id is not None
        timeline = self.tier.timeline(plan.base_id)
        return self.tier.take_parked(plan.base_id), timeline

    def _keep_tail(self, state: SimState, timeline: Timeline, start: int, plan: SyncPlan) -> None:
        """Never taken from an already truncated state: all its rows are there."""
        assert len(state.rows) == len(timeline)
        start = self.tier.unheld_from(timeline, start)
        if start < len(timeline):
            rows = Segment(start, tuple(state.rows[start:]))
            nbytes = self.family.row_bytes * len(rows.rows)
            self.tier.add_segment(timeline, (), start, rows, nbytes, keep=plan.uses)
        if self.family.needs_snapshots:
            args = (timeline, state.bounded, self.family.snapshot_bytes, "turn")
            self.tier.add_snapshot(*args, keep=plan.uses)

    def _check(self, base: SimState, plan: SyncPlan, wanted: Timeline) -> None:
        true = [wanted.digest(position + 1) for position in range(plan.kept)]
        assert base.rows == true, f"untrue rows were kept: {plan}"
        if self.family.needs_snapshots and plan.kept:
            assert base.bounded == wanted.digest(plan.kept), f"untrue bounded part: {plan}"


def _rows(source: SimState | Segment, part: object) -> list[Tag]:
    start, end = part.start, part.end  # type: ignore[attr-defined]
    if isinstance(source, Segment):
        rows = list(source.rows[start - source.start : end - source.start])
        assert source.start <= start
    else:
        rows = source.rows[start:end]
    assert len(rows) == end - start, "rows that are not there"
    return rows
