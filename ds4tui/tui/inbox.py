"""The bridge from the engine thread to the UI loop: events in, batches out.

`push` runs on the engine thread for every token, so it appends and wakes the loop at most once
a batch. The reader takes what has gathered and rests between two batches; nothing runs here
while no job does.
"""

import asyncio
from collections import deque
from contextlib import suppress

from ds4tui.events import Event
from ds4tui.tui.pace import Load, rest_s


class Inbox:
    """Made on the loop that reads it; `push` may be called from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: deque[Event] = deque()
        self._filled = asyncio.Event()
        self._load = Load()
        self._woken = False  # set by the pusher, cleared by the reader: one wake-up a batch

    def push(self, event: Event) -> None:
        self._events.append(event)
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # the app has ended
                self._loop.call_soon_threadsafe(self._filled.set)

    async def rest(self) -> None:
        """Wait before the next batch: long enough that this loop's thread takes little from an
        engine that wants its core, too."""
        await asyncio.sleep(rest_s(self._load.look()))

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
