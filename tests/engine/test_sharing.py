"""Shares of the engine's time among prompts and replies, on a clock that steps move."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.engine.requests import Origin
from ds4tui.engine.sharing import (
    BURST_S,
    PERSONS_READING_SHARE,
    READING_SHARE,
    SHARED_CHUNK_ROWS,
    SHARED_CHUNK_S,
    TOKENS_IN_A_ROW,
    Turns,
)
from tests.scale import scaled

SIZES = tuple(range(512, 0, -32))


@dataclass(eq=False)
class Work:
    """A job: rows of its prompt, then tokens of its reply."""

    origin: Origin = "agent"
    rows: int = 0
    tokens: int = 10**9
    row_s: float = 1 / 600
    token_s: float = 0.01
    took_s: float = 0.0  # of all its steps so far
    ended_at_s: float = 0.0
    read_at_s: float = 0.0
    chunks: list[int] = field(default_factory=list)

    @property
    def is_writing(self) -> bool:
        return not self.rows


class Rig:
    """An engine's loop over such jobs."""

    def __init__(self, *works: Work) -> None:
        self.turns: Turns[Work] = Turns(lambda work: work.is_writing)
        self.now_s = 0.0
        self.log: list[Work] = []
        self.kinds = ""  # of the steps: r(eading) or w(riting)
        for work in works:
            self.turns.add(work, work.origin)

    def step(self) -> Work:
        work = self.turns.next()
        self.kinds += "w" if work.is_writing else "r"
        if work.is_writing:
            took_s, rows = work.token_s, 0
            work.tokens -= 1
        else:
            rows = min(work.rows, self.turns.chunk_limit(work, SIZES))
            work.chunks.append(rows)
            work.rows -= rows
            took_s = rows * work.row_s
        self.now_s += took_s
        work.took_s += took_s
        self.turns.stepped(work, took_s, rows)
        if work.is_writing and not work.read_at_s:
            work.read_at_s = self.now_s
        if not work.tokens:
            work.ended_at_s = self.now_s
            self.turns.remove(work)
        self.log.append(work)
        return work

    def run_until_read(self, work: Work, at_most_s: float = 1e6) -> None:
        while not work.is_writing:
            self.step()
            assert self.now_s < at_most_s, "it is not read"


def test_a_reply_keeps_its_share_beside_a_long_prompt() -> None:
    reply, prompt = Work(), Work(rows=14_000)
    rig = Rig(reply, prompt)
    rig.run_until_read(prompt)
    assert reply.took_s / rig.now_s == pytest.approx(1 - READING_SHARE, abs=0.01)
    alone_s = 14_000 / 600
    assert rig.now_s == pytest.approx(alone_s / READING_SHARE, rel=0.02)


@pytest.mark.parametrize("origins", ["person agent", "agent agent", "person person"])
def test_so_it_is_whoever_asks_as_long_as_no_person_waits_for_agents(origins: str) -> None:
    first, second = origins.split()
    reply, prompt = Work(first), Work(second, rows=6_000)  # type: ignore[arg-type]
    rig = Rig(reply, prompt)
    rig.run_until_read(prompt)
    assert reply.took_s / rig.now_s == pytest.approx(1 - READING_SHARE, abs=0.02)


def test_a_person_s_prompt_gets_most_beside_replies_to_agents() -> None:
    reply, prompt = Work("agent"), Work("person", rows=6_000)
    rig = Rig(reply, prompt)
    rig.run_until_read(prompt)
    assert prompt.took_s / rig.now_s == pytest.approx(PERSONS_READING_SHARE, abs=0.02)
    assert reply.took_s > 0.15 * rig.now_s  # and the agent is not starved


def test_a_person_s_reply_is_not_slowed_by_that_person_s_other_prompt() -> None:
    reply, prompt = Work("person"), Work("person", rows=3_000)
    agent = Work("agent")
    rig = Rig(reply, prompt, agent)
    rig.run_until_read(prompt)
    assert prompt.took_s / rig.now_s == pytest.approx(READING_SHARE, abs=0.02)


def test_several_replies_keep_that_together_persons_three_quarters_of_it() -> None:
    person, agent, prompt = Work("person"), Work("agent"), Work("agent", rows=6_000)
    rig = Rig(person, agent, prompt)
    rig.run_until_read(prompt)
    assert (person.took_s + agent.took_s) / rig.now_s == pytest.approx(1 - READING_SHARE, abs=0.02)
    assert person.took_s / agent.took_s == pytest.approx(3, rel=0.05)


def test_prompts_share_their_part_evenly() -> None:
    reply, one, other = Work(), Work(rows=20_000), Work(rows=20_000)
    rig = Rig(reply, one, other)
    while rig.now_s < 60:
        rig.step()
    assert one.took_s == pytest.approx(other.took_s, rel=0.05)
    assert (one.took_s + other.took_s) / rig.now_s == pytest.approx(READING_SHARE, abs=0.02)


def test_a_prompt_alone_is_read_in_the_largest_chunks() -> None:
    prompt = Work(rows=2_048)
    rig = Rig(prompt)
    rig.run_until_read(prompt)
    assert prompt.chunks == [512] * 4


def test_agents_prompts_beside_each_other_are_too() -> None:
    one, other = Work(rows=1_024), Work(rows=1_024)
    rig = Rig(one, other)
    rig.run_until_read(other)
    assert one.chunks == [512, 512] and other.chunks[0] == 512
    assert rig.log[:3] == [one, other, one]


def test_a_person_s_prompt_goes_before_an_agent_s_and_starves_none() -> None:
    agent, person = Work("agent", rows=4_096), Work("person", rows=4_096)
    rig = Rig(agent, person)
    rig.run_until_read(person)
    assert rig.log.count(agent) == rig.log.count(person) // 3
    assert set(person.chunks) == {512}  # its own, large; small ones of the agent's between them
    assert set(agent.chunks) <= {64, 96, 32}


def test_a_short_prompt_is_read_in_one_go() -> None:
    reply, prompt = Work(), Work(rows=40)
    rig = Rig(reply, prompt)
    rig.run_until_read(prompt)
    assert rig.now_s < BURST_S


def test_many_short_prompts_take_no_more_than_a_long_one() -> None:
    reply = Work()
    rig = Rig(reply)
    for _ in range(200):
        prompt = Work(rows=32, tokens=1)
        rig.turns.add(prompt, "agent")
        while not prompt.ended_at_s:
            rig.step()
    assert reply.took_s / rig.now_s > 0.75  # each of them writes a token, too


@pytest.mark.parametrize("row_s", [1 / 10_000, 1 / 2_000, 1 / 600, 1 / 100, 1 / 20])
def test_a_chunk_beside_a_reply_takes_about_as_long_on_every_machine(row_s: float) -> None:
    reply, prompt = Work(), Work(rows=14_000, row_s=row_s)
    rig = Rig(reply, prompt)
    while len(prompt.chunks) < 8:
        rig.step()
    assert prompt.chunks[0] == SHARED_CHUNK_ROWS
    largest = max(size for size in SIZES if size * row_s <= SHARED_CHUNK_S or size == SIZES[-1])
    assert prompt.chunks[1:] == [largest] * 7


def test_a_reply_stands_still_for_one_chunk_at_most() -> None:
    reply, *prompts = Work(), *(Work(rows=3_000) for _ in range(3))
    rig = Rig(reply, *prompts)
    rig.run_until_read(prompts[-1])
    assert rig.kinds.count("r") > 100 and "rr" not in rig.kinds


def test_a_clock_that_stands_still_starves_nobody() -> None:
    reply, prompt = Work(token_s=0.0), Work(rows=512, row_s=0.0)
    rig = Rig(reply, prompt)
    rig.run_until_read(prompt)
    assert rig.log.count(reply) >= len(prompt.chunks) - 1
    slow = Rig(Work(token_s=0.0), late := Work(rows=512))
    slow.run_until_read(late)
    assert len(slow.log) <= len(late.chunks) * (TOKENS_IN_A_ROW + 1) + 1


def test_what_was_owed_to_a_reply_that_is_over_is_owed_to_nobody() -> None:
    reply, prompt = Work(tokens=20), Work(rows=6_000)
    rig = Rig(reply, prompt)
    rig.run_until_read(prompt)
    assert rig.now_s < 1.2 * (prompt.took_s + reply.took_s)
    assert set(prompt.chunks[-5:-1]) == {512}


def test_why_a_prompt_is_slow_is_told_in_words() -> None:
    prompt = Work(rows=100)
    rig = Rig(prompt)
    assert rig.turns.slowed_words(prompt) == ""
    rig.turns.add(Work(), "agent")
    words = rig.turns.slowed_words(prompt)
    assert words == "prefill is given 15 % of the time while 1 reply is written"
    person = Work("person", rows=100)
    rig.turns.add(person, "person")
    words = rig.turns.slowed_words(person)
    assert words == "2 prefills together are given 80 % of the time while 1 reply is written"
    rig.turns.add(reply := Work("person"), "person")
    words = rig.turns.slowed_words(person)
    assert words == "2 prefills together are given 15 % of the time while 2 replies are written"
    assert rig.turns.slowed_words(reply) == ""


_WORKS = st.builds(
    Work,
    origin=st.sampled_from(["person", "agent"]),
    rows=st.sampled_from([0, 1, 40, 900]),
    tokens=st.integers(1, 40),
    row_s=st.sampled_from([0.0, 1e-4, 1e-2]),
    token_s=st.sampled_from([0.0, 1e-3, 0.1]),
)


@given(st.lists(_WORKS, min_size=1, max_size=6), st.data())
@settings(max_examples=scaled(60), deadline=None)
def test_all_come_to_their_end(works: list[Work], data: st.DataObject) -> None:
    rig = Rig()
    waiting = list(works)
    while waiting or len(rig.turns):
        if waiting and (not len(rig.turns) or data.draw(st.booleans())):
            rig.turns.add(waiting[0], waiting.pop(0).origin)
        else:
            rig.step()
        assert len(rig.log) < 40_000
    assert not any(work.rows or work.tokens for work in works)
