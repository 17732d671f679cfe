"""The engine: one thread that loads a model and does all work with it.

Its loop: obey what callers asked for, begin the jobs that find a session (pool.py), choose one
of those at work, do one chunk or one token of it, publish the stats, again. Of each session one
job is at work, and runs to its end before the next begins; schedule.py says which job begins,
sharing.py which one does the next step. An idle engine blocks on its queue and uses no time.

Callers' threads put calls into the queue, set a job's cancel event and read the stats object,
which is replaced, never changed. Everything else belongs to the engine thread.
"""

import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from ds4tui.cache.foreseen import Foreseen
from ds4tui.cache.kvstore import DiskTier
from ds4tui.cache.outline import Outline
from ds4tui.cache.timeline import Timeline
from ds4tui.crash import write_report
from ds4tui.engine.books import Books, counted
from ds4tui.engine.decode_rates import DecodeRates
from ds4tui.engine.device_memory import available_bytes
from ds4tui.engine.failures import let_go
from ds4tui.engine.jobs import Generation, Job, check_request
from ds4tui.engine.loaded import LoadedModel
from ds4tui.engine.pool import Pool
from ds4tui.engine.requests import GenerateRequest
from ds4tui.engine.schedule import Schedule
from ds4tui.engine.session import Session
from ds4tui.engine.sharing import Turns
from ds4tui.engine.stats import EngineStats
from ds4tui.engine.stopping import stoppable
from ds4tui.errors import EngineClosed, EngineError
from ds4tui.events import Failed, Finished, Listener, Queued

__all__ = ["Engine", "LoadedModel"]

_log = logging.getLogger(__name__)

# For what waits to be written when the engine closes; see also pool.STORE_THE_REST_S.
CLOSE_DISK_S = 0.7


class Engine:
    """Satisfies assistant.EngineLike. `load` runs on the engine's thread, once, after `start`;
    it is given up at the next tensor once the engine is closed (stopping.py).

    Jobs may be submitted while the model loads; they wait. `clock` (seconds) is what the steps of
    jobs are measured by, to share the time among them.
    """

    def __init__(
        self, load: Callable[[], LoadedModel], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._load = load
        self._clock = clock
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._schedule: Schedule[Job] = Schedule()
        self._at_work = _turns()  # one a session at most
        self._unended: dict[Job, None] = {}  # all that were accepted, in order
        self._may_begin = False  # something has changed since waiting jobs were last looked at
        self._disk: DiskTier | None = None  # once loaded
        self._pool: Pool | None = None  # while there is a model
        self._is_untold = False  # something has changed that the stats do not say
        self._stats = EngineStats()
        self._numbers = itertools.count(1)
        self._thread = threading.Thread(target=self._run, name="ds4tui-engine", daemon=True)
        self._ready = threading.Event()
        self._lock = threading.Lock()  # of the four below, and of putting jobs into the queue
        self._limits: tuple[int, int] | None = None  # context and vocabulary, once loaded
        self._error: Exception | None = None  # why there is no model
        self._is_closing = False
        self._is_started = False
        self._session_count = 1
        self._memory_use: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self._rates = DecodeRates()

    @property
    def stats(self) -> EngineStats:
        return self._stats

    @property
    def disk(self) -> DiskTier | None:
        """What outlives the process; None while the model loads, and without one. What is
        changed in it is told in the stats soon."""
        return self._disk

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

    def foreseen(self, wanted: Timeline, outline: Outline = ()) -> Future[Foreseen]:
        """What `wanted` would cost now; told between two steps of what is at work. The future
        raises ContextOverflow, ValueError for nothing, and EngineError where no model is loaded."""
        told: Future[Foreseen] = Future()
        with self._lock:
            if self._error is not None:
                raise self._error
            self._calls.put(partial(self._foresee, wanted, outline, told))
        return told

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
            before = available_bytes()
            with stoppable(lambda: self._is_closing):
                loaded = self._load()
            pool = Pool(loaded, _room_bytes(before, loaded))
        except EngineClosed as exc:
            _log.info("%s", exc)
            self._give_up(exc)
            return
        except BaseException as exc:  # whatever it is: who waits for the model must be told
            _log.error("the model could not be loaded: %s", exc)
            _log.debug("where that was", exc_info=exc)
            let_go(exc)  # what is loaded of it
            self._give_up(exc if isinstance(exc, Exception) else EngineError(f"Loading: {exc!r}"))
            return
        try:
            books = Books(pool, loaded.tokenizer)
            self._session_count, self._memory_use = len(pool.sessions), loaded.memory_use
            self._loaded_ready(loaded, pool, books)
            self._serve(loaded, pool, books)
            self._shut_down()
            pool.store_the_rest()
        except BaseException as exc:  # the root of the thread: only a fault of ours gets here
            _log.exception("the engine stopped")
            report = write_report(exc, "the engine")
            where = f"{report} says where." if report else "The log file has the details."
            what = f"The engine stopped: {type(exc).__name__}: {exc}."
            self._give_up(EngineClosed(what, where))
        finally:
            if loaded.disk is not None:
                loaded.disk.close(CLOSE_DISK_S)

    def _loaded_ready(self, loaded: LoadedModel, pool: Pool, books: Books) -> None:
        self._disk, self._pool = loaded.disk, pool
        if loaded.disk is not None:
            loaded.disk.changed = lambda: self._calls.put(self._disk_changed)
        books.looked_at_memory()
        books.looked_at_conversations()
        books.note_memory()
        self._stats = replace(
            self._stats,
            state="idle",
            model=loaded.name,
            context_tokens=pool.context_tokens,
            weights_bytes=loaded.weights_bytes,
            encoder=loaded.images.name if loaded.images is not None else "",
            compute_path=loaded.model.compute_path,
            **books.fields(()),
        )
        with self._lock:
            self._limits = (pool.context_tokens, loaded.model.vocab_size)
        self._ready.set()

    def _serve(self, loaded: LoadedModel, pool: Pool, books: Books) -> None:
        while True:
            is_idle = not len(self._at_work) and not len(self._schedule)
            is_storing = pool.storing is not None and pool.storing.is_pending
            if is_idle and self._is_untold and not is_storing:
                with self._going_on("looking at what is held"):
                    self._look_again(books)
                self._is_untold = False  # also where that failed: it is not tried for ever
            self._obey_calls(may_block=is_idle and not is_storing)
            if self._is_closing:
                return
            self._begin_jobs(loaded, pool, books)
            if len(self._at_work):
                self._work_on(pool, books)
            elif pool.storing is not None and is_storing:
                pool.storing.idle()

    def _begin_jobs(self, loaded: LoadedModel, pool: Pool, books: Books) -> None:
        """Give sessions to the jobs that wait, as far as these find one that rests."""
        while self._may_begin and len(self._schedule):
            busy = {work.session.number: work.as_busy for work in self._at_work.in_order()}
            found: dict[Job, Session | Exception] = {}

            def finds_session(job: Job) -> bool:
                """Also if that cannot be told: then it is over."""
                request = job.request
                try:
                    session = pool.route(request.timeline, request.outline, busy)  # noqa: B023
                except Exception as exc:  # the root of a job's beginning
                    found[job] = exc  # noqa: B023
                    return True
                if session is not None:
                    found[job] = session  # noqa: B023
                return session is not None

            job = self._schedule.take_ready(finds_session)
            if job is None:
                break
            self._begin(job, found[job], loaded, pool, books)
        self._may_begin = False

    def _begin(
        self, job: Job, found: Session | Exception, loaded: LoadedModel, pool: Pool, books: Books
    ) -> None:
        """Put a job to work in the session that was found for it, or end it."""
        try:
            if isinstance(found, Exception):
                raise found
            work = Generation(job, found, loaded, pool)
            pool.begin(found)
            books.begun(work)
            if pool.storing is not None:
                pool.storing.begun(found, books.what(found))
            self._at_work.add(work, job.request.origin)
        except Exception as exc:  # the root of a job's beginning
            self._tell_queued()
            self._end(job, job.failed(exc, loaded))

    def _work_on(self, pool: Pool, books: Books) -> None:
        """One step of a job. What fails beside its work costs this job at most."""
        work = self._next_step()
        was_decoding, was_evaluated = work.is_decoding, work.usage.evaluated_tokens
        began_s = self._clock()
        try:
            self._step(work, pool, books)
            if work.ending is None:
                self._publish(work, books)
        except Exception as exc:  # the root of a job's work
            work.fail(exc)
        rows = work.usage.evaluated_tokens - was_evaluated
        self._at_work.stepped(work, self._clock() - began_s, rows)
        self._may_begin |= _may_let_others_begin(work, was_decoding)
        if work.ending is not None:
            self._at_work.remove(work)
            with self._going_on("telling of a job that is over"):
                self._publish(work, books)
                self._count(work, pool)
            self._end(work.job, work.ending)  # last: who hears it may look at the stats at once

    def _next_step(self) -> Generation:
        """Whose it is. What is cancelled ends at once, whatever its share: others wait for its
        session, and that takes no time."""
        cancelled = (w for w in self._at_work.in_order() if w.job.is_cancelled)
        return next(cancelled, None) or self._at_work.next()

    def _step(self, work: Generation, pool: Pool, books: Books) -> None:
        others = [other for other in self._at_work.in_order() if other is not work]
        work.was_shared |= bool(others)
        was_decoding, decision = work.is_decoding, work.decision
        busy = [other.session.number for other in others]
        began_s = time.perf_counter()
        max_rows = self._at_work.chunk_limit(work, work.session.chunk_sizes)
        work.step(max_rows, busy, self._at_work.slowed_words(work))
        if pool.storing is not None:
            took_s, is_over = time.perf_counter() - began_s, work.ending is not None
            pool.storing.stepped(
                work.session, took_s, is_prefilled=work.is_decoding, is_over=is_over
            )
        if work.decision is not None and work.decision is not decision:
            books.decided(work.decision)
        if work.ending is not None or work.is_decoding is not was_decoding:
            books.looked_at(work.session)
        if work.ending is not None or not work.is_decoding:
            books.looked_at_memory()
        pool.stepped()
        books.note_memory()

    def _disk_changed(self) -> None:
        self._is_untold = True

    def _look_again(self, books: Books) -> None:
        """What was stored meanwhile is told, and what could not be told before."""
        books.looked_at_memory()
        books.looked_at_conversations()
        books.note_memory()
        self._stats = replace(self._stats, state="idle", job_id="", origin="", **books.fields(()))

    @contextmanager
    def _going_on(self, what: str) -> Iterator[None]:
        """A fault of ours in what only tells ends nothing: it is told later."""
        try:
            yield
        except Exception:  # the root of what is told
            _log.exception("%s failed", what)
            self._is_untold = True

    def _obey_calls(self, may_block: bool) -> None:
        try:
            while True:
                self._calls.get(block=may_block)()
                may_block = False
        except queue.Empty:
            return

    def _accept(self, job: Job) -> None:
        self._unended[job] = None
        place = self._schedule.add(job, job.request.origin)
        ahead = max(0, place + len(self._at_work) - (self._session_count - 1))
        self._may_begin = True
        self._tell_queued()
        job.emit(Queued(job.job_id, ahead))
        if job.is_cancelled:
            self._drop_waiting(job)

    def _foresee(self, wanted: Timeline, outline: Outline, told: Future[Foreseen]) -> None:
        busy = [work.session.number for work in self._at_work.in_order()]
        try:
            if self._pool is None:
                raise EngineError("The model is not loaded yet.")
            told.set_result(Foreseen.of(self._pool.foreseen(wanted, outline, busy)))
        except Exception as exc:  # whoever asked gets it
            told.set_exception(exc)

    def _drop_waiting(self, job: Job) -> None:
        """A cancelled job that waits ends at once; one at work ends at its next step."""
        if self._schedule.remove(job):
            self._tell_queued()
            self._end(job, job.cancelled())

    def _tell_queued(self) -> None:
        with self._going_on("telling of the queue"):
            self._stats = replace(self._stats, queued_jobs=len(self._schedule))

    def _end(self, job: Job, ending: Finished | Failed) -> None:
        job.end(ending)
        self._unended.pop(job, None)

    def _publish(self, work: Generation, books: Books) -> None:
        active_bytes, peak_bytes = self._memory_use()
        job, session = work.job, work.session
        if work.is_decoding:
            self._rates.decoded()
        self._stats = replace(
            self._stats,
            state="decoding" if work.is_decoding else "prefilling",
            resident_tokens=len(session.timeline),
            memory_active_bytes=active_bytes,
            memory_peak_bytes=peak_bytes,
            job_id=job.job_id,
            origin=job.request.origin,
            queued_jobs=len(self._schedule),
            decision=work.decision,
            prefill=work.progress,
            encoding=work.encoding,
            usage=work.usage,
            decode_rates=self._rates.last,
            **books.fields(self._at_work.in_order()),
        )

    def _count(self, work: Generation, pool: Pool) -> None:
        """A job is over; the engine is idle unless others are at work."""
        replayed = work.decision.replayed if work.decision is not None else 0
        stats = counted(self._stats, work.usage, replayed)
        if not work.was_shared:
            pool.measured(work.usage)
        if not len(self._at_work):
            self._rates.rested()
            self._is_untold = self._disk is not None
            stats = replace(stats, state="idle", job_id="", origin="")
            stats = replace(stats, is_storing=self._is_untold)
        prefill = stats.prefill
        self._stats = replace(stats, prefill=replace(prefill, eta_s=0.0) if prefill else None)

    def _shut_down(self) -> None:
        """Closed as asked: everything ends as cancelled."""
        for work in self._at_work.in_order():
            self._at_work.remove(work)
            work.job.cancel()
            work.step(1)
            if work.ending is not None:
                self._end(work.job, work.ending)
        self._close_books(EngineClosed("The engine is closed."))
        for job in tuple(self._unended):
            self._end(job, job.cancelled())

    def _give_up(self, error: Exception) -> None:
        """There is no model to work with: everything fails with the reason."""
        self._at_work, self._pool = _turns(), None  # with what they held of the model
        try:
            self._close_books(error)
        finally:  # whatever else fails: nobody waits for ever
            for job in tuple(self._unended):
                self._end(job, Failed(job.job_id, error))

    def _close_books(self, error: Exception) -> None:
        with self._lock:  # after this no job gets into the queue
            self._error = error
            self._is_closing = True
        self._obey_calls(may_block=False)
        self._stats = replace(self._stats, state="closed", job_id="", origin="", queued_jobs=0)
        self._ready.set()


def _turns() -> Turns[Generation]:
    return Turns(lambda work: work.is_decoding)


def _may_let_others_begin(work: Generation, was_decoding: bool) -> bool:
    """Whether who waits for a session may find one, or rows to copy, after this step: a job that
    is over, a chunk, or the first token by which a reply parts from other prompts."""
    if work.ending is not None or not was_decoding:
        return True
    return len(work.session.timeline) == len(work.job.request.timeline) + 1


def _room_bytes(before: int, loaded: LoadedModel) -> int:
    """Memory for all but the weights. What was `before` they were loaded counts: pages of a
    mapped file are available still, as the system sees it, and yet must stay."""
    return min(before - loaded.weights_bytes, loaded.available_bytes())
