"""What the disk tier did and met: counts with words, rates, and notes for who asks. Thread-safe."""

import errno
import threading
from collections import Counter, deque
from dataclasses import dataclass, replace

from ds4tui.cache.kvformat import RecordKind
from ds4tui.cache.memory_tier import CacheNote

_NOTES_KEPT = 256  # if nobody drains them
# What is told of a conversation, not of each of its records.
TOLD_TOGETHER = ("stored", "loaded")

# Rates follow what was moved lately, not a whole day.
_RATE_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class DiskStats:
    """The disk tier at one moment. `faults` and `evictions` are (word, count). `used_bytes` is
    of all files in the folder: `other_models_bytes` and `stray_bytes` (files that are no
    readable records) are parts of it. Rates are 0 until something was moved. `merged_bytes` were
    written to make larger pages of small ones, and are not in `stored_bytes`."""

    folder: str = ""
    is_writer: bool = False
    why_not: str = ""  # it does not write, in words
    failed: str = ""  # the engine stores nothing more, in words
    opened_ms: float = 0.0  # what it took to open the folder
    budget_bytes: int = 0
    used_bytes: int = 0
    other_models_bytes: int = 0
    stray_bytes: int = 0
    free_bytes: int = 0  # of the file system, for this user
    floor_bytes: int = 0  # that stay free: below, the folder does not grow
    pages: int = 0
    snapshots: int = 0
    pinned: int = 0
    anchors: int = 0  # ends of system prompts
    tokens: int = 0  # positions in all pages of this model
    queued_bytes: int = 0
    hits: int = 0  # records that were loaded
    misses: int = 0  # timelines of which nothing was there
    stores: int = 0  # records that were written
    merges: int = 0  # larger pages that were made of small ones
    loaded_tokens: int = 0
    loaded_bytes: int = 0
    stored_bytes: int = 0
    stored_snapshot_bytes: int = 0  # a part of it
    merged_bytes: int = 0
    load_bytes_per_s: float = 0.0
    store_bytes_per_s: float = 0.0
    last_load_bytes_per_s: float = 0.0
    last_store_bytes_per_s: float = 0.0
    evictions: tuple[tuple[str, int], ...] = ()
    faults: tuple[tuple[str, int], ...] = ()

    @property
    def words(self) -> str:
        """For a log line."""
        pages = f"{self.pages} pages and {self.snapshots} snapshots of this model"
        used = f"{self.used_bytes / 1e6:,.1f} of {self.budget_bytes / 1e6:,.1f} MB in {self.folder}"
        why_not = f"; nothing is stored: {self.why_not}" if self.why_not else ""
        faults = "".join(f"; {count} {word}" for word, count in self.faults)
        return f"{used}, {pages}, opened in {self.opened_ms:.0f} ms{why_not}{faults}"


_WORDS: dict[int | None, str] = {
    errno.ENOSPC: "disk full",
    errno.EDQUOT: "disk full",
    errno.EROFS: "read-only",
    errno.EACCES: "read-only",
    errno.EPERM: "read-only",
    errno.ENOENT: "folder gone",
    errno.ENOTDIR: "folder gone",
    errno.ESTALE: "folder gone",
}


def fault_word(exc: OSError) -> str:
    """What the system objects to, in the word under which it is counted."""
    return _WORDS.get(exc.errno, "write failed")


@dataclass(slots=True)
class _Rate:
    """Bytes over seconds, the older ones counting less."""

    nbytes: float = 0.0
    seconds: float = 0.0
    last_per_s: float = 0.0

    def add(self, nbytes: int, seconds: float) -> None:
        self.last_per_s = nbytes / seconds if seconds > 0 else 0.0
        if self.nbytes > _RATE_BYTES:
            self.nbytes, self.seconds = self.nbytes / 2, self.seconds / 2
        self.nbytes += nbytes
        self.seconds += seconds

    @property
    def per_s(self) -> float:
        return self.nbytes / self.seconds if self.seconds else 0.0


def is_told_with(note: CacheNote, last: CacheNote) -> bool:
    """Whether they are one piece of news."""
    same = (note.kind, note.reason) == (last.kind, last.reason)
    return same and note.kind in TOLD_TOGETHER


class Tally:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: Counter[str] = Counter()
        self._evictions: Counter[str] = Counter()
        self._notes: deque[CacheNote] = deque(maxlen=_NOTES_KEPT)
        self._load_rate, self._store_rate = _Rate(), _Rate()
        self._hits = self._misses = self._stores = self._merges = 0
        self._loaded_bytes = self._loaded_tokens = 0
        self._stored_bytes = self._snapshot_bytes = self._merged_bytes = 0
        self._missed: bytes | None = None

    def fault(self, word: str, count: int = 1) -> None:
        with self._lock:
            self._faults[word] += count

    def evicted(self, why: str, count: int = 1) -> None:
        with self._lock:
            self._evictions[why] += count

    def note(self, kind: str, reason: str, tokens: int = 0, nbytes: int = 0) -> None:
        with self._lock:
            self._add(CacheNote(kind, tokens, nbytes, reason))

    def _add(self, note: CacheNote) -> None:
        if self._notes and is_told_with(note, self._notes[-1]):
            last = self._notes.pop()
            note = replace(note, tokens=last.tokens + note.tokens, nbytes=last.nbytes + note.nbytes)
        self._notes.append(note)

    def drain_notes(self) -> tuple[CacheNote, ...]:
        with self._lock:
            notes = tuple(self._notes)
            self._notes.clear()
        return notes

    def loaded(self, tokens: int, nbytes: int, seconds: float) -> None:
        with self._lock:
            self._hits += 1
            self._loaded_tokens += tokens
            self._loaded_bytes += nbytes
            self._load_rate.add(nbytes, seconds)
            self._add(CacheNote("loaded", tokens, nbytes, "a prompt goes on from there"))

    def stored(
        self, kind: RecordKind, nbytes: int, seconds: float, tokens: int = 0, why: str = ""
    ) -> None:
        with self._lock:
            self._add(CacheNote("stored", tokens, nbytes, why or "it was asked for"))
            self._stores += 1
            self._stored_bytes += nbytes
            self._snapshot_bytes += nbytes if kind == "snapshot" else 0
            self._store_rate.add(nbytes, seconds)

    def merged(self, nbytes: int) -> None:
        with self._lock:
            self._merges += 1
            self._merged_bytes += nbytes

    def missed(self, digest: bytes, tokens: int) -> None:
        """Nothing was there of the timeline of that digest; asked again, it counts once."""
        with self._lock:
            if digest != self._missed:
                self._misses += 1
                self._add(CacheNote("missed", tokens, 0, "nothing of this prompt is stored"))
            self._missed = digest

    def stats(self) -> DiskStats:
        """With what is counted here; the rest is to be filled in."""
        with self._lock:
            return DiskStats(
                hits=self._hits,
                misses=self._misses,
                stores=self._stores,
                merges=self._merges,
                loaded_tokens=self._loaded_tokens,
                loaded_bytes=self._loaded_bytes,
                stored_bytes=self._stored_bytes,
                stored_snapshot_bytes=self._snapshot_bytes,
                merged_bytes=self._merged_bytes,
                load_bytes_per_s=self._load_rate.per_s,
                store_bytes_per_s=self._store_rate.per_s,
                last_load_bytes_per_s=self._load_rate.last_per_s,
                last_store_bytes_per_s=self._store_rate.last_per_s,
                evictions=tuple(sorted(self._evictions.items())),
                faults=tuple(sorted(self._faults.items())),
            )
