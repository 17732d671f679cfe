"""The engine thread: order of events, cancellation, failures, closing, the log line, the stats."""

import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ds4tui.cache.timeline import ImageSpan, Timeline
from ds4tui.engine.jobs import check_request
from ds4tui.engine.loaded import LoadedModel
from ds4tui.engine.requests import GenerateRequest, Origin, SamplingParams
from ds4tui.engine.stopping import check_stopped, stoppable
from ds4tui.engine.weights import WeightLoader
from ds4tui.engine.worker import Engine
from ds4tui.errors import (
    ContextOverflow,
    EngineClosed,
    EngineError,
    GGUFError,
    OutOfMemory,
    RequestError,
)
from ds4tui.events import (
    Decision,
    Event,
    Failed,
    Finished,
    PrefillProgress,
    Queued,
    TokenText,
)
from tests.engine.tiny_llama import Tiny, write
from tests.fake_model import END_OF_TURN, ByteTokenizer, FakeModel, scripted
from tests.fakes import EventLog

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)
PROMPT = list(b"The prompt of this test.")


class Gate:
    """Holds forward passes: each waits until it is let through."""

    def __init__(self, model: FakeModel) -> None:
        self.reached = threading.Semaphore(0)
        self.passes = threading.Semaphore(0)
        self._is_open = False
        model.before_forward = self._wait

    def _wait(self, rows: Any) -> None:
        self.reached.release()
        assert self._is_open or self.passes.acquire(timeout=20)

    def let_through(self, count: int = 1) -> None:
        self.passes.release(count)

    def wait_reached(self) -> None:
        """A pass has begun and waits."""
        assert self.reached.acquire(timeout=20)

    def open(self) -> None:
        self._is_open = True
        self.passes.release(100)  # for who waits already


class Bench:
    """An engine over a fake model of `context` tokens, and shorthands."""

    def __init__(
        self, context: int = 200, clock: Callable[[], float] = time.perf_counter, **loaded: Any
    ) -> None:
        self.model = FakeModel(context_tokens=context)
        values: dict[str, Any] = {
            "name": "fake",
            "model": self.model,
            "tokenizer": ByteTokenizer(),
            "chunk_sizes": (8, 4),
            "available_bytes": lambda: 1 << 40,
            **loaded,
        }
        self.engine = Engine(lambda: LoadedModel(**values), clock)
        self.engine.start()
        self.engine.wait_ready(20)

    def reply_with(self, reply: bytes | list[int], prompt: list[int] = PROMPT) -> None:
        self.model.choose = scripted(len(prompt), [*reply, END_OF_TURN])

    def submit(
        self,
        prompt: list[int] = PROMPT,
        sampling: SamplingParams = GREEDY,
        origin: Origin = "person",
        listener: Callable[[Event], None] | None = None,
    ) -> tuple[Any, EventLog]:
        log = EventLog()

        def hear(event: Event) -> None:
            log(event)
            if listener is not None:
                listener(event)

        stops = frozenset({END_OF_TURN})
        request = GenerateRequest(Timeline.of(prompt), sampling, origin, stops)
        return self.engine.submit(request, hear), log

    def run(self, *arguments: Any, **named: Any) -> EventLog:
        job, log = self.submit(*arguments, **named)
        assert job.wait(20)
        return log


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.engine.close()


def finished(log: EventLog) -> Finished:
    ending = log.wait_end()
    assert isinstance(ending, Finished), ending
    return ending


def failure(log: EventLog) -> Exception:
    ending = log.wait_end()
    assert isinstance(ending, Failed), ending
    return ending.error


def test_events_come_in_order_and_add_up(bench: Bench) -> None:
    bench.reply_with(b"Hi!")
    log = bench.run()
    kinds = [kind for kind, _ in itertools.groupby(type(e) for e in log.events)]
    assert kinds == [Queued, Decision, PrefillProgress, TokenText, Finished]
    assert {e.job_id for e in log.events} == {log.events[0].job_id}
    decision = log.of_type(Decision)[0]
    assert (decision.prompt, decision.evaluated, decision.kind) == (24, 24, "cold")
    progress = log.of_type(PrefillProgress)
    assert [(p.done, p.total, p.cached) for p in progress] == [
        (8, 24, 0), (16, 24, 0), (20, 24, 0), (23, 24, 0), (24, 24, 0)
    ]  # fmt: skip
    assert progress[-1].eta_s == 0.0
    assert all(p.tokens_per_s > 0 for p in progress)
    assert log.text == "Hi!"
    end = finished(log)
    assert (end.stop_reason, end.token_ids, end.stop_string) == ("stop", tuple(b"Hi!"), None)
    usage = end.usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.evaluated_tokens) == (24, 0, 24)
    assert usage.completion_tokens == 4  # the end-of-turn token too
    assert 0 < usage.prefill_ms <= usage.ttft_ms
    assert usage.decode_ms > 0


def test_the_next_turn_evaluates_only_what_is_new(bench: Bench) -> None:
    bench.reply_with(b"Hi!")
    first = finished(bench.run())
    longer = [*PROMPT, *first.token_ids, END_OF_TURN, *b"more"]
    bench.model.chunks.clear()
    log = bench.run(longer, replace(GREEDY, max_tokens=1))
    decision = log.of_type(Decision)[0]
    assert (decision.kind, decision.kept, decision.evaluated) == ("extend", 27, 5)
    assert finished(log).usage.cached_tokens == 27
    assert bench.model.chunks == [4, 1]


def test_a_decision_tells_how_many_images_the_prompt_lacks(bench: Bench) -> None:
    log = EventLog()
    request = GenerateRequest(Timeline.of(PROMPT), GREEDY, images_left_out=2)
    assert bench.engine.submit(request, log).wait(20)
    assert log.of_type(Decision)[0].images_left_out == 2
    assert bench.engine.stats.decision == log.of_type(Decision)[0]


def test_reuse_gives_the_reply_of_a_cold_run(bench: Bench) -> None:
    bench.run([*PROMPT, 1, 2, 3])
    reused = finished(bench.run())
    assert reused.usage.cached_tokens == len(PROMPT) - 1
    cold = Bench()
    assert finished(cold.run()).token_ids == reused.token_ids
    cold.engine.close()


@pytest.mark.parametrize("limit", [1, 3])
def test_max_tokens_ends_by_length(bench: Bench, limit: int) -> None:
    bench.reply_with(b"Hello")
    end = finished(bench.run(sampling=replace(GREEDY, max_tokens=limit)))
    assert (end.stop_reason, end.token_ids) == ("length", tuple(b"Hello"[:limit]))
    assert end.usage.completion_tokens == limit


def test_the_end_of_the_context_ends_by_length(bench: Bench) -> None:
    prompt = [5] * 195
    bench.reply_with(b"abcdefghij", prompt)
    end = finished(bench.run(prompt, replace(GREEDY, max_tokens=None)))
    # Positions 195 to 199 are fed; the token sampled after the last one has no place any more.
    assert (end.stop_reason, end.token_ids) == ("length", tuple(b"abcdef"))


def test_a_stop_string_across_tokens_ends_and_is_not_shown(bench: Bench) -> None:
    bench.reply_with(b"one STOP two")
    log = bench.run(sampling=replace(GREEDY, max_tokens=100, stop=("STOP",)))
    end = finished(log)
    assert (end.stop_reason, end.stop_string) == ("stop", "STOP")
    assert log.text == "one "
    assert end.token_ids == tuple(b"one STOP")


def test_text_held_for_a_stop_string_comes_when_it_does_not_complete(bench: Bench) -> None:
    bench.reply_with(b"one STO")
    log = bench.run(sampling=replace(GREEDY, stop=("STOP",)))
    assert log.text == "one STO"
    assert log.of_type(TokenText)[-1].token_ids == ()
    assert finished(log).stop_string is None


def test_half_a_character_is_held_back(bench: Bench) -> None:
    bench.reply_with("né".encode())
    log = bench.run()
    assert [e.text for e in log.of_type(TokenText)] == ["n", "", "é"]
    bench.reply_with("né".encode()[:2])
    log = bench.run()
    assert log.text == "n\ufffd"


def test_penalties_count_the_reply(bench: Bench) -> None:
    bench.model.bad_logits = 0.0  # all alike: greedy takes the lowest id that is not penalised
    end = finished(bench.run(sampling=replace(GREEDY, presence_penalty=1.0)))
    assert end.token_ids == tuple(range(8))


def test_logprobs_come_with_bytes(bench: Bench) -> None:
    bench.reply_with(b"ab")
    log = bench.run(sampling=replace(GREEDY, logprobs=3))
    sampled = [e.tokens[0] for e in log.of_type(TokenText)]
    assert [(s.chosen.token_id, s.chosen.token_bytes) for s in sampled] == [(97, b"a"), (98, b"b")]
    assert all(len(s.top) == 3 and s.top[0] == s.chosen for s in sampled)
    assert bench.run().of_type(TokenText)[0].tokens == ()


def test_cancelled_in_prefill_keeps_what_was_prefilled(bench: Bench) -> None:
    gate = Gate(bench.model)
    job, log = bench.submit()
    gate.let_through()
    log.wait_for(lambda e: isinstance(e, PrefillProgress))
    gate.wait_reached()
    gate.wait_reached()  # in the second chunk
    job.cancel()
    job.cancel()
    gate.let_through()
    assert job.wait(20)
    end = finished(log)
    assert (end.stop_reason, end.token_ids) == ("cancelled", ())
    assert (end.usage.evaluated_tokens, end.usage.completion_tokens) == (16, 0)
    stats = bench.engine.stats
    assert stats.prefill is not None and (stats.prefill.done, stats.prefill.eta_s) == (16, 0.0)
    gate.open()
    assert bench.run().of_type(Decision)[0].kept == 16


def test_cancelled_in_decode_keeps_the_reply_so_far(bench: Bench) -> None:
    bench.reply_with(b"Hello")
    seen: list[Any] = []

    def cancel_after_two(event: Event) -> None:
        seen.append(event)
        if isinstance(event, TokenText) and event.text == "e":
            job_box[0].cancel()

    job_box: list[Any] = []
    started = threading.Event()
    bench.model.before_forward = lambda rows: started.wait(20)
    job, log = bench.submit(listener=cancel_after_two)
    job_box.append(job)
    started.set()
    end = finished(log)
    assert (end.stop_reason, end.token_ids, log.text) == ("cancelled", tuple(b"He"), "He")
    assert job.wait(20)
    assert bench.engine.stats.resident_tokens == len(PROMPT) + 1


def test_cancelled_while_it_waits_ends_at_once(bench: Bench) -> None:
    gate = Gate(bench.model)
    first, _ = bench.submit()
    gate.wait_reached()
    second, log = bench.submit()
    second.cancel()
    third, _ = bench.submit()
    gate.let_through()
    assert second.wait(20)  # while the first is still at work
    assert not first.wait(0)
    gate.open()
    assert first.wait(20) and third.wait(20)
    end = finished(log)
    assert (end.stop_reason, end.usage.prompt_tokens, end.usage.ttft_ms) == ("cancelled", 24, 0)
    assert [type(e) for e in log.events] == [Queued, Finished]


def test_cancelling_what_is_over_changes_nothing(bench: Bench) -> None:
    job, log = bench.submit()
    assert job.wait(20)
    job.cancel()
    bench.run()
    assert len([e for e in log.events if isinstance(e, Finished | Failed)]) == 1


def test_the_person_is_first_and_agents_are_not_starved(bench: Bench) -> None:
    gate = Gate(bench.model)
    order: list[str] = []
    logs = {}
    first, _ = bench.submit()
    gate.wait_reached()
    names = ["a1", "a2", "p1", "p2", "p3", "p4", "p5"]
    for name in names:
        origin: Origin = "person" if name.startswith("p") else "agent"
        note = lambda e, n=name: order.append(n) if isinstance(e, Decision) else None  # noqa: E731
        _, logs[name] = bench.submit(origin=origin, listener=note)
    gate.open()
    for log in logs.values():
        log.wait_end()
    assert order == ["p1", "p2", "p3", "a1", "p4", "p5", "a2"]
    ahead = {name: log.of_type(Queued)[0].ahead for name, log in logs.items()}
    assert ahead == {"a1": 1, "a2": 2, "p1": 1, "p2": 2, "p3": 3, "p4": 5, "p5": 6}
    assert first.wait(0)


def test_ttft_includes_the_time_in_the_queue(bench: Bench) -> None:
    gate = Gate(bench.model)
    bench.submit()
    gate.wait_reached()
    before = time.perf_counter()
    _, log = bench.submit()
    held = threading.Event()
    held.wait(0.05)  # not for synchronising: this is the time that must be counted
    waited_ms = (time.perf_counter() - before) * 1e3
    gate.open()
    assert finished(log).usage.ttft_ms >= waited_ms


def test_a_failing_job_poisons_and_the_engine_lives_on(bench: Bench) -> None:
    bench.run()

    def fail(rows: Any) -> None:
        raise RuntimeError("the device is gone")

    bench.model.before_forward = fail
    error = failure(bench.run([*PROMPT, 1, 2]))
    assert isinstance(error, EngineError)
    assert "RuntimeError: the device is gone" in error.message
    assert isinstance(error.__cause__, RuntimeError)
    assert bench.engine.stats.resident_tokens == 0
    bench.model.before_forward = lambda rows: None
    log = bench.run()
    decision = log.of_type(Decision)[0]
    assert decision.kind == "cold"
    assert "the device is gone" in decision.reason
    assert finished(log).stop_reason == "length"


def test_logits_that_are_nan_fail_and_poison(bench: Bench) -> None:
    bench.run()
    bench.model.bad_logits = float("nan")
    error = failure(bench.run([*PROMPT, 1]))
    assert isinstance(error, EngineError)
    assert "no distribution" in error.message
    bench.model.bad_logits = None
    assert bench.run().of_type(Decision)[0].reason.startswith("the state was given up")


@pytest.mark.parametrize(
    "lack",
    [MemoryError(), RuntimeError("[malloc] Unable to allocate 4096 bytes.")],
    ids=["MemoryError", "MLX"],
)
def test_memory_that_runs_out_is_told_with_both_numbers(bench: Bench, lack: Exception) -> None:
    def fail(rows: Any) -> None:
        raise lack

    bench.model.before_forward = fail
    error = failure(bench.run())
    assert isinstance(error, OutOfMemory)
    assert (error.needed_bytes, error.available_bytes) == (32 * len(PROMPT), 1 << 40)


def test_listeners_that_raise_are_logged_and_dropped(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.reply_with(b"Hi")

    def bad(event: Event) -> None:
        raise ValueError("a front-end's fault")

    log = bench.run(listener=bad)
    assert log.text == "Hi"
    assert finished(log).stop_reason == "stop"
    assert "a listener failed on TokenText" in caplog.text
    assert finished(bench.run()).stop_reason == "stop"


@pytest.mark.parametrize(
    ("prompt", "sampling", "error"),
    [
        ([5] * 200, GREEDY, ContextOverflow),
        ([], GREEDY, RequestError),
        (PROMPT, replace(GREEDY, logit_bias=((262, 1.0),)), RequestError),
        (PROMPT, replace(GREEDY, logit_bias=((-1, 1.0),)), RequestError),
    ],
)
def test_what_cannot_be_done_is_refused_before_it_is_queued(
    bench: Bench, prompt: list[int], sampling: SamplingParams, error: type[Exception]
) -> None:
    bench.run()
    with pytest.raises(error):
        bench.submit(prompt, sampling)
    assert bench.run().of_type(Decision)[0].kept == len(PROMPT) - 1


def test_a_prompt_of_all_but_one_position_is_taken(bench: Bench) -> None:
    assert finished(bench.run([5] * 199)).stop_reason == "length"


def test_a_prefill_is_refused_by_predicted_bytes_before_anything_changes() -> None:
    available = [1 << 40]
    bench = Bench(available_bytes=lambda: available[0])
    bench.run()
    available[0] = 100
    error = failure(bench.run([9] * 150))
    assert isinstance(error, OutOfMemory)
    held = 32 * (len(PROMPT) + len(GREEDY_REPLY_FED))
    assert (error.needed_bytes, error.available_bytes) == (32 * 151 - held, 100)
    log = bench.run()  # needs no more than it has
    assert log.of_type(Decision)[0].kept == len(PROMPT) - 1
    bench.engine.close()


GREEDY_REPLY_FED = range(7)  # of 8 sampled tokens the last is not fed


def test_the_log_line_of_a_request(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ds4tui.requests")
    bench.run()
    bench.run(origin="agent")
    lines = [r.getMessage() for r in caplog.records if r.name == "ds4tui.requests"]
    assert lines == [
        "job=job-1 origin=person session=1 kind=cold live=0 prompt=24 common=0 held=0 images=none "
        "kept=0 evaluated=24 replayed=0 source=none grade=recompute-equal cause=none "
        "reason=nothing is resident: 24 tokens from the start",
        "job=job-2 origin=agent session=1 kind=rewind live=31 prompt=24 common=24 held=24 "
        "images=none kept=23 evaluated=1 replayed=0 source=memory grade=restore-exact cause=none "
        "reason=one token evaluated again: the whole prompt is resident; "
        "8 tokens of the old branch are kept aside",
    ]


def test_stats_say_what_is_going_on() -> None:
    bench = Bench(memory_use=lambda: (11, 22))
    stats = bench.engine.stats
    assert (stats.state, stats.model, stats.context_tokens) == ("idle", "fake", 200)
    assert (stats.weights_bytes, stats.compute_path) == (1000, FakeModel.compute_path)
    gate = Gate(bench.model)
    job, log = bench.submit(origin="agent")
    gate.let_through(2)
    log.wait_for(lambda e: isinstance(e, PrefillProgress) and e.done == 16)
    for _ in range(3):
        gate.wait_reached()
    stats = bench.engine.stats
    assert (stats.state, stats.job_id, stats.origin) == ("prefilling", job.job_id, "agent")
    assert (stats.resident_tokens, stats.kv_bytes) == (16, 16 * 32)
    assert (stats.memory_active_bytes, stats.memory_peak_bytes) == (11, 22)
    assert stats.prefill is not None and stats.prefill.done == 16
    assert stats.decision == log.of_type(Decision)[0]
    gate.let_through(4)
    for _ in range(4):
        gate.wait_reached()
    assert bench.engine.stats.state == "decoding"
    gate.open()
    assert job.wait(20)
    stats = bench.engine.stats
    assert (stats.state, stats.job_id, stats.requests) == ("idle", "", 1)
    assert (stats.total_prompt_tokens, stats.total_evaluated_tokens) == (24, 24)
    assert stats.usage == finished(log).usage
    bench.run()
    stats = bench.engine.stats
    assert (stats.requests, stats.total_cached_tokens) == (2, 23)
    assert stats.total_completion_tokens == 16
    bench.engine.close()
    assert bench.engine.stats.state == "closed"


def test_who_hears_the_end_sees_stats_that_say_so(bench: Bench) -> None:
    seen: list[tuple[str, int]] = []

    def look(event: Event) -> None:
        if isinstance(event, Finished):
            seen.append((bench.engine.stats.state, bench.engine.stats.requests))

    bench.run(listener=look)
    assert seen == [("idle", 1)]


def test_closing_ends_everything_as_cancelled(bench: Bench) -> None:
    gate = Gate(bench.model)
    bench.reply_with(b"Hello")
    _, at_work = bench.submit()
    gate.let_through(6)  # 5 chunks and the token after the first
    for _ in range(7):
        gate.wait_reached()
    _, waiting = bench.submit()
    closer = threading.Thread(target=bench.engine.close)
    closer.start()
    while not bench.engine._is_closing:
        closer.join(0.001)
    gate.open()
    closer.join(20)
    assert not closer.is_alive()
    end = finished(at_work)
    assert (end.stop_reason, end.token_ids) == ("cancelled", tuple(b"Hel"))
    assert finished(waiting).stop_reason == "cancelled"
    with pytest.raises(EngineClosed):
        bench.submit()
    bench.engine.close()
    assert not bench.engine._thread.is_alive()


def test_closing_waits_no_longer_than_asked(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate(bench.model)
    job, _ = bench.submit()
    gate.wait_reached()
    bench.engine.close(timeout_s=0.01)
    assert "still at a step" in caplog.text
    gate.open()
    assert job.wait(20)


def test_closing_from_a_listener_does_not_wait_for_itself(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    job, log = bench.submit(
        listener=lambda e: bench.engine.close() if isinstance(e, Decision) else None
    )
    assert job.wait(20)
    assert finished(log).stop_reason == "cancelled"
    assert "listener failed" not in caplog.text


def test_a_load_that_fails_is_told_to_all() -> None:
    begin = threading.Event()

    def load() -> LoadedModel:
        begin.wait(20)
        raise GGUFError("not a model")

    engine = Engine(load)
    engine.start()
    assert engine.stats.state == "loading"
    log = EventLog()
    job = engine.submit(GenerateRequest(Timeline.of([1])), log)  # waits for the model
    begin.set()
    with pytest.raises(GGUFError, match="not a model"):
        engine.wait_ready(20)
    assert job.wait(20)
    assert isinstance(failure(log), GGUFError)
    with pytest.raises(GGUFError, match="not a model"):
        engine.submit(GenerateRequest(Timeline.of([1])), log)
    assert engine.stats.state == "closed"
    engine.close()


def test_closing_while_it_loads_gives_up_at_the_next_tensor(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No tensor is read after it, and nobody waits for all of them."""
    begun, closing = threading.Event(), threading.Event()
    gguf = write(tmp_path / "tiny.gguf", Tiny())
    names = list(gguf.tensors)
    taken: list[str] = []

    def load() -> LoadedModel:
        loader = WeightLoader(gguf)
        for name in names:
            loader.take(name, gguf.tensors[name].shape)
            taken.append(name)
            begun.set()
            assert closing.wait(20)
        raise AssertionError("all was read")

    engine = Engine(load)
    engine.start()
    assert begun.wait(20)
    with caplog.at_level(logging.INFO):
        engine.close(0)  # from here on the engine is closing
        closing.set()
        with pytest.raises(EngineClosed):
            engine.wait_ready(20)
        engine.close(20)
    assert taken == names[:1]
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]


def test_what_is_read_outside_of_an_engine_is_not_stopped(tmp_path: Path) -> None:
    with stoppable(lambda: True), pytest.raises(EngineClosed):
        check_stopped()
    check_stopped()


def test_a_load_that_is_torn_down_hangs_nobody() -> None:
    def load() -> LoadedModel:
        raise SystemExit(3)

    engine = Engine(load)
    engine.start()
    with pytest.raises(EngineError, match="SystemExit"):
        engine.wait_ready(20)


def test_jobs_submitted_while_the_model_loads_wait_and_are_checked() -> None:
    begin = threading.Event()
    loaded = LoadedModel("fake", FakeModel(), ByteTokenizer())  # type: ignore[arg-type]

    def load() -> LoadedModel:
        begin.wait(20)
        return loaded

    engine = Engine(load)
    engine.start()
    with pytest.raises(EngineError, match="not loaded after"):
        engine.wait_ready(0.001)
    good, bad = EventLog(), EventLog()
    engine.submit(GenerateRequest(Timeline.of(PROMPT), GREEDY), good)
    engine.submit(GenerateRequest(Timeline.of([5] * 2000), GREEDY), bad)
    begin.set()
    assert finished(good).stop_reason == "length"
    assert isinstance(failure(bad), ContextOverflow)
    engine.close()


def test_an_engine_that_was_never_started_can_be_closed() -> None:
    engine = Engine(lambda: pytest.fail("must not load"))
    log = EventLog()
    engine.submit(GenerateRequest(Timeline.of([1])), log)
    engine.close()
    assert finished(log).stop_reason == "cancelled"
    with pytest.raises(EngineClosed):
        engine.start()
    with pytest.raises(EngineClosed):
        engine.wait_ready(1)


def test_load_and_work_are_on_one_thread_which_is_not_the_callers() -> None:
    threads: list[int] = []
    model = FakeModel()
    model.before_forward = lambda rows: threads.append(threading.get_ident())

    def load() -> LoadedModel:
        threads.append(threading.get_ident())
        return LoadedModel("fake", model, ByteTokenizer())  # type: ignore[arg-type]

    engine = Engine(load)
    engine.start()
    log = EventLog()
    engine.submit(GenerateRequest(Timeline.of(PROMPT), GREEDY), log)
    finished(log)
    engine.close()
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()


class WatchedQueue(queue.SimpleQueue):  # type: ignore[type-arg]
    """Tells how it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.blocked = threading.Semaphore(0)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        assert timeout is None, "polled"
        if block:
            self.blocked.release()
        return super().get(block)


def test_an_idle_engine_blocks_and_does_not_poll() -> None:
    engine = Engine(lambda: LoadedModel("fake", FakeModel(), ByteTokenizer()))  # type: ignore[arg-type]
    watched = engine._calls = WatchedQueue()
    engine.start()
    assert watched.blocked.acquire(timeout=20)  # idle after loading
    log = EventLog()
    job = engine.submit(GenerateRequest(Timeline.of(PROMPT), GREEDY), log)
    assert watched.blocked.acquire(timeout=20)  # idle after the job
    assert job.wait(0)
    engine.close()


def test_many_threads_submit_and_cancel(bench: Bench) -> None:
    endings: list[str] = []

    def use(worker: int) -> None:
        for turn in range(5):
            job, log = bench.submit([*PROMPT, worker, turn], origin="agent")
            if (worker + turn) % 3 == 0:
                job.cancel()
            endings.append(finished(log).stop_reason)

    threads = [threading.Thread(target=use, args=(worker,)) for worker in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(endings) == 30
    assert set(endings) <= {"length", "stop", "cancelled"}
    assert bench.engine.stats.requests >= 30 - endings.count("cancelled")
    assert bench.engine.stats.queued_jobs == 0


def test_a_prompt_too_long_says_how_much_of_it_are_images() -> None:
    span = ImageSpan(1, 3, b"f" * 16, (7, 7, 7))
    request = GenerateRequest(Timeline.of([5, -1, -2, -3, 6], (span,)))
    with pytest.raises(ContextOverflow, match=r"has 5 tokens.*Images take 3 or more"):
        check_request(request, 5, 100)
