"""Events from the engine thread to the loop: order, bounds, and jobs that nobody waits for."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from ds4tui.assistant import Listener
from ds4tui.errors import EngineClosed
from ds4tui.events import Failed, Finished, TokenText, Usage
from ds4tui.server import jobs
from ds4tui.server.jobs import ActiveJobs, JobEvents


class RecordingJob:
    job_id = "x"

    def __init__(self) -> None:
        self.listener: Listener | None = None
        self.cancelled = 0
        self.started = False

    def submit(self, listener: Listener, before_start: Callable[[], None]) -> "RecordingJob":
        self.listener = listener
        return self

    def cancel(self) -> None:
        self.cancelled += 1

    def wait(self, timeout_s: float | None = None) -> bool:
        return True


def token(number: int) -> TokenText:
    return TokenText("x", f"{number} ", (number,))


async def test_events_of_a_thread_come_in_order() -> None:
    job = RecordingJob()
    events = await ActiveJobs().begin(job.submit)

    def emit() -> None:
        for number in range(1000):
            events.listen(token(number))
        events.listen(Finished("x", "stop", Usage()))

    threading.Thread(target=emit).start()
    got = [await events.next(20) for _ in range(1001)]
    assert got[:1000] == [token(number) for number in range(1000)]
    assert isinstance(got[1000], Finished)
    events.close()
    assert not job.cancelled  # it had ended


async def test_silence_is_none() -> None:
    events = await ActiveJobs().begin(RecordingJob().submit)
    assert await events.next(0.01) is None
    assert await events.next(0) is None
    events.listen(token(1))
    assert await events.next(20) == token(1)


async def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MAX_WAITING_EVENTS", 3)
    job = RecordingJob()
    events = await ActiveJobs().begin(job.submit)
    for number in range(3):
        events.listen(token(number))
    await asyncio.sleep(0)
    assert not job.cancelled
    for number in range(100):
        events.listen(token(number))
    await asyncio.sleep(0)
    assert job.cancelled == 1
    failed = await events.next(20)
    assert isinstance(failed, Failed) and "did not read" in str(failed.error)
    assert await events.next(0.01) is None


async def test_closing_cancels_once_and_frees_the_place() -> None:
    active, job = ActiveJobs(), RecordingJob()
    events = await active.begin(job.submit)
    assert len(active) == 1
    events.close()
    events.listen(token(1))
    assert len(active) == 0 and job.cancelled
    assert await events.next(0.01) is None


async def test_a_submission_that_fails_frees_its_place() -> None:
    def refuse(listener: Listener, before_start: Callable[[], None]) -> RecordingJob:
        raise EngineClosed("closed")

    active = ActiveJobs()
    with pytest.raises(EngineClosed):
        await active.begin(refuse)
    assert len(active) == 0


Submission = tuple[asyncio.Task[JobEvents], threading.Event]


async def start_slowly(active: ActiveJobs, job: RecordingJob, checks: bool = False) -> Submission:
    """A job whose submission has begun and waits for the event; with `checks` it asks, as the
    assistant does, whether anyone waits."""
    begun, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def submit(listener: Listener, before_start: Callable[[], None]) -> RecordingJob:
        loop.call_soon_threadsafe(begun.set)
        assert go_on.wait(20)
        if checks:
            before_start()
        job.started = True
        return job

    task = asyncio.create_task(active.begin(submit))
    await begun.wait()
    return task, go_on


async def test_stopping_during_a_submission_cancels_what_comes_of_it() -> None:
    active, job = ActiveJobs(), RecordingJob()
    task, go_on = await start_slowly(active, job)
    active.stop()
    go_on.set()
    events = await task
    assert job.cancelled
    failed = await events.next(20)
    assert isinstance(failed, Failed) and isinstance(failed.error, EngineClosed)
    with pytest.raises(EngineClosed):
        await active.begin(job.submit)


async def test_a_task_cancelled_during_a_submission_cancels_what_comes_of_it() -> None:
    active, job = ActiveJobs(), RecordingJob()
    task, go_on = await start_slowly(active, job)
    task.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(active) == 0
    while not job.cancelled:
        await asyncio.sleep(0.005)


async def test_a_task_cancelled_before_the_job_starts_starts_none() -> None:
    active, job = ActiveJobs(), RecordingJob()
    task, go_on = await start_slowly(active, job, checks=True)
    task.cancel()
    await asyncio.sleep(0)
    assert len(active) == 1  # its thread is still at work
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(active) == 0 and not job.started


async def test_stopping_before_the_job_starts_starts_none() -> None:
    active, job = ActiveJobs(), RecordingJob()
    task, go_on = await start_slowly(active, job, checks=True)
    active.stop()
    go_on.set()
    with pytest.raises(EngineClosed, match="stopping"):
        await task
    assert len(active) == 0 and not job.started


def test_a_listener_whose_loop_is_closed_cancels_its_job() -> None:
    job = RecordingJob()
    events = asyncio.run(ActiveJobs().begin(job.submit))
    events.listen(token(1))
    assert job.cancelled
