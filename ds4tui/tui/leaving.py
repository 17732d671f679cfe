"""How the app ends: asked for by a key, by a signal, or by a terminal that went away.

An orderly end stops the answer at work, keeps what there is and closes what is open. Whatever
hangs meanwhile, the system ends the process at a deadline: what is stored by then stays whole.
"""

import signal
import time
from collections.abc import Callable
from typing import Any, Protocol

from ds4tui.tui.background import on_this_loop

# The system ends what has not ended by then: more than all waits of an orderly end, and less of
# it where nobody may be there to press a key again.
QUIT_DEADLINE_S = 20
SIGNAL_DEADLINE_S = 6
SECOND_PRESS_S = 2.0


class LeavingHost(Protocol):
    """What is needed of the app."""

    @property
    def is_headless(self) -> bool: ...
    def notify(self, message: str) -> Any: ...
    def run_worker(self, work: Any) -> Any: ...
    async def leave(self) -> None: ...
    def exit(self) -> None: ...


class Leaving:
    """Belongs to the UI loop; the handler of signals runs on the main thread."""

    def __init__(self, host: LeavingHost) -> None:
        self._host = host
        self._is_begun = False
        self._pressed_s = -SECOND_PRESS_S

    def begin(self) -> None:
        """Leave in order; asked again, at once: whatever still hangs is left behind."""
        if self._is_begun:
            self._host.exit()
            return
        self._is_begun = True
        self._end_within(QUIT_DEADLINE_S)
        self._host.notify("Closing…")
        self._host.run_worker(self._host.leave())

    def without_person(self) -> None:
        """Leave, with nobody there to press a key; also what signals ask for."""
        self._end_within(SIGNAL_DEADLINE_S)
        if not self._is_begun:
            self.begin()

    def is_pressed_twice(self) -> bool:
        """Note a press of the key that quits at its second press; whether this was the second."""
        before_s, self._pressed_s = self._pressed_s, time.monotonic()
        return self._pressed_s - before_s < SECOND_PRESS_S

    def heed_signals(self) -> None:
        """Leave when the system asks for it."""
        if not self._host.is_headless:
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, self._signal_handler())

    def _signal_handler(self) -> Callable[[int, object], None]:
        leave = on_this_loop(lambda number: self.without_person())

        def handle(number: int, frame: object) -> None:
            # Here and not on the loop, which may be what hangs.
            self._end_within(SIGNAL_DEADLINE_S)
            leave(number)

        return handle

    def _end_within(self, seconds: int) -> None:
        """Have the system end this process if it still runs then. A deadline that is nearer
        already is kept."""
        if self._host.is_headless:
            return
        left = signal.getitimer(signal.ITIMER_REAL)[0]
        if not left or seconds < left:
            signal.setitimer(signal.ITIMER_REAL, seconds)
