"""One worker at a time on one download; the others wait and find it done."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ds4tui.library.progress import PullProgress, Report

INTERVAL_S = 0.2


@contextmanager
def only_one(lock: Path, report: Report) -> Iterator[None]:
    """The kernel gives the lock back when its holder dies, however it dies. Raises OSError."""
    with open(lock, "w") as file:
        told = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    report(PullProgress("waiting for another pull of this model"))
                    told = True
                time.sleep(INTERVAL_S)
        yield
