"""How often to draw: seldom enough that drawing takes little from an engine that wants every core.

Where the engine computes on the CPU, what the loop's thread takes is missing in each of its steps;
on a GPU, or while it rests, there is more to spare. Which of the two is measured, not asked.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

# Of one core, what drawing may take: people read no worse at four batches a second than at ten.
DRAWING_SHARE = 0.1
FRUGAL_SHARE = 0.02
# The engine is at work on the CPU if this process's other threads take so much of the machine:
# more than one thread that drives a GPU takes of eight cores, less than what is left of two cores
# to many threads beside other programs.
HUNGRY_SHARE = 0.1

# People read no faster.
BATCHES_PER_S = 10.0
LONGEST_REST_S = 0.6

Clock = Callable[[], float]


def available_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Work:
    """Between two looks: seconds of CPU time of the loop's thread; and whether the others wanted
    the machine's cores."""

    own_s: float
    is_engine_hungry: bool


class Load:
    """Belongs to the thread that made it. The clocks give seconds: of the wall, of CPU time of all
    threads of the process, of CPU time of this one."""

    def __init__(
        self,
        wall: Clock = time.perf_counter,
        whole: Clock = time.process_time,
        own: Clock = time.thread_time,
        cores: int | None = None,
    ) -> None:
        self._clocks = (wall, whole, own)
        self._cores = cores or available_cores()
        self._last = self._now()

    def look(self) -> Work:
        """Since the last look."""
        before, self._last = self._last, self._now()
        wall_s, whole_s, own_s = (b - a for a, b in zip(before, self._last, strict=True))
        return Work(own_s, whole_s - own_s > HUNGRY_SHARE * self._cores * wall_s)

    def _now(self) -> tuple[float, float, float]:
        wall, whole, own = self._clocks
        return wall(), whole(), own()


def rest_s(work: Work) -> float:
    """Seconds to wait after a batch that cost `work`."""
    share = FRUGAL_SHARE if work.is_engine_hungry else DRAWING_SHARE
    return min(LONGEST_REST_S, max(1 / BATCHES_PER_S, work.own_s / share - work.own_s))
