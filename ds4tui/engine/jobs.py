"""A job: the handle that its caller holds, and the work that the engine thread does for it.

`Generation.step` does one prefill chunk or one token, so that the engine can look at its queue
and at cancellations in between. What was evaluated when a job is cancelled, or fails beside the
model, stays resident: only what may have harmed the state poisons the session.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

import numpy as np

from ds4tui.cache.plan import SyncPlan
from ds4tui.engine.detokenizer import StreamDetokenizer
from ds4tui.engine.failures import let_go
from ds4tui.engine.loaded import LoadedModel
from ds4tui.engine.no_memory import is_no_memory
from ds4tui.engine.pool import Busy, Pool
from ds4tui.engine.requests import GenerateRequest
from ds4tui.engine.sampling import Choice, Sampler
from ds4tui.engine.session import Floats, Prefill, Session, SessionState
from ds4tui.engine.tokenizer import Tokenizer
from ds4tui.engine.told import decision_of, log_decision
from ds4tui.engine.vision.at_work import PicturesAtWork
from ds4tui.errors import (
    ContextOverflow,
    Ds4Error,
    EngineError,
    LostRecord,
    OutOfMemory,
    RequestError,
)
from ds4tui.events import (
    Decision,
    EncodingProgress,
    Event,
    Failed,
    Finished,
    Listener,
    PrefillProgress,
    SampledToken,
    StopReason,
    TokenLogprob,
    TokenText,
    Usage,
)

_log = logging.getLogger(__name__)

# After a fault of ours, by whether the state is lost.
_HINTS = {
    False: "Nothing that was evaluated is lost; the log has the details.",
    True: "The next request starts from nothing; the log has the details.",
}


class Job:
    """A submitted request. `cancel` and `wait` may be called from any thread, the rest is the
    engine thread's."""

    def __init__(
        self,
        job_id: str,
        request: GenerateRequest,
        listener: Listener,
        on_cancel: "Callable[[Job], None]",
    ) -> None:
        self.job_id = job_id
        self.request = request
        self.submitted_s = time.perf_counter()
        self._listener = listener
        self._on_cancel = on_cancel
        self._cancelled = threading.Event()
        self._ended = threading.Event()

    def cancel(self) -> None:
        self._cancelled.set()
        self._on_cancel(self)

    def wait(self, timeout_s: float | None = None) -> bool:
        return self._ended.wait(timeout_s)

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()

    def emit(self, event: Event) -> None:
        try:
            self._listener(event)
        except Exception:  # a front-end's fault must not stop the engine
            _log.exception("%s: a listener failed on %s", self.job_id, type(event).__name__)

    def end(self, event: Finished | Failed) -> None:
        """Once only: the first ending is the one that is told."""
        if self._ended.is_set():
            return
        try:
            self.emit(event)
        finally:
            self._ended.set()

    def cancelled(self) -> Finished:
        """The ending where no work was done for it."""
        usage = Usage(prompt_tokens=len(self.request.timeline))
        return Finished(self.job_id, "cancelled", usage)

    def failed(self, exc: Exception, loaded: LoadedModel) -> Failed:
        """The ending where it could not begin."""
        tokens = len(self.request.timeline)
        return Failed(self.job_id, error_of(self.job_id, exc, tokens, loaded))


def check_request(request: GenerateRequest, context_tokens: int, vocab_size: int) -> None:
    """Raise RequestError or ContextOverflow for what no engine with that model could do."""
    prompt = len(request.timeline)
    if not prompt:
        raise RequestError("The prompt is empty.", param="prompt")
    if prompt + 1 > context_tokens:
        rows = sum(span.rows for span in request.timeline.spans)
        raise ContextOverflow(prompt, context_tokens, image_tokens=rows)
    for token, _ in request.sampling.logit_bias:
        if not 0 <= token < vocab_size:
            raise RequestError(
                f"logit_bias names token {token}; the vocabulary has 0 to {vocab_size - 1}.",
                param="logit_bias",
            )


def error_of(
    job_id: str, exc: Exception, tokens: int, loaded: LoadedModel, hint: str = ""
) -> Ds4Error:
    """What a caller is told of `exc`, which is logged. `tokens` are those that there was to be
    memory for."""
    error = exc if isinstance(exc, Ds4Error) else _translated(exc, tokens, loaded, hint)
    if error is exc:
        _log.warning("%s failed: %s", job_id, exc)
    else:
        _log.error("%s failed", job_id, exc_info=exc)
        error.__cause__ = exc
    let_go(error)
    return error


def _translated(exc: Exception, tokens: int, loaded: LoadedModel, hint: str) -> Ds4Error:
    if is_no_memory(exc):
        # Where the numbers cannot be had either, the words of the other error must do.
        with suppress(OSError, MemoryError, RuntimeError):
            needed = loaded.model.kv_bytes(tokens)
            return OutOfMemory(f"A state of {tokens:,} tokens", needed, loaded.available_bytes())
    return EngineError(f"The engine failed at work: {type(exc).__name__}: {exc}", hint)


class Generation:
    """A job at work. `step` until there is an `ending`, which the engine then sends: by that
    time the stats must say that the job is over. `decision`, `encoding`, `progress` and `usage`
    say how far it is."""

    def __init__(self, job: Job, session: Session, loaded: LoadedModel, pool: Pool) -> None:
        self.job = job
        self.session = session
        self.decision: Decision | None = None
        self.encoding: EncodingProgress | None = None
        self.progress: PrefillProgress | None = None
        self.ending: Finished | Failed | None = None
        self.was_shared = False  # whether its time was other jobs' too
        self._pool = pool
        self._loaded = loaded
        self._sampler: Sampler | None = None
        self._detokenizer = _detokenizer(job.request, loaded.tokenizer)
        self._pictures = PicturesAtWork(loaded.images, job.request.pictures)
        self._prefill: Prefill | None = None  # None until the session was touched
        self._logits: Floats | None = None  # of the last token fed
        self._ids: list[int] = []  # sampled and shown; all but the last are in the session
        self._completion_tokens = 0  # the end-of-turn token too
        self._prefill_began_s = 0.0
        self._prefill_s = 0.0
        self._first_token_s = 0.0
        self._last_token_s = 0.0

    @property
    def is_decoding(self) -> bool:
        return self._logits is not None

    @property
    def as_busy(self) -> Busy:
        return Busy(self.job.request.timeline, self.is_decoding)

    @property
    def usage(self) -> Usage:
        """So far. Tokens count as cached once the session really holds them."""
        prefill, first = self._prefill, self._first_token_s
        return Usage(
            prompt_tokens=len(self.job.request.timeline),
            cached_tokens=prefill.plan.kept if prefill else 0,
            evaluated_tokens=prefill.done if prefill else 0,
            completion_tokens=self._completion_tokens,
            ttft_ms=(first - self.job.submitted_s) * 1e3 if first else 0.0,
            prefill_ms=self._prefill_s * 1e3,
            encode_ms=self._pictures.took_s * 1e3,
            decode_ms=(self._last_token_s - first) * 1e3,
        )

    def step(self, max_rows: int, busy: Iterable[int] = (), slowed: str = "") -> None:
        """One picture, chunk of at most `max_rows` rows, or token. Never raises: what fails ends
        the job as Failed. `busy` are the numbers of the sessions at work, `slowed` says in words
        why its prefill is slower than alone."""
        try:
            if self.job.is_cancelled:
                self._finish("cancelled")
            elif self._prefill is None:
                self._begin(busy)
            elif not self._prefill.finished:
                if not self._encode_picture(self._prefill, max_rows):
                    self._prefill_chunk(self._prefill, max_rows, slowed)
            else:
                self._decode_token(busy)
            if self.ending is not None:
                self._pictures.take_back()
        except Exception as exc:  # the root of a job's work
            self.fail(exc)

    def _begin(self, busy: Iterable[int]) -> None:
        request, session = self.job.request, self.session
        check_request(request, session.context_tokens, self._loaded.model.vocab_size)
        self._pictures.give(request.timeline)
        matcher = request.constraint.matcher() if request.constraint is not None else None
        self._sampler = Sampler(request.sampling, request.timeline.ids, matcher)
        self._prefill_began_s = time.perf_counter()
        while self._prefill is None:
            plan = self._pool.admitted(session, request.timeline, request.outline, busy)
            self._tell(plan)
            try:
                self._prefill = session.sync(request.timeline, plan)
            except LostRecord:  # a miss: what else there is decides
                continue
        self._pictures.begin(request.timeline, self._prefill.plan.kept)

    def _tell(self, plan: SyncPlan) -> None:
        cause = plan.cause.value if plan.cause is not None else None
        self.decision = decision_of(
            self.job.job_id,
            plan,
            self._loaded.tokenizer,
            origin=self.job.request.origin,
            session=self.session.number,
            tripwire=self._pool.tripwire.watch(plan.prompt, plan.kept, cause),
            images_left_out=self.job.request.images_left_out,
        )
        log_decision(self.decision)
        self.job.emit(self.decision)

    def _encode_picture(self, prefill: Prefill, max_rows: int) -> bool:
        """Encode one picture that the next chunk needs, if there is one."""
        one = self._pictures.encode_next(prefill.next_spans(max_rows))
        if one is not None:
            self.encoding = EncodingProgress(
                self.job.job_id, one.done, one.total, one.name, one.took_ms
            )
            self.job.emit(self.encoding)
        return one is not None

    def _prefill_chunk(self, prefill: Prefill, max_rows: int, slowed: str) -> None:
        prefill.step(max_rows)
        took_s = time.perf_counter() - self._prefill_began_s
        self._prefill_s = took_s - self._pictures.took_s
        rate = prefill.done / max(self._prefill_s, 1e-9)  # a coarse clock may not have moved
        self.progress = PrefillProgress(
            self.job.job_id,
            done=prefill.done,
            total=prefill.total,
            cached=prefill.plan.kept,
            tokens_per_s=rate,
            eta_s=(prefill.total - prefill.done) / rate,
            slowed="" if prefill.finished else slowed,
        )
        self.job.emit(self.progress)
        if prefill.finished:
            self._logits = prefill.logits

    def _decode_token(self, busy: Iterable[int]) -> None:
        if self._ids:
            self._pool.admit_token(self.session, busy)
            self._logits = self.session.append(self._ids[-1])
        assert self._logits is not None and self._sampler is not None
        choice = self._sampler.pick(self._logits)
        self._count_token()
        if choice.token_id in self.job.request.stop_token_ids:
            self._finish("stop")
            return
        self._sampler.accept(choice.token_id)
        self._ids.append(choice.token_id)
        text = self._detokenizer.push(choice.token_id)
        self.job.emit(TokenText(self.job.job_id, text, (choice.token_id,), self._sampled(choice)))
        if self._detokenizer.stop_string is not None:
            self._finish("stop")
        elif self._is_full():
            self._finish("length")

    def _count_token(self) -> None:
        self._completion_tokens += 1
        self._last_token_s = time.perf_counter()
        self._first_token_s = self._first_token_s or self._last_token_s

    def _is_full(self) -> bool:
        limit = self.job.request.sampling.max_tokens
        if limit is not None and len(self._ids) >= limit:
            return True
        return len(self.session.timeline) >= self.session.context_tokens

    def _sampled(self, choice: Choice) -> tuple[SampledToken, ...]:
        if self.job.request.sampling.logprobs is None:
            return ()
        chosen = self._logprob(choice.token_id, choice.logprob)
        return (SampledToken(chosen, tuple(self._logprob(*pair) for pair in choice.top)),)

    def _logprob(self, token_id: int, logprob: float) -> TokenLogprob:
        return TokenLogprob(token_id, self._loaded.tokenizer.token_bytes(token_id), logprob)

    def _finish(self, reason: StopReason) -> None:
        if self._prefill is not None:
            self._prefill.close()  # cancelled in the middle: what is there stays
            self.session.end_turn()
        rest = self._detokenizer.finish()
        stop_string = self._detokenizer.stop_string
        if rest:
            self.job.emit(TokenText(self.job.job_id, rest, ()))
        if stop_string is not None and reason == "length":
            reason = "stop"
        ids = tuple(self._ids)
        self.ending = Finished(self.job.job_id, reason, self.usage, ids, stop_string)

    def fail(self, exc: Exception) -> None:
        """End the job as Failed, unless it is over. Never raises. What is evaluated stays resident
        as when it is cancelled, unless the state may be harmed."""
        if self.ending is not None:
            _log.error("%s was over when this failed", self.job.job_id, exc_info=exc)
            return
        try:
            self._leave_session(exc)
            self._pictures.take_back()
        except Exception as another:  # as the root of a job's work
            _log.error("%s was not left as it should", self.job.job_id, exc_info=another)
        tokens = len(self.job.request.timeline) + len(self._ids)
        hint = _HINTS[self.session.state_name is SessionState.POISONED]
        error = error_of(self.job.job_id, exc, tokens, self._loaded, hint)
        self.ending = Failed(self.job.job_id, error, self.usage)

    def _leave_session(self, exc: Exception) -> None:
        session = self.session
        session.forget_plan()
        if session.state_name is SessionState.POISONED:
            return
        if not session.is_sound or self._has_bad_logits():
            session.poison(f"a job failed: {type(exc).__name__}: {exc}")
        elif self._prefill is not None:
            self._prefill.close()
            session.end_turn()

    def _has_bad_logits(self) -> bool:
        """Whether the model's last step gave none that can be sampled from: nor can its rows be
        trusted."""
        return self._logits is not None and not np.isfinite(self._logits.max())


def _detokenizer(request: GenerateRequest, tokenizer: Tokenizer) -> StreamDetokenizer:
    last = request.timeline.ids[-1:].tolist()
    continues = any(i >= 0 and not tokenizer.is_control(i) for i in last)
    return StreamDetokenizer(tokenizer, request.sampling.stop, continues=continues)
