"""What one turn of a conversation leaves for the next: ids of texts, the time of day, timelines.

All are bounded and forget what was used least recently; none changes what is rendered but by
keeping it the same.
"""

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import datetime
from operator import itemgetter

import numpy as np
import numpy.typing as npt
import xxhash

from ds4tui.cache.timeline import Timeline
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


class TextNumbers:
    """A number that takes long to tell of a text, told once; texts are known by their xxh3_128.
    The least recently used are forgotten. May be shared by threads."""

    def __init__(self, tell: Callable[[str], int], max_entries: int = 16384) -> None:
        self._tell = tell
        self._max_entries = max_entries
        self._numbers: OrderedDict[bytes, int] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, text: str) -> int:
        key = xxhash.xxh3_128_digest(text.encode("utf-8", "surrogatepass"))
        with self._lock:
            number = self._numbers.pop(key, None)
        if number is None:
            number = self._tell(text)
        with self._lock:
            self._numbers[key] = number
            while len(self._numbers) > self._max_entries:
                self._numbers.popitem(last=False)
        return number


class LatestTimelines:
    """What conversations were resident as when their latest turn ended. Bounded by number and
    ids; the least recently used are forgotten. May be shared by threads."""

    def __init__(self, max_entries: int = 8, max_ids: int = 2**21) -> None:
        self._max_entries = max_entries
        self._max_ids = max_ids
        self._timelines: list[Timeline] = []  # the latest last
        self._lock = threading.Lock()

    def put(self, timeline: Timeline) -> None:
        """Keep it instead of those that it goes on from."""
        with self._lock:
            others = [t for t in self._timelines if t.common_prefix(timeline) < len(t)]
            kept = [*others, timeline][-self._max_entries :]
            while len(kept) > 1 and sum(map(len, kept)) > self._max_ids:
                del kept[0]
            self._timelines = kept

    def nearest(self, wanted: Timeline) -> Timeline | None:
        """The one that has most in common with `wanted`, None if none has anything."""
        with self._lock:
            timelines = list(self._timelines)
        common = [(t.common_prefix(wanted), t) for t in timelines]
        best = max(common, key=itemgetter(0), default=(0, None))
        return best[1] if best[0] else None


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
