"""Random histories of a simulated session over plans and memory tier, on every kind of state."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.cache.memory_tier import MemoryTier
from ds4tui.cache.plan import PlanKind
from ds4tui.cache.timeline import Timeline
from tests.cache.pictures import span, with_images
from tests.cache.simulation import FAMILIES, RATES, Family, SimSession
from tests.scale import scaled

# Few ids and pictures: what is new often turns out to be old.
parts = st.lists(
    st.one_of(
        st.integers(0, 2), st.integers(0, 2), st.sampled_from([span(0, 2, 1), span(0, 3, 2)])
    ),
    min_size=1,
    max_size=6,
)
fraction = st.floats(0, 1)
steps = st.one_of(
    st.tuples(st.just("extend"), parts),
    st.tuples(st.just("fork"), fraction, parts),
    st.tuples(st.just("edit"), fraction, parts),
    st.tuples(st.just("back"), st.integers(0, 20), parts),
    st.tuples(st.just("again"), st.integers(0, 20)),
    st.tuples(st.just("cancel"), fraction, parts, st.integers(0, 5)),
    st.tuples(st.just("decode"), st.lists(st.integers(0, 2), min_size=1, max_size=4)),
)
troubles = st.one_of(
    st.tuples(st.just("evict"), st.integers(0, 3_000)),
    st.tuples(st.just("budget"), st.integers(0, 3_000)),
    st.tuples(st.just("poison")),
    st.tuples(st.just("switch")),
)


class Run:
    """One or two sessions over one tier; `asked` are all prompts so far, as their parts."""

    def __init__(self, family: Family, budget: int, sessions: int = 1) -> None:
        self.budget, self.now = budget, 0.0
        self.tier = MemoryTier(lambda: self.budget, RATES, lambda: self.now)
        self.sessions = [SimSession(family, self.tier) for _ in range(sessions)]
        self.asked: list[list[Any]] = [[0]]
        self.computed: set[bytes] = set()

    @property
    def session(self) -> SimSession:
        return self.sessions[0]

    def do(self, step: tuple[Any, ...]) -> None:
        self.now += 100.0
        name = step[0]
        if name == "decode":
            if len(self.session.timeline):
                self.session.append(step[1])
                self._note(self.session.timeline)
        elif name in ("evict", "budget", "poison", "switch"):
            self._trouble(step)
        else:
            self._ask(self._prompt(step), step[3] if name == "cancel" else None)
        assert self.tier.nbytes <= self.budget or name == "budget"

    def _prompt(self, step: tuple[Any, ...]) -> list[Any]:
        last, name = self.asked[-1], step[0]
        if name == "extend":
            return last + step[1]
        if name in ("back", "again"):
            return self.asked[step[1] % len(self.asked)] + (step[2] if name == "back" else [])
        at = round(step[1] * len(last))
        return last[:at] + step[2] + (last[at + 1 :] if name == "edit" else [])

    def _ask(self, prompt: list[Any], stop_after: int | None) -> None:
        wanted, session = with_images(*prompt), self.session
        needed = len(wanted) - self._computed_of(wanted)
        before = session.evaluated
        plan = session.sync(wanted, stop_after)
        self.asked.append(prompt)
        self.last = (plan, needed, session.evaluated - before)
        self._note(session.timeline)

    def _computed_of(self, wanted: Timeline) -> int:
        """How many of its first ids were ever computed behind each other, its last one apart."""
        known = 0
        while known < len(wanted) and wanted.digest(known + 1) in self.computed:
            known += 1
        # An image of which rows were never computed alone is computed whole.
        return wanted.snapped(min(wanted.snapped(known), wanted.snapped(len(wanted) - 1)))

    def _note(self, timeline: Timeline) -> None:
        self.computed |= {timeline.digest(i + 1) for i in range(len(timeline))}

    def _trouble(self, step: tuple[Any, ...]) -> None:
        if step[0] == "evict":
            self.tier.make_room(min(step[1], self.budget))
        elif step[0] == "budget":
            self.budget = step[1]
            self.tier.make_room(0)
            assert self.tier.nbytes <= self.budget
        elif step[0] == "poison":
            self.session.poison()
        else:
            self.sessions.reverse()


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@given(
    st.lists(st.one_of(steps, steps, troubles), max_size=25),
    st.integers(0, 4_000),
    st.integers(1, 2),
)
@settings(max_examples=scaled(150))
def test_what_is_kept_is_true(
    family: Family, history: list[tuple[Any, ...]], budget: int, sessions: int
) -> None:
    """Whatever was forked, evicted, poisoned and switched: checked in the simulation itself."""
    run = Run(family, budget, sessions)
    for step in history:
        run.do(step)


@given(st.lists(steps, max_size=25))
@settings(max_examples=scaled(150))
def test_with_room_nothing_is_computed_twice(history: list[tuple[Any, ...]]) -> None:
    """Work ratio 1.00: what is evaluated is what was never computed, or the last token."""
    run = Run(FAMILIES[0], 10**9)
    for step in history:
        run.do(step)
        if step[0] not in ("decode", "cancel"):
            plan, needed, evaluated = run.last
            assert (plan.to_evaluate, evaluated) == (needed, needed), plan.reason
            assert plan.replayed == 0
    assert not run.tier.drain_notes()


@pytest.mark.parametrize("family", FAMILIES[1:], ids=lambda family: family.name)
@given(st.lists(steps, max_size=25), parts, parts)
@settings(max_examples=scaled(60))
def test_coming_back_costs_the_new_tokens_on_every_family(
    family: Family, history: list[tuple[Any, ...]], left: list[Any], right: list[Any]
) -> None:
    """Two branches, asked in turn with whatever between them: each goes on where it was left."""
    run = Run(family, 10**9)
    for step in history:
        run.do(step)
    for _ in range(2):
        for name, branch in ((10, left), (11, right)):
            run._ask([*run.asked[1 if len(run.asked) > 1 else 0], name, *branch], None)
    plan, _, evaluated = run.last
    last = with_images(*run.asked[-1])
    assert evaluated == len(last) - last.snapped(len(last) - 1), plan.reason
    assert plan.kind is not PlanKind.COLD or len(last) == evaluated
