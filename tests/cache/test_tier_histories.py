"""Random histories of the memory tier alone: its numbered invariants after every step."""

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ds4tui.cache.memory_tier import MemoryTier
from ds4tui.cache.offers import Rates
from ds4tui.cache.survey import Standing
from ds4tui.cache.timeline import Timeline
from tests.scale import scaled

ROW = 10


class State:
    def can_rewind(self, to: int) -> bool:
        return True


ids = st.lists(st.integers(0, 1), min_size=1, max_size=8)
share = st.floats(0, 1)
steps = st.one_of(
    st.tuples(st.just("park"), ids, share),
    st.tuples(st.just("segment"), ids, share),
    st.tuples(st.just("snapshot"), ids, share),
    st.tuples(st.just("take"), ids, share),
    st.tuples(st.just("live"), ids, share),
    st.tuples(st.just("room"), ids, share),
    st.tuples(st.just("use"), ids, share),
    st.tuples(st.just("budget"), ids, share),
)


class History:
    """`keep` are the things that a plan for the last look-up would use."""

    def __init__(self, budget: int) -> None:
        self.budget, self.now = budget, 0.0
        self.tier = MemoryTier(lambda: self.budget, Rates(1000), lambda: self.now)
        self.live = Timeline.empty()
        self.tier.attach(lambda: self.live)

    def do(self, step: tuple[str, list[int], float]) -> None:
        name, numbers, part = step
        tier, timeline = self.tier, Timeline.of(numbers)
        self.now += 600 * part
        keep = {held.holder_id for held in tier.offers(timeline).rows[:2]}
        before, nbytes = dict(tier._survey()), tier.nbytes
        tier.drain_notes()
        key: Any = None
        if name == "park":
            key = tier.park(timeline, (), State(), len(timeline) * ROW, keep)
        elif name == "segment":
            start = min(int(part * len(timeline)), len(timeline) - 1)
            rows = len(timeline) - start
            key = tier.add_segment(timeline, (), start, object(), rows * ROW, keep)
        elif name == "snapshot":
            key = tier.add_snapshot(timeline, object(), 3 * ROW, "turn" if part < 0.5 else "chunk")
        elif name == "room":
            assert tier.make_room(round(part * 300), keep) or tier.nbytes == nbytes  # (3)
        else:
            self._other(name, timeline, part)
        if name in ("park", "segment", "room", "snapshot"):
            self._check_evictions(before, keep if name != "snapshot" else set())
        if name in ("park", "segment", "snapshot") and key is None:  # (3)
            assert name == "snapshot" or tier.nbytes == nbytes
        self._check()

    def _other(self, name: str, timeline: Timeline, part: float) -> None:
        tier = self.tier
        if name == "take":
            parked = [h for h in tier.offers(timeline).rows if h.kind == "parked"]
            if parked:
                held = tier.timeline(parked[0].holder_id)
                assert isinstance(tier.take_parked(parked[0].holder_id), State)
                self.live = held
                tier.settle()
        elif name == "live":
            self.live = timeline
            tier.settle()
            assert not any(standing.is_orphan for standing in tier._survey().values())  # (4)
        elif name == "use":
            for held in tier.offers(timeline).rows:
                tier.handle(held.holder_id)
        else:
            self.budget = round(part * 400)
            assert tier.make_room(0)

    def _check_evictions(self, before: dict[int, Standing], keep: set[int]) -> None:
        after = self.tier._survey()
        gone = set(before) - set(after)
        assert not gone & keep  # (2)
        for key, standing in after.items():  # (4): what is left has what it leaned on
            if key in before and not before[key].is_orphan:
                assert not standing.is_orphan
        notes = self.tier.drain_notes()
        assert len([n for n in notes if n.kind in ("evicted", "thinned")]) == len(gone)  # (6)
        assert all(note.reason for note in notes)

    def _check(self) -> None:
        tier = self.tier
        assert tier.nbytes <= self.budget  # (1)
        assert tier.nbytes == tier.parked_bytes + tier.segment_bytes + tier.snapshot_bytes
        held = [tier.timeline(key).ids.tolist() for key in tier._survey()]
        shared = {tuple(numbers[:n]) for numbers in held for n in range(1, 9)}
        assert tier._tree.nbytes <= 8 * len(shared)  # each id once


# What covers one gap made an orphan of what was behind the next.
COVERED_GAP = [
    ("budget", [0], 1.0),
    ("segment", [0, 1, 1, 1, 0, 0], 0.375),
    ("park", [0], 0.0),
    ("segment", [0, 1, 1, 1, 1, 0, 0, 0], 0.75),
    ("park", [0, 1], 0.0),
]


@example(history=COVERED_GAP, budget=0)
@given(st.lists(steps, max_size=30), st.integers(0, 400))
@settings(max_examples=scaled(250))
def test_the_invariants_hold(history: list[tuple[str, list[int], float]], budget: int) -> None:
    run = History(budget)
    for step in history:
        run.do(step)
