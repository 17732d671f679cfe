"""The records of a folder as people know them: conversations. Pure.

A conversation is the path from a page that nothing goes on from to its root. What two of them
share (a system prompt, the turns before a fork) is stored once, and counts for both. Where another
one leaves a page before its end, the page is the end of a conversation, too.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import xxhash

from ds4tui.cache.kventries import DiskEntry


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """`name` is the short name to call it by. `own_bytes` would be freed if it went alone,
    `nbytes` are with what it shares with others. `spares_s` is what it took to compute; times are
    in seconds since 1970. `leaf_id` is the holder of its last page: who pins that keeps it all.
    `former` are the names that it had when it was shorter."""

    name: str
    label: str  # of its model
    model_id: str  # tells models of one label apart: other weights or settings
    what: str  # how it begins
    tokens: int
    pages: int
    snapshots: int
    nbytes: int
    own_bytes: int
    used_at: float
    created_at: float
    hits: int
    spares_s: float
    is_pinned: bool
    is_ours: bool  # of the model that is open
    is_broken: bool  # of no use: its beginning is gone
    leaf_id: int
    former: tuple[str, ...] = ()

    @property
    def shared_bytes(self) -> int:
        return self.nbytes - self.own_bytes


@dataclass(frozen=True, slots=True)
class _Path:
    """Pages from the leaf to its root, with how far of each is of this conversation."""

    pages: tuple[tuple[DiskEntry, int], ...]
    snapshots: tuple[DiskEntry, ...]

    @property
    def records(self) -> tuple[DiskEntry, ...]:
        return (*(page for page, _ in self.pages), *self.snapshots)

    @property
    def grown(self) -> tuple[DiskEntry, ...]:
        """The pages that were its end once, the last one first; what it shares with a
        conversation that ends before is not its own."""
        found = [page for page, _ in self.pages[:1]]
        for page, end in self.pages[1:]:
            if end < page.end:
                break
            found.append(page)
        return tuple(found)


def stored_conversations(entries: Sequence[DiskEntry]) -> tuple[StoredConversation, ...]:
    """The last used first."""
    pages = {entry.holder_id: entry for entry in entries if entry.kind == "page"}
    # An end on which a page or nothing follows: a child that begins earlier leaves rows of its own.
    followed = {(page.stem_id, page.start) for page in pages.values()}
    snapshots: dict[int | None, list[DiskEntry]] = {}
    for entry in entries:
        if entry.kind == "snapshot":
            snapshots.setdefault(entry.stem_id, []).append(entry)
    paths = [
        _path(page, pages, snapshots)
        for page in pages.values()
        if (page.holder_id, page.end) not in followed
    ]
    uses = Counter(record.holder_id for path in paths for record in path.records)
    return tuple(sorted((_told(path, uses) for path in paths), key=lambda c: (-c.used_at, c.name)))


def _path(
    leaf: DiskEntry,
    pages: dict[int, DiskEntry],
    snapshots: dict[int | None, list[DiskEntry]],
) -> _Path:
    found: list[tuple[DiskEntry, int]] = []
    standing: list[DiskEntry] = []
    seen: set[int] = set()
    at: DiskEntry | None = leaf
    end = leaf.end
    while at is not None and at.holder_id not in seen:
        seen.add(at.holder_id)
        found.append((at, min(end, at.end)))
        standing += [s for s in snapshots.get(at.holder_id, ()) if s.end <= end]
        end = at.start
        at = pages.get(at.stem_id) if at.stem_id is not None else None
    return _Path(tuple(found), tuple(standing))


def _told(path: _Path, uses: Counter[int]) -> StoredConversation:
    leaf = path.pages[0][0]
    records = path.records
    return StoredConversation(
        name=_name(leaf),
        label=leaf.label,
        model_id=leaf.identity.hex()[:8],
        what=next((page.what for page, _ in path.pages if page.what), ""),
        tokens=leaf.end,
        pages=len(path.pages),
        snapshots=len(path.snapshots),
        nbytes=sum(record.nbytes for record in records),
        own_bytes=sum(r.nbytes for r in records if uses[r.holder_id] == 1),
        used_at=max(record.used_at for record in records),
        created_at=min(record.created_at for record in records),
        hits=leaf.hits,
        spares_s=sum(_spares_ms(page, end) for page, end in path.pages) / 1e3,
        is_pinned=any(page.is_pinned for page in path.grown),
        is_ours=leaf.is_ours,
        is_broken=leaf.is_orphan,
        leaf_id=leaf.holder_id,
        former=tuple(_name(page) for page in path.grown[1:]),
    )


def _name(leaf: DiskEntry) -> str:
    words = f"{leaf.identity.hex()} {leaf.start} {leaf.end} {leaf.created_at!r}"
    return xxhash.xxh3_64_hexdigest(words.encode())[:8]


def _spares_ms(page: DiskEntry, end: int) -> float:
    return page.recompute_ms * (end - page.start) / max(1, page.end - page.start)


def named(conversations: Iterable[StoredConversation], name: str) -> tuple[StoredConversation, ...]:
    """Those whose name begins with `name`, or where there are none, those that had such a name
    when they were shorter; an empty name is nobody's."""
    wanted, known = name.strip().lower(), tuple(conversations)
    found = tuple(c for c in known if wanted and c.name.startswith(wanted))
    if found or not wanted:
        return found
    return tuple(c for c in known if any(each.startswith(wanted) for each in c.former))


def as_json(found: StoredConversation) -> dict[str, Any]:
    """All that callers outside can use; `records` are its pages and snapshots."""
    values = asdict(found)
    del values["leaf_id"], values["former"]
    return values | {"records": found.pages + found.snapshots}
