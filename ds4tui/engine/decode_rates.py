"""How fast tokens came in each of the last seconds in which any did. No mlx."""

import time
from collections import deque
from collections.abc import Callable

# As many as a panel has cells for beside a label.
RATES_KEPT = 22
WINDOW_S = 1.0


class DecodeRates:
    """Belongs to the engine thread. Seconds in which nothing was decoded are left out: what is
    kept does not change while the engine rests."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rates: deque[float] = deque(maxlen=RATES_KEPT)
        self._began_s: float | None = None
        self._tokens = 0

    @property
    def last(self) -> tuple[float, ...]:
        """Tokens a second of all jobs, oldest first."""
        return tuple(self._rates)

    def decoded(self) -> None:
        """One more token."""
        now_s = self._clock()
        if self._began_s is None:  # how long this one took is not known
            self._began_s = now_s
            return
        self._tokens += 1
        took_s = now_s - self._began_s
        if took_s >= WINDOW_S:
            self._rates.append(self._tokens / took_s)
            self._began_s, self._tokens = now_s, 0

    def rested(self) -> None:
        """Nothing is decoded any more: what began is too short to say anything."""
        self._began_s, self._tokens = None, 0
