"""Agent sessions of the kinds that were reported, at the level of plans and memory tier: how much
is evaluated beside what is needed. The bytes and rates are those of a 27B model with 48 recurrent
layers on a machine that leaves 26 GB, in units of a tenth of a row."""

import random
from dataclasses import dataclass, field

import pytest

from ds4tui.cache.memory_tier import MemoryTier
from ds4tui.cache.offers import Rates
from ds4tui.cache.timeline import Timeline
from tests.cache.simulation import Family, SimSession

ROW, SNAPSHOT, BUDGET = 10, 22_400, 3_900_000
RATES = Rates(prefill_tokens_per_s=500, decode_tokens_per_s=20, copy_bytes_per_s=763_000)

TRUNCATING = Family("truncating", None, ROW)
RECURRENT = Family("recurrent", 0, ROW, SNAPSHOT)
WINDOW = Family("window", 256, ROW, SNAPSHOT)


@dataclass
class Agent:
    """A client: turns as lists of ids, the last of them the reply that was sampled."""

    session: SimSession
    seed: int
    turns: list[list[int]] = field(default_factory=list)
    needed: int = 0
    steps: int = 0
    computed: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.turns = [self.new(3_000)]

    def new(self, most: int) -> list[int]:
        return [self.random.randrange(50_000) for _ in range(self.random.randint(most // 4, most))]

    def ask(self, turns: list[list[int]], reply: int = 250) -> list[int]:
        """One request: what is new of it is needed, what was computed before is not."""
        wanted = Timeline.of([token for turn in turns for token in turn])
        borders, at = [], 0
        for turn in turns:
            at += len(turn)
            borders.append(at)
        known = self._known(wanted)
        self.needed += len(wanted) - min(known, len(wanted) - 1)
        self.session.sync(wanted, borders=borders)
        said = self.new(reply)
        self.session.append(said[:-1])  # the last one is fed by the next prompt
        self.needed += len(said) - 1
        self.steps += 1
        timeline = self.session.timeline
        self.computed |= {timeline.digest(i + 1) for i in range(known, len(timeline))}
        return said

    def _known(self, wanted: Timeline) -> int:
        low, high = 0, len(wanted)
        while low < high:
            middle = (low + high + 1) // 2
            if wanted.digest(middle) in self.computed:
                low = middle
            else:
                high = middle - 1
        return low

    def go_on(self) -> None:
        self.turns.append(self.new(400))
        self.turns.append(self.ask(self.turns))

    def reserialised(self) -> None:
        """The client sends the last reply back with another tail."""
        last = self.turns[-1]
        at = self.random.randrange(len(last))
        self.turns[-1] = last[:at] + self.new(8) + last[at + 2 :]
        self.go_on()

    def side_request(self) -> None:
        """Shares the system prompt only, as for a title."""
        self.ask([self.turns[0], self.new(100)], reply=20)

    def edited(self) -> None:
        """Somebody edits an earlier message, and the conversation goes on from there."""
        place = self.random.randrange(1, len(self.turns) - 1)
        self.turns = [*self.turns[:place], self.new(300)]
        self.turns.append(self.ask(self.turns))

    def branch_and_return(self) -> None:
        kept = list(self.turns)
        self.edited()
        self.turns = kept
        self.go_on()

    def regenerated(self) -> None:
        self.turns = [*self.turns[:-1], self.ask(self.turns[:-1])]


MIX = (
    *[Agent.go_on] * 6,
    Agent.reserialised,
    Agent.reserialised,
    Agent.side_request,
    Agent.edited,
    Agent.branch_and_return,
    Agent.regenerated,
)


def run(family: Family, seed: int) -> Agent:
    agent = Agent(SimSession(family, MemoryTier(BUDGET, RATES, lambda: 0.0)), seed)
    for _ in range(3):
        agent.go_on()
    for _ in range(36):
        agent.random.choice(MIX)(agent)
    return agent


@pytest.mark.parametrize("seed", [1, 2])
def test_a_truncating_family_evaluates_what_is_needed(seed: int) -> None:
    agent = run(TRUNCATING, seed)
    assert agent.session.evaluated == agent.needed


@pytest.mark.parametrize("family", [RECURRENT, WINDOW], ids=lambda family: family.name)
@pytest.mark.parametrize("seed", [1, 2])
def test_others_replay_little(family: Family, seed: int) -> None:
    """At most 5 % of what is needed, and 16 tokens a step."""
    agent = run(family, seed)
    replayed = agent.session.evaluated - agent.needed
    assert replayed <= 0.05 * agent.needed + 16 * agent.steps
    assert agent.session.tier.snapshot_count <= BUDGET // SNAPSHOT


@pytest.mark.parametrize("family", [TRUNCATING, RECURRENT, WINDOW], ids=lambda f: f.name)
def test_a_second_turn_computes_its_new_tokens_only(family: Family) -> None:
    """T23, T35, T37, T43: append-only chats, from the second turn on, whatever their lengths."""
    agent = Agent(SimSession(family, MemoryTier(BUDGET, RATES, lambda: 0.0)), 5)
    agent.go_on()
    for _ in range(8):
        agent.turns.append(agent.new(800))
        wanted = Timeline.of([token for turn in agent.turns for token in turn])
        assert agent.session.plan(wanted).to_evaluate == len(agent.turns[-1]) + 1
        agent.turns.append(agent.ask(agent.turns))


@pytest.mark.parametrize("family", [TRUNCATING, RECURRENT, WINDOW], ids=lambda f: f.name)
def test_a_side_request_costs_the_long_session_nothing(family: Family) -> None:
    agent = Agent(SimSession(family, MemoryTier(BUDGET, RATES, lambda: 0.0)), 6)
    for _ in range(12):
        agent.go_on()
    for _ in range(5):
        agent.side_request()
        agent.turns.append(agent.new(100))
        wanted = Timeline.of([token for turn in agent.turns for token in turn])
        plan = agent.session.plan(wanted)
        assert (plan.to_evaluate, plan.source) == (len(agent.turns[-1]) + 1, "parked")
        agent.turns.append(agent.ask(agent.turns))
