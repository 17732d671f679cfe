"""Every job ends once and its caller is told, whatever fails beside its work."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ds4tui.cache.memory_tier import MemoryTier
from ds4tui.cache.timeline import Timeline
from ds4tui.engine import session as session_module
from ds4tui.engine.books import Books
from ds4tui.engine.jobs import Job
from ds4tui.engine.pool import Pool
from ds4tui.engine.requests import GenerateRequest
from ds4tui.engine.session import Session
from ds4tui.engine.worker import Engine
from ds4tui.errors import EngineClosed, EngineError, OutOfMemory
from ds4tui.events import Decision, Event, Failed, Finished, TokenText
from tests.engine.test_worker import GREEDY, PROMPT, Bench, Gate, failure, finished
from tests.fake_model import ByteTokenizer
from tests.fakes import EventLog

STEPS = 16  # a few more than a job of PROMPT has


@pytest.fixture
def bench(caplog: pytest.LogCaptureFixture) -> Iterator[Bench]:
    caplog.set_level(logging.CRITICAL, "ds4tui.engine")
    made = Bench()
    yield made
    made.engine.close()


class Fault:
    """Raises at the call of that number after `arm`, once."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: Any, name: str, error: Exception) -> None:
        self._left, self._error, self._original = 0, error, getattr(owner, name)
        patch.setattr(owner, name, self.called())

    def arm(self, call: int = 1) -> None:
        self._left = call

    @property
    def is_over(self) -> bool:
        return not self._left

    def disarm(self) -> None:
        self._left = 0

    def called(self) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            self._left = max(0, self._left - 1) if (was := self._left) else 0
            if was == 1:
                raise self._error
            return self._original(*arguments, **named)

        return call


def endings(log: EventLog) -> list[Event]:
    return [event for event in log.events if isinstance(event, Finished | Failed)]


@pytest.mark.parametrize(
    ("owner", "name", "error"),
    [
        (Pool, "stepped", OSError("no such file")),
        (Pool, "measured", ZeroDivisionError()),
        (Pool, "begin", MemoryError()),
        (Books, "begun", UnicodeError("no words")),
        (Books, "decided", RuntimeError("a fault")),
        (Books, "looked_at", KeyError(1)),
        (Books, "looked_at_memory", MemoryError()),
        (Books, "note_memory", MemoryError()),
        (Books, "fields", MemoryError()),
        (Engine, "_publish", MemoryError()),
        (Engine, "_count", MemoryError()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_fault_beside_the_work_costs_one_job_at_most(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: Exception
) -> None:
    """At whatever step it comes."""
    fault = Fault(monkeypatch, owner, name, error)
    happened = 0
    for call in range(1, STEPS):
        fault.arm(call)
        job, log = bench.submit([*PROMPT, call])
        assert job.wait(20), call
        assert len(endings(log)) == 1
        if isinstance(log.wait_end(), Failed):
            assert isinstance(failure(log), EngineError)
        happened += fault.is_over
        fault.disarm()
        after = bench.run([*PROMPT, call, 1])
        assert len(endings(after)) == 1 and finished(after).token_ids, call
        stats = bench.engine.stats
        assert (stats.state, stats.job_id, stats.queued_jobs) == ("idle", "", 0)
        assert stats.sessions[0].state == "READY"
    assert happened


def test_what_is_evaluated_stays_when_the_books_fail(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Fault(monkeypatch, Pool, "stepped", OSError("no such file"))
    fault.arm(7)  # the prompt is five chunks
    error = failure(bench.run())
    assert "OSError: no such file" in str(error) and "lost" in getattr(error, "hint", "")
    assert bench.run().of_type(Decision)[0].kept == len(PROMPT) - 1


@pytest.mark.parametrize("sessions", [1, 2])
def test_a_plan_that_cannot_be_made_is_one_job_s(
    sessions: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "ds4tui.engine")
    bench = Bench(sessions=sessions, put_away_bytes=1 << 20)
    finished(bench.run())
    gate = Gate(bench.model)
    held, first = bench.submit([*PROMPT, 5])  # keeps a session, so that others wait
    gate.wait_reached()
    fault = Fault(monkeypatch, session_module, "plan_sync", MemoryError("no memory"))
    fault.arm()
    _, refused = bench.submit([1, 2, 3])
    _, waits = bench.submit([4, 5, 6])
    gate.open()
    error = failure(refused)
    assert isinstance(error, OutOfMemory) and error.__traceback__ is None
    assert finished(first).token_ids and finished(waits).token_ids and held.wait(20)
    assert bench.run().of_type(Decision)[0].kept == len(PROMPT) - 1
    assert bench.engine.stats.queued_jobs == 0
    bench.engine.close()


def test_no_memory_is_told_though_nobody_can_say_how_much_there_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, "ds4tui.engine")
    lacks: list[bool] = []

    def available() -> int:
        if lacks:
            raise OSError("no such file")
        return 1 << 40

    def fail(rows: Any) -> None:
        lacks.append(True)
        raise MemoryError("no buffer")

    bench = Bench(available_bytes=available)
    bench.model.before_forward = fail
    assert "MemoryError: no buffer" in str(failure(bench.run()))
    bench.engine.close()


def test_a_session_whose_state_and_timeline_differ_is_given_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model has done its step, its rows are not credited."""
    fault = Fault(monkeypatch, Timeline, "prefix", MemoryError())
    bench.model.before_forward = lambda rows: fault.arm(1 if rows.positions[0] == 8 else 0)
    error = failure(bench.run())
    assert isinstance(error, OutOfMemory)
    bench.model.before_forward = lambda rows: None
    assert bench.engine.stats.sessions[0].state == "POISONED"
    log = bench.run()
    assert log.of_type(Decision)[0].kept == 0 and finished(log).token_ids


def test_a_poisoned_session_is_dropped_though_that_cannot_be_written_down(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def torn(rows: Any) -> None:
        raise RuntimeError("the device is gone")

    finished(bench.run())
    fault = Fault(monkeypatch, MemoryTier, "lose", MemoryError())
    fault.arm()
    bench.model.before_forward = torn
    assert failure(bench.run([*PROMPT, 1]))
    assert bench.engine.stats.sessions[0].state == "POISONED"
    bench.model.before_forward = lambda rows: None
    assert bench.run().of_type(Decision)[0].kept == 0


class Broken(ByteTokenizer):
    is_broken = False

    def token_bytes(self, token_id: int) -> bytes:
        if self.is_broken:
            raise KeyError(token_id)
        return super().token_bytes(token_id)

    first_bytes = token_bytes


def test_what_fails_beside_the_model_leaves_the_session_as_it_is() -> None:
    tokenizer = Broken()
    bench = Bench(tokenizer=tokenizer)
    bench.reply_with(b"abc")
    tokenizer.is_broken = True
    error = failure(bench.run(sampling=replace(GREEDY, logprobs=0)))
    assert "KeyError" in str(error) and "Nothing that was evaluated is lost" in error.hint  # type: ignore[attr-defined]
    tokenizer.is_broken = False
    decision = bench.run([*PROMPT, 1]).of_type(Decision)[0]
    assert (decision.kept, decision.evaluated, decision.cause) == (len(PROMPT), 1, None)
    bench.engine.close()


def test_a_reply_that_memory_does_not_suffice_for_ends_in_words_and_stays() -> None:
    available = [1 << 40]
    bench = Bench(available_bytes=lambda: available[0], put_away_bytes=0)
    bench.reply_with(b"abcdefgh")

    def shrink(event: Event) -> None:
        if isinstance(event, TokenText) and event.text == "c":
            available[0] = 10

    log = bench.run(listener=shrink)
    error = failure(log)
    assert isinstance(error, OutOfMemory) and log.text == "abc"
    assert (error.needed_bytes, error.available_bytes) == (32, 10)
    available[0] = 1 << 40
    decision = bench.run([*PROMPT, *b"abc", 1]).of_type(Decision)[0]
    assert (decision.kept, decision.evaluated) == (len(PROMPT) + 2, 2)
    bench.engine.close()


def test_when_the_engine_stops_all_that_wait_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing should be able to stop it: a front-end that ends the thread does."""
    caplog.set_level(logging.CRITICAL, "ds4tui.engine")
    bench = Bench(sessions=2)

    def exits(event: Event) -> None:
        if isinstance(event, Decision):
            raise SystemExit(3)

    gate = Gate(bench.model)
    at_work, _ = bench.submit([1, 2, 3])
    gate.wait_reached()
    bad, log = bench.submit([4, 5, 6], listener=exits)
    waiting, last = bench.submit([7, 8, 9])
    gate.open()
    assert at_work.wait(20) and bad.wait(20) and waiting.wait(20)
    assert isinstance(failure(log), EngineClosed) and isinstance(failure(last), EngineClosed)
    assert len(endings(log)) == len(endings(last)) == 1
    with pytest.raises(EngineClosed, match="SystemExit"):
        bench.submit()
    bench.engine.close()


def test_the_first_ending_is_the_one_that_is_told() -> None:
    log = EventLog()
    job = Job("job-1", GenerateRequest(Timeline.of([1])), log, lambda job: None)
    job.end(job.cancelled())
    job.end(Failed("job-1", EngineError("too late")))
    assert log.events == [job.cancelled()] and job.wait(0)


def test_soundness_is_of_the_state_and_the_name(bench: Bench) -> None:
    session = Session(bench.model)
    assert session.is_sound
    prefill = session.sync(Timeline.of(PROMPT))
    prefill.step(8)
    assert session.is_sound
    session._timeline = session.timeline.prefix(7)
    assert not session.is_sound
    session.poison("as a test")
    assert session.is_sound
