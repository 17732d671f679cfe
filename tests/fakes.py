"""Stand-ins for front-end tests: a chat format, an engine, an assistant, a listener.

`FakeEngine` and `FakeAssistant` say real events in the real order, with a reply of your choice
and steps that wait for the test. The fake model is in fake_model.py. None of it imports mlx.
"""

import codecs
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from ds4tui.assistant import Assistant, ModelInfo
from ds4tui.cache.foreseen import Foreseen
from ds4tui.cache.kvstore import DiskTier
from ds4tui.cache.outline import Outline, Turn
from ds4tui.cache.plan import plan_sync
from ds4tui.cache.timeline import ImageSpan, Timeline
from ds4tui.chat.messages import Message, Tool
from ds4tui.chat.outlining import opening_turn, turn_of
from ds4tui.chat.rendering import PictureOf, Rendering
from ds4tui.engine.requests import GenerateRequest
from ds4tui.engine.stats import EngineStats
from ds4tui.engine.vision.layout import row_ids
from ds4tui.engine.vision.seeing import Vision
from ds4tui.errors import ContextOverflow, EngineClosed, EngineError, RequestError
from ds4tui.events import (
    Decision,
    Event,
    Failed,
    Finished,
    Listener,
    PrefillProgress,
    Queued,
    SampledToken,
    StopReason,
    TokenLogprob,
    TokenText,
    Usage,
)
from tests.fake_model import END_OF_TURN, ROLE_IDS, ByteTokenizer

_log = logging.getLogger(__name__)


class FakeChatFormat:
    """Role marker, bytes of the text (or the sampled ids as they are), end of turn. Tools are a
    system turn of their JSON, calls are Hermes'. A reply may think where `template` says so.
    Images stand behind the text of their message."""

    template = "fake"
    tool_syntax = "hermes"
    stop_token_ids = frozenset({END_OF_TURN})
    abilities = SimpleNamespace(thinking_switch=True)

    def __init__(self) -> None:
        self.tokenizer: Any = ByteTokenizer()

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        thinking: bool | None = None,
    ) -> Timeline:
        return self.laid_out(messages, tools, thinking).timeline

    def laid_out(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        thinking: bool | None = None,
        picture_of: PictureOf | None = None,
    ) -> Rendering:
        if not messages:
            raise RequestError("There are no messages.", param="messages")
        told = [Message("system", "\n".join(t.parameters for t in tools))] if tools else []
        ids: list[int] = []
        turns: list[Turn] = []
        spans: list[ImageSpan] = []
        pictures = {}
        for message in [*told, *messages]:
            known = message.sampled_ids
            body = list(known) if known is not None else self.tokenizer.encode(_as_text(message))
            start = len(ids)
            ids += [ROLE_IDS[message.role], *body]
            for picture in map(picture_of, message.images) if picture_of else ():
                spans.append(picture.block.span(len(ids), picture.fingerprint))
                ids += row_ids(picture.fingerprint, picture.block.rows).tolist()
                pictures[picture.fingerprint] = picture
            ids.append(END_OF_TURN)
            turns.append(turn_of(message, start, len(ids), thinks=False))
        ids.append(ROLE_IDS["assistant"])
        timeline = Timeline.of(ids, tuple(spans))
        outline = (*turns, opening_turn(len(ids) - 1, len(ids)))
        return Rendering(timeline, outline, pictures=tuple(pictures.values()))

    def aligned(self, wanted: Rendering, resident: Timeline) -> Rendering:
        return wanted  # a byte a token: there is one way to spell a text

    def render_text(self, messages: Sequence[Message]) -> str:
        ids = self.render(messages).ids.tolist()
        text: str = self.tokenizer.decode(ids, skip_special=False)
        return text

    def begins_thinking(self, thinking: bool | None = None) -> bool:
        return bool(thinking)


def _as_text(message: Message) -> str:
    calls = [
        f'<tool_call>{{"name": "{c.name}", "arguments": {c.arguments}}}</tool_call>'
        for c in message.tool_calls
    ]
    return message.text + "".join(calls)


class FakeJob:
    """A job of FakeEngine."""

    def __init__(
        self, engine: "FakeEngine", job_id: str, request: GenerateRequest, listener: Listener
    ) -> None:
        self.job_id = job_id
        self.request = request
        self.listener = listener
        self.submitted = time.perf_counter()
        self.usage = Usage(prompt_tokens=len(request.timeline))
        self.is_cancelled = False
        self._engine = engine
        self._ended = threading.Event()

    def cancel(self) -> None:
        with self._engine.changed:
            self.is_cancelled = True
            self._engine.changed.notify_all()

    def wait(self, timeout_s: float | None = None) -> bool:
        return self._ended.wait(timeout_s)

    def emit(self, event: Event) -> None:
        try:
            self.listener(event)
        except Exception:  # as the real engine: logged and dropped
            _log.exception("a listener failed on %s", event)

    def end(self) -> None:
        self._ended.set()


class _Cancelled(Exception):
    pass


class FakeEngine:
    """Satisfies EngineLike: answers every request with `reply` (a text, or a function of the
    request), a byte a token, jobs in order of arrival, on a thread of its own.

    `token_delay_s` and `chunk_delay_s` are waited before a token and a prefill chunk; cancelling
    cuts them short. `hold()` makes the engine stop before its next step, `release(n)` lets n
    steps (the decision, chunks, tokens) pass, `release()` all. After `fail_after` tokens `error`
    ends the job as Failed. `requests` lists what was submitted. Reuse is planned by the real
    `plan_sync`. Unlike the real engine it has no end-of-turn token: none is counted, and the last
    token is never fed.
    """

    def __init__(
        self,
        reply: str | Callable[[GenerateRequest], str] = "Hello from the fake model.",
        *,
        token_delay_s: float = 0.0,
        chunk_delay_s: float = 0.0,
        chunk_tokens: int = 64,
        context_tokens: int = 4096,
        error: Exception | None = None,
        fail_after: int = 0,
        submit_error: Exception | None = None,
        model: str = "fake",
    ) -> None:
        self.reply = reply
        self.token_delay_s = token_delay_s
        self.chunk_delay_s = chunk_delay_s
        self.chunk_tokens = chunk_tokens
        self.context_tokens = context_tokens
        self.error = error
        self.fail_after = fail_after
        self.submit_error = submit_error
        self.requests: list[GenerateRequest] = []
        self.jobs: list[FakeJob] = []
        self.changed = threading.Condition()
        self.disk_tier: DiskTier | None = None
        self._stats = EngineStats(
            "idle", model=model, context_tokens=context_tokens, compute_path="fake"
        )
        self._live = Timeline.empty()
        self._tokenizer = ByteTokenizer()
        self._numbers = itertools.count(1)
        self._waiting: deque[FakeJob] = deque()
        self._steps_allowed: int | None = None  # None: as many as wanted
        self._closing = False
        self._thread: threading.Thread | None = None

    @property
    def stats(self) -> EngineStats:
        return self._stats

    @property
    def disk(self) -> DiskTier | None:
        return self.disk_tier

    def hold(self) -> None:
        with self.changed:
            self._steps_allowed = 0

    def release(self, steps: int | None = None) -> None:
        with self.changed:
            if steps is None or self._steps_allowed is None:
                self._steps_allowed = None
            else:
                self._steps_allowed += steps
            self.changed.notify_all()

    def submit(self, request: GenerateRequest, listener: Listener) -> FakeJob:
        if self.submit_error is not None:
            raise self.submit_error
        if len(request.timeline) + 1 > self.context_tokens:
            raise ContextOverflow(len(request.timeline), self.context_tokens)
        with self.changed:
            if self._closing:
                raise EngineClosed("The engine is closed.")
            job = FakeJob(self, f"fake-{next(self._numbers)}", request, listener)
            self.requests.append(request)
            self.jobs.append(job)
            self._waiting.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fake-engine", daemon=True)
                self._thread.start()
            self.changed.notify_all()
        return job

    def foreseen(self, wanted: Timeline, outline: Outline = ()) -> Future[Foreseen]:
        if len(wanted) > self.context_tokens:
            raise ContextOverflow(len(wanted), self.context_tokens)
        told: Future[Foreseen] = Future()
        told.set_result(Foreseen.of(plan_sync(self._live, wanted, can_rewind=lambda to: True)))
        return told

    def die(self, error: Exception) -> None:
        """Stop as the real one does when its thread ends by a fault."""
        self.submit_error = error
        self.close()

    def close(self, timeout_s: float = 10.0) -> None:
        with self.changed:
            self._closing = True
            self._steps_allowed = None
            for job in self.jobs:
                job.is_cancelled = True
            self.changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)
        self._stats = replace(self._stats, state="closed", job_id="", origin="")

    # Below: the engine's own thread.

    def _run(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    return
                job = self._waiting[0]
            ending = self._work(job)
            with self.changed:
                self._waiting.popleft()
            self._publish("idle", job_id="", origin="", queued_jobs=len(self._waiting))
            job.emit(ending)
            job.end()

    def _work(self, job: FakeJob) -> Event:
        shown: list[int] = []
        job.emit(Queued(job.job_id, 0))
        try:
            self._prefill(job)
            stop_reason, stop_string = self._decode(job, shown)
            ending: Event = Finished(job.job_id, stop_reason, job.usage, tuple(shown), stop_string)
        except _Cancelled:
            ending = Finished(job.job_id, "cancelled", job.usage, tuple(shown))
        except Exception as exc:
            self._live = Timeline.empty()
            ending = Failed(job.job_id, exc, job.usage)
        self._count(job.usage)
        return ending

    def _prefill(self, job: FakeJob) -> None:
        wanted = job.request.timeline
        self._step(job, 0.0)
        plan = plan_sync(self._live, wanted, can_rewind=lambda to: True)
        left_out = job.request.images_left_out
        decision = Decision.of(job.job_id, plan, images_left_out=left_out)
        job.emit(decision)
        self._live = wanted.prefix(plan.kept)
        job.usage = replace(job.usage, cached_tokens=plan.kept)
        self._publish("prefilling", job_id=job.job_id, origin=job.request.origin, decision=decision)
        began = time.perf_counter()
        for end in _chunk_ends(plan.to_evaluate, self.chunk_tokens):
            self._step(job, self.chunk_delay_s)
            elapsed = max(time.perf_counter() - began, 1e-6)
            rate = end / elapsed
            left = plan.to_evaluate - end
            progress = PrefillProgress(
                job.job_id, end, plan.to_evaluate, plan.kept, rate, left / rate
            )
            job.usage = replace(job.usage, evaluated_tokens=end, prefill_ms=elapsed * 1e3)
            self._live = wanted.prefix(wanted.snapped(plan.kept + end))
            self._publish("prefilling", prefill=progress, usage=job.usage)
            job.emit(progress)

    def _decode(self, job: FakeJob, shown: list[int]) -> tuple[StopReason, str | None]:
        sampling = job.request.sampling
        reply = self.reply if isinstance(self.reply, str) else self.reply(job.request)
        cut, stop_string = _first_stop(reply, sampling.stop)
        ids = self._tokenizer.encode(reply[: cut + len(stop_string or "")])
        room = min(
            sampling.max_tokens or self.context_tokens,
            self.context_tokens - len(job.request.timeline),
        )
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        began, characters = time.perf_counter(), 0
        for count, token in enumerate(ids[:room], start=1):
            self._step(job, self.token_delay_s)
            if self.error is not None and count > self.fail_after:
                raise self.error
            if shown:
                self._live = self._live.extended([shown[-1]])
            shown.append(token)
            text = decoder.decode(bytes([token]))
            visible = text if characters < cut else ""
            characters += len(text)
            self._tell_token(job, count, began, visible, token)
        if self.error is not None and self.fail_after >= len(ids[:room]):
            raise self.error
        if len(ids) > room:
            return "length", None
        return "stop", stop_string

    def _tell_token(self, job: FakeJob, count: int, began: float, text: str, token: int) -> None:
        now = time.perf_counter()
        ttft_ms = (now - job.submitted) * 1e3 if count == 1 else job.usage.ttft_ms
        job.usage = replace(
            job.usage,
            completion_tokens=count,
            ttft_ms=ttft_ms,
            decode_ms=(now - began) * 1e3,
        )
        self._publish("decoding", usage=job.usage)
        wanted = job.request.sampling.logprobs
        sampled = () if wanted is None else (self._sampled(token, wanted),)
        job.emit(TokenText(job.job_id, text, (token,), sampled))

    def _sampled(self, token: int, alternatives: int) -> SampledToken:
        best = [token, *(i for i in range(97, 97 + alternatives) if i != token)]
        top = tuple(
            TokenLogprob(i, self._tokenizer.token_bytes(i), -0.25 * (place + 1))
            for place, i in enumerate(best[:alternatives])
        )
        return SampledToken(TokenLogprob(token, self._tokenizer.token_bytes(token), -0.25), top)

    def _step(self, job: FakeJob, delay_s: float) -> None:
        """Wait until the next step may be done; raises _Cancelled if it must not be."""
        with self.changed:
            if delay_s:
                self.changed.wait_for(lambda: job.is_cancelled, delay_s)
            self.changed.wait_for(lambda: job.is_cancelled or self._steps_allowed != 0)
            if job.is_cancelled:
                raise _Cancelled
            if self._steps_allowed is not None:
                self._steps_allowed -= 1

    def _publish(self, state: Any, **changes: Any) -> None:
        self._stats = replace(self._stats, state=state, resident_tokens=len(self._live), **changes)

    def _count(self, usage: Usage) -> None:
        s = self._stats
        self._stats = replace(
            s,
            requests=s.requests + 1,
            total_prompt_tokens=s.total_prompt_tokens + usage.prompt_tokens,
            total_cached_tokens=s.total_cached_tokens + usage.cached_tokens,
            total_evaluated_tokens=s.total_evaluated_tokens + usage.evaluated_tokens,
            total_completion_tokens=s.total_completion_tokens + usage.completion_tokens,
        )


def _chunk_ends(total: int, chunk: int) -> list[int]:
    """Ends of the chunks of `total` rows, the last row alone."""
    return [*range(chunk, total - 1, chunk), *([total - 1] if total > 1 else []), total]


def _first_stop(text: str, stops: Sequence[str]) -> tuple[int, str | None]:
    """Where the text ends for the reader, and which stop string ended it."""
    found = [(text.find(s), s) for s in stops if s in text]
    return min(found) if found else (len(text), None)


def fake_info(context_tokens: int = 4096, name: str = "fake") -> ModelInfo:
    return ModelInfo(name, "fake.gguf", "fake", "F32", 1000, 4000, context_tokens)


class FakeAssistant(Assistant):
    """The real Assistant over a FakeEngine (`.engine`) and a byte tokenizer; takes FakeEngine's
    arguments. What it replies is remembered, so a second turn shows real reuse."""

    def __init__(
        self,
        reply: str | Callable[[GenerateRequest], str] = "Hello from the fake model.",
        vision: Vision | None = None,
        vision_refusal: str = "",
        images_kept: int = 0,
        **engine_arguments: Any,
    ) -> None:
        self.engine = FakeEngine(reply, **engine_arguments)
        info = fake_info(self.engine.context_tokens, self.engine.stats.model)
        super().__init__(
            info,
            self.engine,
            FakeChatFormat(),  # type: ignore[arg-type]
            vision=vision,
            vision_refusal=vision_refusal,
            images_kept=images_kept,
        )


class EventLog:
    """A listener that keeps what it hears; `wait_for` blocks until an event satisfies."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._changed = threading.Condition()

    def __call__(self, event: Event) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def wait_for(self, predicate: Callable[[Event], bool], timeout_s: float = 20.0) -> Event:
        with self._changed:
            there = self._changed.wait_for(
                lambda: any(predicate(e) for e in self.events), timeout_s
            )
            if not there:
                raise EngineError(f"no such event among {self.events}")
            return next(e for e in self.events if predicate(e))

    def wait_end(self, timeout_s: float = 20.0) -> Event:
        return self.wait_for(lambda e: isinstance(e, Finished | Failed), timeout_s)

    def of_type(self, kind: type[Any]) -> list[Any]:
        return [e for e in self.events if isinstance(e, kind)]

    @property
    def text(self) -> str:
        return "".join(e.text for e in self.of_type(TokenText))
