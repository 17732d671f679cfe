"""What waits to be written: a queue bounded by bytes, and the one thread that empties it."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ds4tui.cache.kvbooks import Entry
from ds4tui.cache.kvformat import RecordHead
from ds4tui.cache.timeline import Timeline

# For what is at work when the time is over to see that it is.
_GRACE_S = 0.5

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Job:
    """A record whose arrays are the entry's `host`, with their places in `head`; `timeline`
    reaches up to its end. `why` it is stored, in words."""

    entry: Entry
    head: RecordHead
    timeline: Timeline
    why: str = ""

    @property
    def nbytes(self) -> int:
        return self.entry.host.nbytes if self.entry.host is not None else 0


class WriteQueue:
    """`write` is called for each job, in order, on a thread of its own, and must look at
    `is_stopped` now and then; `emptied` there, too, when nothing waits any more, and `rest` while
    nothing waits, once `may_rest` was called and as long as it returns True. All methods may be
    called by any thread."""

    def __init__(
        self,
        write: Callable[[Job], None],
        bound_bytes: int,
        emptied: Callable[[], None] = lambda: None,
        rest: Callable[[], bool] = lambda: False,
    ) -> None:
        self._write, self._emptied, self._rest = write, emptied, rest
        self._may_rest = self._is_resting = False
        self._bound_bytes = bound_bytes
        self._changed = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._at_work: Job | None = None
        self._nbytes = 0
        self._is_closed = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kv-disk-writer", daemon=True)
        self._thread.start()

    @property
    def nbytes(self) -> int:
        """Of what waits or is being written."""
        return self._nbytes

    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    def wait_for_room(self, nbytes: int, wait_s: float) -> bool:
        """Whether `nbytes` more may be put now; one job may be larger than the bound, alone."""
        with self._changed:
            return self._changed.wait_for(lambda: self._has_room(nbytes), wait_s)

    def put(self, job: Job) -> bool:
        """False if there is no room for it, or the queue is closed."""
        with self._changed:
            if self._is_closed or not self._has_room(job.nbytes):
                return False
            self._nbytes += job.nbytes
            self._waiting.append(job)
            self._changed.notify_all()
            return True

    def may_rest(self) -> None:
        """Nothing else is to be done by this process."""
        with self._changed:
            self._may_rest = True
            self._changed.notify_all()

    def rested(self, deadline_s: float) -> bool:
        """Wait until `rest` has nothing to do, but not longer than that; whether it has not."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._may_rest and not self._is_resting, deadline_s
            )

    def flush(self, deadline_s: float) -> bool:
        """Wait until all is written, but not longer than that; whether it is."""
        with self._changed:
            return self._changed.wait_for(self._is_empty, deadline_s)

    def close(self, deadline_s: float) -> tuple[Job, ...]:
        """Take nothing more, write what waits until `deadline_s` have passed, end the thread;
        what was not written."""
        ends_at = time.monotonic() + deadline_s
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            self._changed.wait_for(self._is_empty, max(0.0, deadline_s))
            left = (*((self._at_work,) if self._at_work else ()), *self._waiting)
            self._waiting.clear()
            if left or self._is_resting:
                self._stopped.set()
            self._changed.notify_all()
        # A system call that hangs must not hold up who closes; the kernel ends it with us.
        self._thread.join(max(_GRACE_S, ends_at - time.monotonic()))
        return left

    def _has_room(self, nbytes: int) -> bool:
        return not self._nbytes or self._nbytes + nbytes <= self._bound_bytes

    def _is_empty(self) -> bool:
        return not self._waiting and self._at_work is None

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed or self._may_rest)
                job = self._at_work = self._waiting.popleft() if self._waiting else None
                if job is None and self._is_closed:
                    return
                self._is_resting = job is None
            if job is None:
                self._rest_a_while()
                continue
            nbytes = job.nbytes  # the arrays are let go once they are on disk
            try:
                self._write(job)
            except Exception:  # the root of the thread: storing must never harm
                _log.exception("a KV record could not be stored")
            with self._changed:
                self._at_work = None
                self._nbytes -= nbytes
                is_empty = not self._waiting
                self._changed.notify_all()
            if is_empty:
                self._emptied()

    def _rest_a_while(self) -> None:
        try:
            is_more = self._rest()
        except Exception:  # as in `_run`
            _log.exception("KV records could not be tidied")
            is_more = False
        with self._changed:
            self._is_resting, self._may_rest = False, is_more
            self._changed.notify_all()
        if not is_more:
            self._emptied()
