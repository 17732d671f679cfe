"""How far a pull is, as values; who shows them is not known here."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PullProgress:
    """`step` is in words ("fetching", ...). Sizes are bytes, 0 while unknown; times seconds.
    `lasting` words are worth reading after the next have come."""

    step: str
    done_bytes: int = 0
    total_bytes: int = 0
    bytes_per_s: float = 0.0
    lasting: bool = False

    @property
    def eta_s(self) -> float:
        """0 while nothing is known."""
        left = self.total_bytes - self.done_bytes
        return left / self.bytes_per_s if self.bytes_per_s > 0 and left > 0 else 0.0

    def __str__(self) -> str:
        if not self.total_bytes:
            return self.step
        share = self.done_bytes / self.total_bytes
        text = (
            f"{self.step} {self.done_bytes / 1e6:,.1f} of {self.total_bytes / 1e6:,.1f} MB "
            f"({share:.0%})"
        )
        if self.bytes_per_s > 0 and self.done_bytes < self.total_bytes:
            text += f", {self.bytes_per_s / 1e6:,.1f} MB/s, {self.eta_s:,.0f} s left"
        return text


Report = Callable[[PullProgress], None]

# A line is redrawn this often; between, bytes only count.
INTERVAL_S = 0.1


@dataclass(slots=True)
class Meter:
    """Counts bytes and reports at most every INTERVAL_S, and always the last time."""

    step: str
    total_bytes: int
    report: Report
    done_bytes: int = 0
    _began_s: float = field(default_factory=time.monotonic)
    _began_bytes: int = -1
    _said_s: float = 0.0

    def start(self, done_bytes: int) -> None:
        """`done_bytes` are there already: they do not count into the rate."""
        self.done_bytes = self._began_bytes = done_bytes
        self._began_s = time.monotonic()
        self._say()

    def add(self, count: int) -> None:
        self.done_bytes += count
        if time.monotonic() - self._said_s >= INTERVAL_S or self.done_bytes >= self.total_bytes:
            self._say()

    def _say(self) -> None:
        self._said_s = time.monotonic()
        elapsed = self._said_s - self._began_s
        rate = (self.done_bytes - self._began_bytes) / elapsed if elapsed > 0 else 0.0
        self.report(PullProgress(self.step, self.done_bytes, self.total_bytes, rate))
