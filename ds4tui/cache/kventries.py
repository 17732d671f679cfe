"""Records as people and planners see them: numbered holders, described in values."""

from dataclasses import dataclass

from ds4tui.cache.kvbooks import Entry
from ds4tui.cache.kvformat import RecordKind

# Holders are numbered downwards from here: the memory tier counts up from 1, and small negative
# numbers are the neighbours of a session.
FIRST_HOLDER_ID = -(1 << 32)


@dataclass(frozen=True, slots=True)
class DiskEntry:
    """A record, for people. `label` is its model's name, `what` how its conversation begins;
    times are in seconds since 1970. `stem_id` is the record that it leans on."""

    holder_id: int
    kind: RecordKind
    start: int
    end: int
    nbytes: int
    used_at: float
    created_at: float
    hits: int
    recompute_ms: float
    label: str
    what: str
    point: str
    identity: bytes
    stem_id: int | None
    is_ours: bool  # of the model that this tier serves
    is_pinned: bool
    is_anchor: bool
    is_orphan: bool  # of no use: what leads up to it is gone
    is_written: bool  # it is on disk


@dataclass(frozen=True, slots=True)
class Damage:
    """A record that `verify` found to be of no use."""

    what: str
    fault: str
    message: str


def holder_of(entry_id: int) -> int:
    return FIRST_HOLDER_ID - entry_id


def entry_of(holder_id: int) -> int:
    return FIRST_HOLDER_ID - holder_id


def what_of(entry: Entry) -> str:
    """In words."""
    head = entry.head
    if head.kind == "snapshot":
        return f"the snapshot at {head.end:,}"
    return f"the page of tokens {head.start:,} to {head.end:,}"


def shown(entry: Entry, stem: int | None, is_orphan: bool, *, is_ours: bool) -> DiskEntry:
    head = entry.head
    return DiskEntry(
        holder_id=holder_of(entry.entry_id),
        kind=head.kind,
        start=head.start,
        end=head.end,
        nbytes=entry.nbytes,
        used_at=entry.used_at,
        created_at=head.created_at,
        hits=entry.hits,
        recompute_ms=head.recompute_ms,
        label=head.label,
        what=head.what,
        point=head.point,
        identity=head.identity,
        stem_id=None if stem is None else holder_of(stem),
        is_ours=is_ours,
        is_pinned=entry.is_pinned,
        is_anchor=entry.is_anchor,
        is_orphan=is_orphan,
        is_written=entry.host is None,
    )
