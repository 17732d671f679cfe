"""What one rendering of a conversation leaves for the next: ids of texts, and the time of day.

Both are bounded and forget what was used least recently; neither changes what is rendered but
by keeping it the same.
"""

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import datetime

import numpy as np
import numpy.typing as npt
import xxhash

from ds4tui.chat.messages import Message

Ids = npt.NDArray[np.int64]

_RUN_BYTES = 256  # of an entry's containers
_FROZEN_CLOCKS = 256


class RunCache:
    """Ids of plain runs, the least recently used dropped beyond `max_bytes`. May be shared by
    threads."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._runs: OrderedDict[str, Ids] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, run: str) -> Ids | None:
        with self._lock:
            ids = self._runs.get(run)
            if ids is not None:
                self._runs.move_to_end(run)
            return ids

    def put(self, run: str, ids: Ids) -> None:
        with self._lock:
            if run in self._runs:
                return
            self._runs[run] = ids
            self._bytes += _run_bytes(run, ids)
            while self._bytes > self._max_bytes:
                self._bytes -= _run_bytes(*self._runs.popitem(last=False))


def _run_bytes(run: str, ids: Ids) -> int:
    return _RUN_BYTES + sys.getsizeof(run) + ids.nbytes


class FrozenClocks:
    """The time of each conversation's first rendering, for templates that show the date: it
    must not change what is resident at midnight. Conversations are told by their beginning."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._times: OrderedDict[bytes, datetime] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, messages: Sequence[Message]) -> Callable[[], datetime]:
        return lambda: self._time(_beginning(messages))

    def _time(self, key: bytes) -> datetime:
        with self._lock:
            time = self._times.pop(key, None) or self._now()
            self._times[key] = time
            if len(self._times) > _FROZEN_CLOCKS:
                self._times.popitem(last=False)
            return time


def _beginning(messages: Sequence[Message]) -> bytes:
    """Names a conversation by its messages up to the first of the user's."""
    hasher = xxhash.xxh3_128()
    for message in messages:
        text = message.text.strip().encode("utf-8", "surrogatepass")
        hasher.update(f"{message.role} {len(text)} ".encode() + text)
        if message.role == "user":
            break
    return hasher.digest()
