"""One job's events carried from the engine thread to the event loop.

`JobEvents` belongs to the loop it was made on. Its `listen` runs on the engine thread and only
hands the event over; it never waits. How many events may wait for a slow client is bounded:
past the bound the job is cancelled, so neither the engine nor the memory pays for it.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable

import anyio.to_thread

from ds4tui.assistant import Job, Listener
from ds4tui.errors import Ds4Error, EngineClosed, EngineError
from ds4tui.events import (
    Decision,
    Event,
    Failed,
    Finished,
    PrefillProgress,
    ReasoningText,
    TokenText,
    ToolCallArguments,
)
from ds4tui.server.errors import ApiError
from ds4tui.server.hangup import ClientGone

# The sockets hold tens of thousands of tokens before an event waits here at all.
MAX_WAITING_EVENTS = 8192

# An editor that asks on every keystroke must be told no before the machine is full of prompts.
MAX_ACTIVE_JOBS = 64

# Is given who listens, and what to call before the job starts: it raises if nobody waits any more.
Submit = Callable[[Listener, Callable[[], None]], Job]


class JobEvents:
    """Events in order until Finished or Failed; `close` cancels a job that is still at work."""

    def __init__(self, on_close: "Callable[[JobEvents], None]") -> None:
        self._loop = asyncio.get_running_loop()
        self._on_close = on_close
        self._waiting: deque[Event] = deque()
        self._arrived = asyncio.Event()
        self._ended = False
        self._lock = threading.Lock()  # guards _job and _abandoned
        self._job: Job | None = None
        self._abandoned = False
        self._failure: Ds4Error | None = None
        self.decision: Decision | None = None
        """The last Decision taken by `next`."""
        self.phase = "queue"
        """What the job is at, for keep-alive comments and the log."""

    async def begin(self, submit: Submit) -> None:
        """Run `submit` on a worker thread: rendering a long history must not stall the loop.
        Raises what it raises. A task that is cancelled meanwhile waits for the thread, whose
        place is taken until then, but no job starts."""
        work = asyncio.ensure_future(anyio.to_thread.run_sync(self._submit, submit))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            self._abandon()
            await asyncio.gather(work, return_exceptions=True)
            raise

    def _submit(self, submit: Submit) -> None:
        job = submit(self.listen, self._require_reader)
        with self._lock:
            self._job = job
            abandoned = self._abandoned
        if abandoned:
            job.cancel()

    def _require_reader(self) -> None:
        if self._abandoned:
            raise self._failure or ClientGone

    def listen(self, event: Event) -> None:
        """Take an event; called on the engine thread."""
        try:
            self._loop.call_soon_threadsafe(self._arrive, event)
        except RuntimeError:  # the loop is closed: nobody is left to read the reply
            self._abandon()

    def _arrive(self, event: Event) -> None:
        if self._abandoned:
            return
        if len(self._waiting) >= MAX_WAITING_EVENTS:
            self.fail(EngineError("The reply was cancelled: the client did not read it."))
            return
        self._waiting.append(event)
        self._arrived.set()

    async def next(self, timeout_s: float | None = None) -> Event | None:
        """The next event, or None when `timeout_s` pass without one."""
        if not self._waiting:
            self._arrived.clear()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._arrived.wait()
            except TimeoutError:
                return None
        event = self._waiting.popleft()
        self._note(event)
        return event

    def _note(self, event: Event) -> None:
        match event:
            case Decision():
                self.decision, self.phase = event, "prefill"
            case PrefillProgress(done=done, total=total):
                self.phase = f"prefill {done}/{total}"
            case TokenText() | ReasoningText() | ToolCallArguments():
                self.phase = "decode"
            case Finished() | Failed():
                self._ended = True

    def fail(self, error: Ds4Error) -> None:
        """Cancel the job and let its reader see `error` instead of what still waits."""
        self._failure = error
        self._abandon()
        self._waiting.clear()
        self._waiting.append(Failed("", error))
        self._arrived.set()

    def close(self) -> None:
        """Nobody reads any more. Cancels the job unless it has ended; may be called twice."""
        if not self._ended:
            self._abandon()
        self._on_close(self)

    def _abandon(self) -> None:
        with self._lock:
            self._abandoned = True
            job = self._job
        if job is not None:
            job.cancel()


class ActiveJobs:
    """The jobs that clients wait for; all of them can be ended at once. Lives on the loop."""

    def __init__(self, limit: int = MAX_ACTIVE_JOBS) -> None:
        self._limit = limit
        self._active: set[JobEvents] = set()
        self._stopping = False

    def __len__(self) -> int:
        return len(self._active)

    async def begin(self, submit: Submit) -> JobEvents:
        """Submit a job. Raises what `submit` raises, ApiError (429) over the limit and
        EngineClosed once the server is stopping."""
        events = self._open()
        try:
            await events.begin(submit)
        except BaseException:
            events.close()
            raise
        return events

    def _open(self) -> JobEvents:
        if self._stopping:
            raise _stopping()
        if len(self._active) >= self._limit:
            raise ApiError(
                429,
                f"{len(self._active)} requests are waiting already.",
                code="queue_full",
                hint="Send it again when some have been answered.",
                headers={"Retry-After": "1"},
            )
        events = JobEvents(self._active.discard)
        self._active.add(events)
        return events

    def stop(self) -> None:
        """End every open reply with an error and take no more."""
        self._stopping = True
        for events in list(self._active):
            events.fail(_stopping())


def _stopping() -> EngineClosed:
    return EngineClosed("The server is stopping.", "Send the request again when it is back.")
