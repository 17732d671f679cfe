"""What the memory tier holds, one entry a thing, and how much of each kind there is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ds4tui.cache.outline import Outline
from ds4tui.cache.reasons import tokens as words
from ds4tui.cache.timeline import ImageSpan, Timeline

EntryKind = Literal["parked", "segment", "snapshot", "lent"]

NAMES = {
    "parked": "parked branch",
    "segment": "segment",
    "snapshot": "snapshot",
    "lent": "state that was taken",
}


@dataclass(frozen=True, slots=True)
class CacheNote:
    """Something that the tier did, for log, panel and HTTP. `kind` is "evicted", "refused",
    "thinned", "pruned" or "dropped"; `tokens` would have to be evaluated again without it."""

    kind: str
    tokens: int
    nbytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Held:
    """A parked state (`start` 0), segment or snapshot of the tier, and what it stands for."""

    holder_id: int
    kind: EntryKind
    start: int
    timeline: Timeline
    handle: Any


@dataclass(slots=True)
class Entry:
    kind: EntryKind
    start: int
    end: int
    outline: Outline
    spans: tuple[ImageSpan, ...]
    handle: Any
    nbytes: int
    used_at: float
    point: str = ""

    @property
    def said(self) -> str:
        """What it is, for a note."""
        where = f"at {self.end:,}" if self.kind == "snapshot" else f"of {words(self.end)}"
        if self.kind == "segment":
            where = f"of tokens {self.start:,} to {self.end:,}"
        return f"{NAMES[self.kind]} {where}"


class Counted:
    """The counts of a tier, over its entries."""

    _entries: Mapping[int, Entry]

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for entry in self._entries.values())

    @property
    def parked_bytes(self) -> int:
        return self._bytes_of("parked")

    @property
    def segment_bytes(self) -> int:
        return self._bytes_of("segment")

    @property
    def snapshot_bytes(self) -> int:
        return self._bytes_of("snapshot")

    @property
    def parked_tokens(self) -> int:
        return self._tokens_of("parked")

    @property
    def segment_tokens(self) -> int:
        return self._tokens_of("segment")

    @property
    def parked_count(self) -> int:
        return self._count_of("parked")

    @property
    def segment_count(self) -> int:
        return self._count_of("segment")

    @property
    def snapshot_count(self) -> int:
        return self._count_of("snapshot")

    def _tokens_of(self, kind: EntryKind) -> int:
        return sum(
            entry.end - entry.start for entry in self._entries.values() if entry.kind == kind
        )

    def _bytes_of(self, kind: EntryKind) -> int:
        return sum(entry.nbytes for entry in self._entries.values() if entry.kind == kind)

    def _count_of(self, kind: EntryKind) -> int:
        return sum(entry.kind == kind for entry in self._entries.values())
