"""The bridge from the engine thread to the UI loop: events in, batches out.

`push` runs on the engine thread for every token, so it appends and wakes the loop at most once
a batch. The reader takes what has gathered and rests between two batches; nothing runs here
while no job does.
"""

import asyncio
import time
from collections import deque
from contextlib import suppress

from ds4tui.events import Event

# People read no faster.
BATCHES_PER_S = 10.0
# Where the engine computes on the CPU it needs the core that drawing takes (and waits for the
# interpreter that drawing holds): dear batches are followed by a longer rest.
DRAWING_SHARE = 0.1
LONGEST_REST_S = 0.5


class Inbox:
    """Made on the loop that reads it; `push` may be called from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: deque[Event] = deque()
        self._filled = asyncio.Event()
        self._worked_s = time.thread_time()
        self._woken = False  # set by the pusher, cleared by the reader: one wake-up a batch

    def push(self, event: Event) -> None:
        self._events.append(event)
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # the app has ended
                self._loop.call_soon_threadsafe(self._filled.set)

    async def rest(self) -> None:
        """Wait before the next batch: long enough that this loop's thread works no more than
        DRAWING_SHARE of the time."""
        worked_s = time.thread_time() - self._worked_s
        await asyncio.sleep(rest_s(worked_s))
        self._worked_s += worked_s

    async def batch(self) -> list[Event]:
        """What has arrived since the last batch, at least one event."""
        await self._filled.wait()
        self._filled.clear()
        # Cleared before the queue is emptied: an event pushed meanwhile wakes us once more.
        self._woken = False
        events = []
        while self._events:
            events.append(self._events.popleft())
        return events or await self.batch()


def rest_s(worked_s: float) -> float:
    """Seconds to wait after a batch that cost `worked_s` of the loop's thread."""
    return min(LONGEST_REST_S, max(1 / BATCHES_PER_S, worked_s / DRAWING_SHARE - worked_s))
