"""What Ctrl+C and a request to end do in the plain mode, which depends on what is at work.

While an answer is written Ctrl+C stops it; while a line is read, or something waited for that may
take long, it is raised there; in the moments between it does nothing. SIGTERM and SIGHUP end the
program in order everywhere.
"""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Self

_ENDING = (signal.SIGTERM, signal.SIGHUP)
# Readline does not hear of a signal that comes just before it waits for a key: it is sent again.
AGAIN_S = 0.05
# The system ends what has not ended by then: whoever asked for it waits no longer.
DEADLINE_S = 6.0


class Leaving(BaseException):
    """Somebody asked this process to end."""


class Signals:
    """On the main thread, as a context."""

    def __init__(self) -> None:
        self.is_leaving = False
        self._may_raise = False
        self._handled = 0
        self._stop: Callable[[], None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.on_interrupt: Callable[[], None] = lambda: None
        """Called before an interrupt is raised."""

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._leave) for number in _ENDING}
        self._before[signal.SIGINT] = signal.signal(signal.SIGINT, self._interrupt)
        arrived, self._told = os.pipe()
        os.set_blocking(self._told, False)
        self._told_before = signal.set_wakeup_fd(self._told, warn_on_full_buffer=False)
        main = threading.get_ident()
        threading.Thread(
            target=self._send_again, args=(arrived, main), name="ds4tui-signals", daemon=True
        ).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        signal.set_wakeup_fd(self._told_before)
        os.close(self._told)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _send_again(self, arrived: int, main: int) -> None:
        """Until Python has handled what arrived. Ends when the other end is closed."""
        with open(arrived, "rb", buffering=0) as numbers:
            seen = 0
            while number := numbers.read(1):
                time.sleep(AGAIN_S)
                if self._handled == seen and number[0] in self._before:
                    signal.pthread_kill(main, number[0])
                seen = self._handled

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Inside, Ctrl+C raises KeyboardInterrupt."""
        before, self._may_raise = self._may_raise, True
        try:
            yield
        finally:
            self._may_raise = before

    @contextmanager
    def stopping(self, stop: Callable[[], None]) -> Iterator[None]:
        """Inside, which is on a running loop, Ctrl+C calls `stop` there and raises nothing."""
        self._stop, self._loop = stop, asyncio.get_running_loop()
        try:
            yield
        finally:
            self._stop = self._loop = None

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._handled += 1
        if not self.stop() and self._may_raise:
            self._may_raise = False  # once: the next one must not hit what answers the first
            self.on_interrupt()
            raise KeyboardInterrupt

    def _leave(self, number: int, frame: FrameType | None) -> None:
        self._handled += 1
        is_first, self.is_leaving = not self.is_leaving, True
        if is_first:
            signal.setitimer(signal.ITIMER_REAL, DEADLINE_S)
        if not self.stop() and is_first:
            raise Leaving

    def stop(self) -> bool:
        """Have what is at work stop; whether anything was."""
        stop, loop = self._stop, self._loop
        if stop is None or loop is None:
            return False
        with suppress(RuntimeError):  # the loop is closed: nothing is at work
            loop.call_soon_threadsafe(stop)
        return True
