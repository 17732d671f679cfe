"""What stays on disk and what goes. Pure: records, the time and the budget come in as values.

There is one budget for the whole folder, whatever model wrote a record. A record's worth is the
time that it would take to compute it again, more the more often it was loaded, halved for each
half-life since its last use; what goes first is what is worth least *a byte*. (The memory tier
weighs whole branches by time alone; here branches lie in pages of all lengths, and time alone
would let short ones, the end of a system prompt before others, go first.)

  (1) What goes frees enough, or nothing goes.
  (2) Nothing pinned goes, nothing that is in use (`keep`), and nothing that either leans on.
  (3) A stem goes after all that leans on it.
  (4) What nothing leads up to goes first, then what is worth least a byte. The newest two
      snapshots of a branch go after that, the anchors (system prompts) last of all, unless they
      have not been used for weeks.
  (5) To be worth more never makes a record go.
  (6) A clock that jumps changes the order only, never the counts: no age is below zero.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ds4tui.cache.eviction import Weighed, victims
from ds4tui.cache.kvformat import RecordKind

# A conversation of yesterday competes with today's, one of last month does not.
HALF_LIFE_S = 24 * 3600.0

# Who has not used a model for that long has moved on: its anchors are records like others.
PROTECTION_S = 14 * 24 * 3600.0

SNAPSHOTS_PROTECTED = 2  # of a branch: its end and, for an answer that is asked for again, before

# Of what is free, with what the folder has already: people keep models and other things, too. Who
# wants more than 20 GB says so.
DEFAULT_SHARE = 0.10
DEFAULT_BYTES_MAX = 20 * 10**9
_FLOOR_SHARE = 0.05
_FLOOR_BYTES_MAX = 10 << 30

_USELESS, _ORDINARY, _NEWEST, _ANCHOR = range(4)


@dataclass(frozen=True, slots=True)
class Stored:
    """A record as the policy sees it. `stem` is the record that holds the row before its first:
    None for a root. `is_orphan`: that row is nowhere, or nobody here can read the record."""

    entry_id: int
    kind: RecordKind
    end: int
    nbytes: int
    recompute_ms: float
    used_at: float
    hits: int = 0
    stem: int | None = None
    is_pinned: bool = False
    is_anchor: bool = False
    is_orphan: bool = False


@dataclass(frozen=True, slots=True)
class Eviction:
    """What goes, and why: `why` is the kind of reason, `reason` all of it in words."""

    entry_id: int
    why: str
    reason: str


# -- how much there may be ---------------------------------------------------------------------


def floor_bytes(total_bytes: int) -> int:
    """What stays free of a disk of that size, whatever the budget."""
    return min(_FLOOR_BYTES_MAX, int(_FLOOR_SHARE * total_bytes))


def default_budget_bytes(used_bytes: int, free_bytes: int, total_bytes: int) -> int:
    """A share of what is free and what the folder has, less if the floor would be touched; not
    below what it has already, since nothing shrinks without being told to."""
    ours = used_bytes + free_bytes
    share = min(int(DEFAULT_SHARE * ours), DEFAULT_BYTES_MAX)
    return max(used_bytes, min(share, ours - floor_bytes(total_bytes)))


def excess_bytes(needed: int, used: int, budget: int, free: int, floor: int) -> int:
    """What must go before `needed` bytes more are written. Where others have filled the disk
    below the floor, as much as is new goes, and not more: the folder stops growing."""
    over_budget = used + needed - budget
    over_floor = needed - max(0, free - floor)
    return max(0, over_budget, over_floor)


# -- what is worth how much ----------------------------------------------------------------------


def age_s(used_at: float, now: float) -> float:
    return max(0.0, now - used_at)


def worth_ms(record: Stored, now: float) -> float:
    """The time to compute it again, more with each time that it was loaded, less with its age."""
    half_lives = age_s(record.used_at, now) / HALF_LIFE_S
    return record.recompute_ms * (1 + math.log2(1 + record.hits)) * math.pow(0.5, half_lives)


def evictions(
    records: Sequence[Stored],
    excess: int,
    now: float,
    keep: Collection[int] = (),
) -> tuple[Eviction, ...] | None:
    """What goes, in order, to free `excess` bytes; None if that cannot be."""
    newest = newest_snapshots(records)
    ranked = sorted(records, key=lambda record: _order(record, now, record.entry_id in newest))
    weighed = [
        Weighed(r.entry_id, place, r.nbytes, frozenset(() if r.stem is None else (r.stem,)))
        for place, r in enumerate(ranked)
    ]
    stay = {record.entry_id for record in records if record.is_pinned}.union(keep)
    gone = victims(weighed, excess, stay)
    if gone is None:
        return None
    by_id = {record.entry_id: record for record in records}
    return tuple(_eviction(by_id[entry_id], now) for entry_id in gone)


def freeable_bytes(records: Sequence[Stored], keep: Collection[int] = ()) -> int:
    """All that could go."""
    stems = {record.entry_id: record.stem for record in records}
    staying: set[int] = set()
    for record in records:
        at: int | None = record.entry_id
        if record.is_pinned or at in keep:
            while at in stems and at not in staying:
                staying.add(at)
                at = stems[at]
    return sum(record.nbytes for record in records if record.entry_id not in staying)


def newest_snapshots(records: Iterable[Stored]) -> frozenset[int]:
    """The last SNAPSHOTS_PROTECTED snapshots of each branch. A branch ends with a page on which
    no other leans; a snapshot belongs to all branches that go on from its page."""
    snapshots: dict[int | None, list[Stored]] = {}
    pages: dict[int, Stored] = {}
    stems: set[int | None] = set()
    for record in records:
        if record.kind == "snapshot":
            snapshots.setdefault(record.stem, []).append(record)
        else:
            pages[record.entry_id] = record
            stems.add(record.stem)
    found: set[int] = set()
    walked: dict[int, int] = {}  # with how many still to protect a page was passed
    for page in pages.values():
        if page.entry_id not in stems:
            _protect(page, pages, snapshots, walked, found)
    for orphan in snapshots.keys() - pages.keys():
        found |= _last(snapshots[orphan], SNAPSHOTS_PROTECTED)
    return frozenset(found)


def _protect(
    leaf: Stored,
    pages: Mapping[int, Stored],
    snapshots: Mapping[int | None, list[Stored]],
    walked: dict[int, int],
    found: set[int],
) -> None:
    at: Stored | None = leaf
    left = SNAPSHOTS_PROTECTED
    while at is not None and left > walked.get(at.entry_id, 0):
        walked[at.entry_id] = left
        last = _last(snapshots.get(at.entry_id, ()), left)
        found |= last
        left -= len(last)
        at = pages.get(at.stem) if at.stem is not None else None


def _last(snapshots: Iterable[Stored], count: int) -> set[int]:
    ordered = sorted(snapshots, key=lambda s: (-s.end, s.entry_id))
    return {snapshot.entry_id for snapshot in ordered[:count]}


def _order(record: Stored, now: float, is_newest: bool) -> tuple[int, float, int, int]:
    # Of equal worth the larger goes: fewer have to.
    density = worth_ms(record, now) / max(1, record.nbytes)
    return (_rank(record, now, is_newest), density, -record.nbytes, record.entry_id)


def _rank(record: Stored, now: float, is_newest: bool) -> int:
    if record.is_orphan:
        return _USELESS
    if age_s(record.used_at, now) > PROTECTION_S:
        return _ORDINARY
    if record.is_anchor:
        return _ANCHOR
    return _NEWEST if is_newest else _ORDINARY


def _eviction(record: Stored, now: float) -> Eviction:
    if record.is_orphan:
        return Eviction(record.entry_id, "orphan", "nothing leads up to it any more")
    used = duration(age_s(record.used_at, now))
    worth = f"worth {record.recompute_ms / 1e3:,.1f} s"
    return Eviction(record.entry_id, "room", f"room was needed; last used {used} ago, {worth}")


def duration(seconds: float) -> str:
    """In the largest unit that leaves a whole number of it: "3 days", "1 hour"."""
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count:,} {unit}{'s' if count != 1 else ''}"
    return f"{int(seconds)} s"
