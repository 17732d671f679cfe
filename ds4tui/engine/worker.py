"""The engine: one thread that loads a model and does all work with it.

Its loop: obey what callers asked for, choose the job, do one chunk or one token of it, publish
the stats, again. With one session a job runs to its end before the next begins; schedule.py
says which. An idle engine blocks on its queue and uses no time at all.

Callers' threads put calls into the queue, set a job's cancel event and read the stats object,
which is replaced, never changed. Everything else belongs to the engine thread.
"""

import itertools
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ds4tui.engine.jobs import Generation, Job, check_request
from ds4tui.engine.loaded import LoadedModel
from ds4tui.engine.requests import GenerateRequest
from ds4tui.engine.schedule import Schedule
from ds4tui.engine.session import Session
from ds4tui.engine.stats import EngineStats
from ds4tui.engine.stopping import stoppable
from ds4tui.errors import EngineClosed, EngineError
from ds4tui.events import Failed, Listener, Queued, Usage

__all__ = ["Engine", "LoadedModel"]

_log = logging.getLogger(__name__)


class Engine:
    """Satisfies assistant.EngineLike. `load` runs on the engine's thread, once, after `start`;
    it is given up at the next tensor once the engine is closed (stopping.py).

    Jobs may be submitted while the model loads; they wait.
    """

    def __init__(self, load: Callable[[], LoadedModel]) -> None:
        self._load = load
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._schedule: Schedule[Job] = Schedule()
        self._current: Generation | None = None
        self._stats = EngineStats()
        self._numbers = itertools.count(1)
        self._thread = threading.Thread(target=self._run, name="ds4tui-engine", daemon=True)
        self._ready = threading.Event()
        self._lock = threading.Lock()  # of the four below, and of putting jobs into the queue
        self._limits: tuple[int, int] | None = None  # context and vocabulary, once loaded
        self._error: Exception | None = None  # why there is no model
        self._is_closing = False
        self._is_started = False

    @property
    def stats(self) -> EngineStats:
        return self._stats

    def start(self) -> None:
        """Begin to load. Once only."""
        with self._lock:
            if self._is_closing:
                raise EngineClosed("The engine is closed.")
            self._is_started = True
        self._thread.start()

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Return when the model is loaded. Raises what `load` raised, EngineClosed if the engine
        was closed first, EngineError if it takes longer than `timeout_s`."""
        if not self._ready.wait(timeout_s):
            raise EngineError(f"The model is not loaded after {timeout_s:g} s.")
        if self._error is not None:
            raise self._error

    def submit(self, request: GenerateRequest, listener: Listener) -> Job:
        """Queue a job; its events come on the engine thread, Queued first.

        Raises what `load` raised, EngineClosed, and, if the model is loaded, RequestError or
        ContextOverflow for what cannot be done (else the job ends as Failed with it).
        """
        job = Job(f"job-{next(self._numbers)}", request, listener, self._on_cancel)
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._is_closing:
                raise EngineClosed("The engine is closed.")
            if self._limits is not None:
                check_request(request, *self._limits)
            self._calls.put(partial(self._accept, job))
        return job

    def close(self, timeout_s: float = 10.0) -> None:
        """End all jobs as cancelled and stop the thread, waiting for it at most `timeout_s`: a
        step in progress is not torn. Harmless when repeated."""
        with self._lock:
            is_first, self._is_closing = not self._is_closing, True
            if is_first:
                self._calls.put(lambda: None)  # wakes an idle thread
        if not self._is_started:
            self._shut_down()
        elif threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                _log.warning("the engine is still at a step %g s after it was closed", timeout_s)

    def _on_cancel(self, job: Job) -> None:
        self._calls.put(partial(self._drop_waiting, job))

    # What follows runs on the engine thread.

    def _run(self) -> None:
        try:
            with stoppable(lambda: self._is_closing):
                loaded = self._load()
            session = Session(loaded.model, loaded.chunk_sizes, loaded.context_tokens)
        except EngineClosed as exc:
            _log.info("%s", exc)
            self._give_up(exc)
            return
        except BaseException as exc:  # whatever it is: who waits for the model must be told
            _log.error("the model could not be loaded: %s", exc)
            self._give_up(exc if isinstance(exc, Exception) else EngineError(f"Loading: {exc!r}"))
            return
        self._loaded_ready(loaded, session)
        try:
            self._serve(loaded, session)
        except Exception as exc:  # the root of the thread: only a fault of ours gets here
            _log.exception("the engine stopped")
            self._give_up(EngineClosed(f"The engine stopped: {type(exc).__name__}: {exc}"))
        else:
            self._shut_down()

    def _loaded_ready(self, loaded: LoadedModel, session: Session) -> None:
        self._stats = replace(
            self._stats,
            state="idle",
            model=loaded.name,
            context_tokens=session.context_tokens,
            weights_bytes=loaded.model.weights_bytes,
            compute_path=loaded.model.compute_path,
        )
        with self._lock:
            self._limits = (session.context_tokens, loaded.model.vocab_size)
        self._ready.set()

    def _serve(self, loaded: LoadedModel, session: Session) -> None:
        while True:
            self._obey_calls(may_block=self._current is None and not len(self._schedule))
            if self._is_closing:
                return
            if self._current is None:
                if not len(self._schedule):
                    continue
                self._current = Generation(self._schedule.take(), session, loaded)
            self._work_on(self._current, loaded, session)

    def _work_on(self, work: Generation, loaded: LoadedModel, session: Session) -> None:
        work.step()
        self._publish(loaded, session, work)
        if work.ending is not None:
            self._current = None
            self._count(work.usage)
            work.job.end(work.ending)  # last: who hears it may look at the stats at once

    def _obey_calls(self, may_block: bool) -> None:
        try:
            while True:
                self._calls.get(block=may_block)()
                may_block = False
        except queue.Empty:
            return

    def _accept(self, job: Job) -> None:
        ahead = self._schedule.add(job, job.request.origin) + (self._current is not None)
        self._stats = replace(self._stats, queued_jobs=len(self._schedule))
        job.emit(Queued(job.job_id, ahead))
        if job.is_cancelled:
            self._drop_waiting(job)

    def _drop_waiting(self, job: Job) -> None:
        """A cancelled job that waits ends at once; one at work ends at its next step."""
        if self._schedule.remove(job):
            self._stats = replace(self._stats, queued_jobs=len(self._schedule))
            job.end_unstarted()

    def _publish(self, loaded: LoadedModel, session: Session, work: Generation) -> None:
        active_bytes, peak_bytes = loaded.memory_use()
        job = work.job
        self._stats = replace(
            self._stats,
            state="decoding" if work.is_decoding else "prefilling",
            resident_tokens=len(session.timeline),
            kv_bytes=session.kv_bytes,
            memory_active_bytes=active_bytes,
            memory_peak_bytes=peak_bytes,
            job_id=job.job_id,
            origin=job.request.origin,
            queued_jobs=len(self._schedule),
            decision=work.decision,
            prefill=work.progress,
            usage=work.usage,
        )

    def _count(self, usage: Usage) -> None:
        before = self._stats
        self._stats = replace(
            before,
            state="idle",
            job_id="",
            origin="",
            prefill=replace(before.prefill, eta_s=0.0) if before.prefill else None,
            requests=before.requests + 1,
            total_prompt_tokens=before.total_prompt_tokens + usage.prompt_tokens,
            total_cached_tokens=before.total_cached_tokens + usage.cached_tokens,
            total_evaluated_tokens=before.total_evaluated_tokens + usage.evaluated_tokens,
            total_completion_tokens=before.total_completion_tokens + usage.completion_tokens,
        )

    def _shut_down(self) -> None:
        """Closed as asked: everything ends as cancelled."""
        if self._current is not None:
            self._current.job.cancel()
            self._current.step()
            if self._current.ending is not None:
                self._current.job.end(self._current.ending)
            self._current = None
        self._close_books(EngineClosed("The engine is closed."))
        for job in self._schedule.in_order():
            job.end_unstarted()

    def _give_up(self, error: Exception) -> None:
        """There is no model to work with: everything fails with the reason."""
        if self._current is not None:
            self._current.job.end(Failed(self._current.job.job_id, error))
            self._current = None
        self._close_books(error)
        for job in self._schedule.in_order():
            job.end(Failed(job.job_id, error))

    def _close_books(self, error: Exception) -> None:
        with self._lock:  # after this no job gets into the queue
            self._error = error
            self._is_closing = True
        self._obey_calls(may_block=False)
        self._stats = replace(self._stats, state="closed", job_id="", origin="", queued_jobs=0)
        self._ready.set()
