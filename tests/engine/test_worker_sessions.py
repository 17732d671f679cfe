"""Several sessions in one engine: who does the next step, who waits, and what is told of it."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ds4tui.cache.outline import Turn
from ds4tui.cache.timeline import Timeline
from ds4tui.engine.requests import GenerateRequest
from ds4tui.engine.stats import DECISIONS_KEPT
from ds4tui.events import Decision, Event, Finished, PrefillProgress, TokenText
from tests.cache.pictures import span, with_images
from tests.engine.test_worker import GREEDY, PROMPT, Bench, Gate, failure, finished
from tests.fake_model import END_OF_TURN
from tests.fakes import EventLog

LONG = [7, 8, 9] * 200  # 600 tokens, in chunks of 8 while it is alone


@pytest.fixture
def two() -> Iterator[Bench]:
    made = Bench(5000, sessions=2, put_away_bytes=1 << 30, chunk_sizes=(128, 64, 8))
    yield made
    made.engine.close()


def test_alone_again_chunks_are_large_again(two: Bench) -> None:
    log = two.run(LONG, replace(GREEDY, max_tokens=1))
    assert [p.done for p in log.of_type(PrefillProgress)][:4] == [128, 256, 384, 512]


def test_what_two_sessions_do_at_once_is_what_each_does_alone(two: Bench) -> None:
    alone = Bench()
    expected = [finished(alone.run([*PROMPT, i])).token_ids for i in range(4)]
    alone.engine.close()
    jobs = [two.submit([*PROMPT, i], origin="agent") for i in range(4)]
    assert [finished(log).token_ids for _, log in jobs] == expected


def test_jobs_of_the_same_conversation_wait_for_each_other(two: Bench) -> None:
    gate = Gate(two.model)
    two.reply_with(b"Hello")
    first, log = two.submit()
    gate.let_through(5)
    log.wait_for(lambda e: isinstance(e, TokenText))
    next_turn = [*PROMPT, *b"Hello", END_OF_TURN, 5]
    second, later = two.submit(next_turn, replace(GREEDY, max_tokens=1))
    other, side = two.submit([1, 2, 3], replace(GREEDY, max_tokens=1))
    gate.open()
    assert first.wait(20) and second.wait(20) and other.wait(20)
    decision = later.of_type(Decision)[0]
    assert (decision.session, decision.evaluated) == (1, 2)
    assert side.of_type(Decision)[0].session == 2


def both_at_once(bench: Bench, first: list[int], second: list[int]) -> tuple[list[str], Decision]:
    """Ask `second` while `first` is read; who decided and ended, in order, and its decision."""
    events: list[Event] = []
    gate = Gate(bench.model)
    ask = replace(GREEDY, max_tokens=40)
    _, log = bench.submit(first, ask, "agent", events.append)
    gate.wait_reached()
    _, later = bench.submit(second, ask, "agent", events.append)
    gate.open()
    assert finished(log).token_ids and finished(later).token_ids
    told = [e for e in events if isinstance(e, Decision | Finished)]
    order = [f"{type(e).__name__} {e.job_id[-1]}" for e in told]
    return order, later.of_type(Decision)[0]


def test_the_same_prompt_twice_waits_for_the_rows_and_not_for_the_reply(two: Bench) -> None:
    order, decision = both_at_once(two, LONG, LONG)
    assert order[:2] == ["Decision 1", "Decision 2"]
    assert (decision.session, decision.kept, decision.evaluated) == (2, 599, 1)
    assert decision.reason.endswith("is resident in another session")


def test_who_begins_alike_waits_no_longer_than_what_is_alike_takes(two: Bench) -> None:
    events: list[Event] = []
    gate = Gate(two.model)
    _, log = two.submit([*LONG, *[5] * 2000], GREEDY, "agent", events.append)
    gate.wait_reached()
    _, later = two.submit([*LONG, 4, 4], GREEDY, "agent", events.append)
    gate.open()
    assert finished(log) and finished(later)
    decision = later.of_type(Decision)[0]
    assert (decision.session, decision.evaluated) == (2, 2)
    read = [e for e in events[: events.index(decision)] if isinstance(e, PrefillProgress)]
    assert len(LONG) <= read[-1].done < 1000


def test_who_goes_on_from_the_prompt_waits_for_the_first_token_of_the_reply(two: Bench) -> None:
    order, decision = both_at_once(two, LONG, [*LONG, 4, 4])
    assert order[:2] == ["Decision 1", "Decision 2"]
    assert (decision.session, decision.evaluated) == (2, 2)


def test_a_failure_in_one_session_is_not_the_other_s(two: Bench) -> None:
    finished(two.run())

    def fail(rows: Any) -> None:
        raise RuntimeError("the device is gone")

    two.model.before_forward = fail
    failure(two.run([200, 201, 202], origin="agent"))
    two.model.before_forward = lambda rows: None
    states = {s.session: s.state for s in two.engine.stats.sessions}
    assert states == {1: "READY", 2: "POISONED"}
    assert two.run().of_type(Decision)[0].evaluated == 1


def test_closing_ends_all_that_are_at_work(two: Bench) -> None:
    gate = Gate(two.model)
    logs = [two.submit(prompt)[1] for prompt in (PROMPT, [1, 2, 3], [4, 5, 6])]
    gate.let_through(2)
    for log in logs[:2]:
        log.wait_for(lambda e: isinstance(e, PrefillProgress))
    gate.open()
    two.engine.close()
    assert {finished(log).stop_reason for log in logs} <= {"cancelled", "length"}
    assert not two.engine._thread.is_alive()


def test_stats_tell_of_each_session(two: Bench) -> None:
    outline = (Turn(0, 2, "system", b""), Turn(2, len(PROMPT), "user", b""))
    log = EventLog()
    request = GenerateRequest(
        Timeline.of(PROMPT),
        GREEDY,
        "agent",
        outline=outline,
        first_words="The prompt.",
    )
    assert two.engine.submit(request, log).wait(20)
    stats = two.engine.stats
    first, second = stats.sessions
    assert (first.session, first.state, first.resident_tokens) == (1, "READY", 31)
    assert first.what == "agent: The prompt." and first.used_s > 0
    assert first.kv_bytes == 31 * 32 == stats.kv_bytes
    assert (second.state, second.resident_tokens, second.what, second.job_id) == (
        "EMPTY",
        0,
        "",
        "",
    )
    assert stats.cache_budget_bytes == 1 << 30


def test_the_last_decisions_are_kept_and_no_more(two: Bench) -> None:
    for i in range(DECISIONS_KEPT + 5):
        two.run([i, 1], replace(GREEDY, max_tokens=1))
    decisions = two.engine.stats.decisions
    assert len(decisions) == DECISIONS_KEPT
    assert decisions[-1].job_id == f"job-{DECISIONS_KEPT + 5}"
    assert replace(decisions[-1], what="") == two.engine.stats.decision
    assert 0 < decisions[0].time_s <= decisions[-1].time_s
    assert {d.origin for d in decisions} == {"person"}


def test_the_two_sides_of_a_divergence_are_told_as_text() -> None:
    bench = Bench()
    bench.run(list(b"The quick brown fox jumps."), replace(GREEDY, max_tokens=1))
    log = bench.run(list(b"The quick black fox jumps."), replace(GREEDY, max_tokens=1))
    decision = log.of_type(Decision)[0]
    assert (decision.divergence, decision.shared_window) == (11, " quick b")
    assert (decision.live_window, decision.wanted_window) == ("rown fox", "lack fox")
    bench.engine.close()


def test_images_in_a_window_are_words() -> None:
    bench = Bench()

    def ask(timeline: Timeline) -> Decision:
        log = EventLog()
        assert bench.engine.submit(GenerateRequest(timeline, GREEDY), log).wait(20)
        return log.of_type(Decision)[0]

    ask(with_images(*b"see: ", span(0, rows=3), *b"?!"))
    decision = ask(with_images(*b"see: ", span(0, rows=3, name=2), *b"?!"))
    assert decision.shared_window == "see: "
    assert decision.live_window.startswith("[image]?!")
    assert decision.wanted_window == "[image]?!"
    assert decision.images == "changed"
    bench.engine.close()


def test_many_misses_trip_the_wire_once(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(5000, chunk_sizes=(2048,))
    told = []
    for i in range(7):
        log = bench.run([i, *[5] * 1500], replace(GREEDY, max_tokens=1))
        told.append(log.of_type(Decision)[0].tripwire)
    assert [bool(words) for words in told] == [False] * 4 + [True] + [False] * 2
    assert "reused nothing" in told[4]
    assert caplog.text.count("reused nothing") == 1
    stats = bench.engine.stats
    assert "reused nothing" in stats.tripwire
    assert [note.kind for note in stats.notes].count("tripwire") == 1
    bench.engine.close()


def test_what_the_memory_tier_gives_up_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ds4tui.engine.books")
    bench = Bench(put_away_bytes=2000)
    for start in (1, 50, 100):
        bench.run([start, *range(40)], replace(GREEDY, max_tokens=1))
    notes = bench.engine.stats.notes
    assert notes and {note.kind for note in notes} <= {"evicted", "refused", "pruned"}
    assert all(note.time_s > 0 and note.nbytes > 0 and note.text for note in notes)
    assert f"memory: {notes[0].text}" in caplog.text
    assert bench.engine.stats.parked_bytes <= 2000
    bench.engine.close()


def test_ahead_counts_only_who_is_before_with_all_sessions_taken(two: Bench) -> None:
    gate = Gate(two.model)
    logs = [two.submit([i, 2, 3], origin="agent")[1] for i in range(4)]
    gate.open()
    for log in logs:
        assert isinstance(log.wait_end(), Finished)
    ahead = [log.events[0].ahead for log in logs]  # type: ignore[attr-defined]
    assert ahead[0] == 0 and max(ahead) <= 2
