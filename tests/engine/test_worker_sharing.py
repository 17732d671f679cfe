"""The engine shares its time among prompts and replies as sharing.py says, on a clock that the
fake model's passes move."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from ds4tui.engine.requests import Origin
from ds4tui.engine.sharing import PERSONS_READING_SHARE, READING_SHARE
from ds4tui.engine.stats import EngineStats
from ds4tui.events import Event, Finished, Listener, PrefillProgress, TokenText
from tests.engine.test_worker import GREEDY, PROMPT, Bench, finished
from tests.fakes import EventLog

LONG = [7, 8, 9] * 500  # at 500 rows a second 3 s, in chunks of 64 rows 0.128 s each
ROW_S = 0.002
TOKEN_S = 0.01


class Shared(Bench):
    """Two sessions, and a clock that stands but for passes: a row alone is a token."""

    def __init__(self) -> None:
        self.now_s = 0.0
        super().__init__(
            9000,
            lambda: self.now_s,
            sessions=2,
            put_away_bytes=1 << 30,
            chunk_sizes=(512, 128, 64, 32),
        )
        self.steps: list[tuple[str, float]] = []  # job and time of each chunk and token
        self.model.before_forward = self._pass
        self.model.choose = lambda length: 5  # nothing ends by itself

    def _pass(self, rows: Any) -> None:
        count = len(rows.ids)
        self.now_s += TOKEN_S if count == 1 else ROW_S * count

    def hear(self, event: Event) -> None:
        if isinstance(event, PrefillProgress | TokenText):
            self.steps.append((event.job_id, self.now_s))

    def then(self, kind: type[Event], *second: Any) -> tuple[Listener, list[EventLog]]:
        """A listener that submits `second` at the first event of `kind`, between two steps, and
        where its log is put then."""
        logs: list[EventLog] = []

        def hear(event: Event) -> None:
            self.hear(event)
            if isinstance(event, kind) and not logs:
                logs.append(self.submit(*second, self.hear)[1])

        return hear, logs

    def beside(self, reply: Origin, prompt: Origin, tokens: int = 4000) -> tuple[Any, EventLog]:
        """A reply, and a long prompt that comes with its first token; both, at the prompt's end."""
        hear, logs = self.then(TokenText, LONG, replace(GREEDY, max_tokens=1), prompt)
        first, log = self.submit(PROMPT, replace(GREEDY, max_tokens=tokens), reply, hear)
        log.wait_for(lambda e: isinstance(e, TokenText) and bool(logs))
        finished(logs[0])
        first.cancel()
        assert first.wait(20)
        return log, logs[0]

    def tokens_between(self, job_id: str, first_s: float, last_s: float) -> int:
        return sum(job == job_id and first_s < at <= last_s for job, at in self.steps)


@pytest.fixture
def shared() -> Iterator[Shared]:
    made = Shared()
    yield made
    made.engine.close()


@pytest.mark.parametrize(
    ("reply", "prompt", "share"),
    [
        ("agent", "agent", READING_SHARE),
        ("person", "agent", READING_SHARE),
        ("person", "person", READING_SHARE),
        ("agent", "person", PERSONS_READING_SHARE),
    ],
)
def test_a_prompt_has_its_share_of_the_time(
    shared: Shared, reply: Origin, prompt: Origin, share: float
) -> None:
    _, later = shared.beside(reply, prompt)
    chunks = [at for job, at in shared.steps if job == later.events[0].job_id][:-2]
    took_s = chunks[-1] - chunks[0]
    written_s = TOKEN_S * shared.tokens_between("job-1", chunks[0], chunks[-1])
    assert written_s / took_s == pytest.approx(1 - share, abs=0.03)


def test_its_chunks_are_small_and_it_is_told_why(shared: Shared) -> None:
    _, later = shared.beside("agent", "agent")
    progress = later.of_type(PrefillProgress)
    chunks = {after.done - before.done for before, after in pairwise(progress)}
    assert max(chunks) == 64
    words = "prefill is given 15 % of the time while 1 reply is written"
    assert {p.slowed for p in progress[:-1]} == {words}
    assert progress[-1].slowed == ""  # it is over


def test_its_session_tells_so_whoever_did_the_last_step(shared: Shared) -> None:
    seen: list[EngineStats] = []
    _, log = shared.submit(PROMPT, replace(GREEDY, max_tokens=400), "agent", shared.hear)
    log.wait_for(lambda e: isinstance(e, TokenText))
    _, later = shared.submit(
        LONG, replace(GREEDY, max_tokens=1), "agent", lambda e: seen.append(shared.engine.stats)
    )
    finished(later)
    told = [s.prefill for stats in seen for s in stats.sessions if s.prefill is not None]
    assert told and {p.job_id for p in told} == {later.events[0].job_id}
    assert all(s.prefill is None for s in shared.engine.stats.sessions)


def test_alone_it_is_read_in_large_chunks_with_no_excuse(shared: Shared) -> None:
    log = shared.run(LONG, replace(GREEDY, max_tokens=1))
    progress = log.of_type(PrefillProgress)
    assert [p.done for p in progress][:2] == [512, 1024]
    assert {p.slowed for p in progress} == {""}


def test_a_prompt_that_is_cancelled_ends_at_once_whatever_is_owed_to_the_reply(
    shared: Shared,
) -> None:
    first_chunk: list[int] = []  # how many steps had been done then

    def hear(event: Event) -> None:
        shared.hear(event)
        if isinstance(event, PrefillProgress) and not first_chunk and event.done > 100:
            first_chunk.append(len(shared.steps))
            prompts[0].cancel()
        elif isinstance(event, Finished):
            ended.append(len(shared.steps))

    def begin(event: Event) -> None:
        shared.hear(event)
        if isinstance(event, TokenText) and not prompts:
            prompts.append(shared.submit(LONG, GREEDY, "agent", hear)[0])

    prompts: list[Any] = []
    ended: list[int] = []
    reply, log = shared.submit(PROMPT, replace(GREEDY, max_tokens=400), "agent", begin)
    log.wait_for(lambda e: bool(ended))
    assert ended[0] <= first_chunk[0] + 1  # not after the fifty tokens that it owes
    reply.cancel()
    assert reply.wait(20)


def test_once_the_reply_has_ended_the_rest_is_read_at_full_rate(shared: Shared) -> None:
    log, later = shared.beside("agent", "agent", tokens=60)
    assert len(finished(log).token_ids) == 60
    progress = later.of_type(PrefillProgress)
    chunks = [after.done - before.done for before, after in pairwise(progress)]
    assert chunks[0] == 64 and 512 in chunks
    assert shared.now_s < 1.3 * (len(LONG) * ROW_S + 61 * TOKEN_S)


def test_what_is_read_in_shares_gives_the_tokens_of_a_cold_run(shared: Shared) -> None:
    shared.model.choose = lambda length: None
    _, later = shared.beside("agent", "agent", tokens=300)
    alone = Shared()
    alone.model.choose = lambda length: None
    expected = finished(alone.run(LONG, replace(GREEDY, max_tokens=1))).token_ids
    alone.engine.close()
    assert finished(later).token_ids == expected


def test_a_person_s_prompt_comes_before_an_agent_s_that_was_there(shared: Shared) -> None:
    hear, logs = shared.then(PrefillProgress, LONG[::-1], replace(GREEDY, max_tokens=1), "person")
    _, agent = shared.submit(LONG, replace(GREEDY, max_tokens=1), "agent", hear)
    finished(agent)
    person = logs[0].of_type(PrefillProgress)
    assert [p.done for p in person][:2] == [512, 1024]
    chunks = [
        after.done - before.done for before, after in pairwise(agent.of_type(PrefillProgress))
    ]
    assert chunks[0] == 64  # it had the engine for itself before
    order = [job for job, _ in shared.steps]
    assert order[:5] == ["job-1", "job-2", "job-2", "job-1", "job-2"]


def test_closing_ends_prompts_and_replies_alike(shared: Shared) -> None:
    jobs = [shared.submit(prompt, GREEDY, "agent") for prompt in (PROMPT, LONG)]
    jobs[0][1].wait_for(lambda e: isinstance(e, TokenText))
    shared.engine.close()
    assert {finished(log).stop_reason for _, log in jobs} <= {"cancelled", "length"}
