"""What a folder of records holds, in memory: look-ups by timeline, and who leans on whom.

A page is found under its parent key, the hash of model identity and all ids before it, so a
look-up hashes the wanted timeline at the positions where pages begin and compares each page's own
ids once. Pages need not end where others begin: a page is of use as far as its ids are wanted, and
one that begins anywhere in what is covered goes on from there.

  (1) A page is found only if its identity is ours, its key is that of the wanted ids before it
      and all rows before it are covered; a snapshot only if all rows below it are.
  (2) A look-up changes nothing.
  (3) A record that leans on one that is not there is an orphan, and so is what leans on it.

Not thread-safe: the tier holds its lock.
"""

from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from ds4tui.cache.kvarrays import HostPage, HostSnapshot
from ds4tui.cache.kvformat import Fault, RecordHead, prefix_key
from ds4tui.cache.kvpolicy import Stored
from ds4tui.cache.timeline import Timeline, first_difference, snapped


@dataclass(slots=True, eq=False)
class Entry:
    """A record: on disk, or still `host` memory on its way there. The head is kept without the
    places of its arrays. `used_at` is in seconds since 1970."""

    entry_id: int
    head: RecordHead
    nbytes: int
    used_at: float
    hits: int = 0
    mtime_ns: int = 0
    is_pinned: bool = False
    host: HostPage | HostSnapshot | None = None

    @property
    def is_anchor(self) -> bool:
        return self.head.point == "system"


@dataclass(frozen=True, slots=True)
class Stray:
    """A file under a record's name that nobody here can read, and why."""

    entry_id: int
    nbytes: int
    fault: Fault
    mtime_ns: int = 0
    is_pinned: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """Of one wanted timeline: pages with how many ids, from 0 on, they share with it; snapshots;
    and the first position that no page covers."""

    pages: tuple[tuple[Entry, int], ...] = ()
    snapshots: tuple[Entry, ...] = ()
    reach: int = 0

    def stem_at(self, position: int) -> Entry | None:
        """The page that holds the row before `position`, the longest of several."""
        holding = [(c, e) for e, c in self.pages if e.head.start < position <= c]
        return max(holding, key=lambda pair: (pair[0], -pair[1].head.start))[1] if holding else None

    def stem_name(self, position: int) -> str:
        """Of `stem_at`; "" where there is none."""
        stem = self.stem_at(position)
        return stem.head.name if stem is not None else ""

    def path_to(self, position: int) -> set[int]:
        """Ids of all pages with rows before `position`."""
        return {entry.entry_id for entry, _ in self.pages if entry.head.start < position}


class Books:
    """`identity` is that of the model whose timelines are looked up; records of others only
    count."""

    def __init__(self, identity: bytes) -> None:
        self.identity = identity
        self.entries: dict[int, Entry] = {}
        self.strays: dict[str, Stray] = {}
        self._by_name: dict[str, Entry] = {}
        self._pages: dict[bytes, list[Entry]] = {}
        self._snapshots: dict[bytes, Entry] = {}
        self._starts, self._positions = _Sorted(), _Sorted()
        self._last_id = 0

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def named(self, name: str) -> Entry | None:
        return self._by_name.get(name)

    def add(self, entry: Entry) -> None:
        """ValueError if a record of that name is there."""
        name = entry.head.name
        if name in self._by_name:
            raise ValueError(f"the record {name} is there already")
        if entry.head.arrays:
            entry.head = replace(entry.head, arrays=())
        self.entries[entry.entry_id] = self._by_name[name] = entry
        if entry.head.identity != self.identity:
            return
        if entry.head.kind == "page":
            self._pages.setdefault(entry.head.parent, []).append(entry)
            self._starts.add(entry.head.start)
        else:
            self._snapshots[entry.head.parent] = entry
            self._positions.add(entry.head.end)

    def remove(self, entry: Entry) -> None:
        """Forget it, if it is there."""
        if self.entries.pop(entry.entry_id, None) is None:
            return
        del self._by_name[entry.head.name]
        if entry.head.identity != self.identity:
            return
        if entry.head.kind == "page":
            siblings = self._pages[entry.head.parent]
            siblings.remove(entry)
            if not siblings:
                del self._pages[entry.head.parent]
            self._starts.remove(entry.head.start)
        else:
            del self._snapshots[entry.head.parent]
            self._positions.remove(entry.head.end)

    # -- looking up ----------------------------------------------------------------------------

    def found(self, wanted: Timeline) -> Found:
        """Pages and snapshots of a timeline, by position."""
        pages: list[tuple[Entry, int]] = []
        reach = 0
        for start in self._starts.up_to(len(wanted)):
            if start > reach:
                break
            for entry in self._pages.get(prefix_key(self.identity, wanted, start), ()):
                common = _common(entry.head, wanted)
                if common > start:
                    pages.append((entry, common))
                    reach = max(reach, common)
        snapshots = (
            self._snapshots.get(prefix_key(self.identity, wanted, position))
            for position in self._positions.up_to(reach)
            if wanted.snapped(position) == position
        )
        return Found(tuple(pages), tuple(s for s in snapshots if s is not None), reach)

    # -- weighing ------------------------------------------------------------------------------

    def stored(self) -> list[Stored]:
        """All records, for the policy, those that cannot be read included. It takes a while and
        works on copies: no lock is needed."""
        entries = list(self.entries.values())
        orphans = self._orphans(entries)
        found = [self._weighed(entry, orphans) for entry in entries]
        for stray in list(self.strays.values()):
            found.append(
                Stored(
                    stray.entry_id,
                    "page",
                    end=0,
                    nbytes=stray.nbytes,
                    recompute_ms=0.0,
                    used_at=0.0,
                    is_pinned=stray.is_pinned,
                    is_orphan=True,
                )
            )
        return found

    def _weighed(self, entry: Entry, orphans: Collection[int]) -> Stored:
        head = entry.head
        stem = self._by_name.get(head.stem)
        return Stored(
            entry.entry_id,
            head.kind,
            head.end,
            entry.nbytes,
            head.recompute_ms,
            entry.used_at,
            entry.hits,
            stem.entry_id if stem is not None else None,
            entry.is_pinned,
            entry.is_anchor,
            entry.entry_id in orphans,
        )

    def _orphans(self, entries: Collection[Entry]) -> set[int]:
        known: dict[str, bool] = {}
        for entry in entries:
            at: Entry | None = entry
            path: dict[str, None] = {}
            verdict = True
            while at is not None and at.head.name not in path:
                if at.head.name in known or not at.head.start:
                    verdict = known.get(at.head.name, False)
                    break
                path[at.head.name] = None
                at = self._by_name.get(at.head.stem)
            known |= dict.fromkeys(path, verdict)
        return {entry.entry_id for entry in entries if known.get(entry.head.name, False)}

    def relink(self, found: Found) -> None:
        """Let what was found lean on what leads up to it now: the page that it was written after
        may have gone and come back in other pieces."""
        for entry in (*(e for e, _ in found.pages), *found.snapshots):
            if entry.head.start and self._by_name.get(entry.head.stem) is None:
                stem = found.stem_at(entry.head.start)
                if stem is not None:
                    entry.head = replace(entry.head, stem=stem.head.name)

    def lean(self, names: Collection[str], stem: str) -> None:
        """What leans on one of `names` leans on `stem` from now on."""
        for entry in self.entries.values():
            if entry.head.stem in names:
                entry.head = replace(entry.head, stem=stem)

    def relink_orphans(self) -> None:
        """Find by ids what records lean on whose stem became another page."""
        lost = [e for e in self.entries.values() if self._is_stemless(e)]
        while lost:
            by_key = {(e.head.parent, e.head.start): e for e in lost}
            starts = {e.head.start for e in lost}
            before = len(lost)
            for page in [e for e in self.entries.values() if e.head.kind == "page"]:
                inside = sorted(s for s in starts if page.head.start < s <= page.head.end)
                timeline = self._up_to_end(page) if inside else None
                if timeline is None:
                    continue
                for start in inside:
                    key = prefix_key(page.head.identity, timeline, start)
                    found = by_key.get((key, start))
                    if found is not None and found.head.identity == page.head.identity:
                        found.head = replace(found.head, stem=page.head.name)
            lost = [e for e in lost if self._is_stemless(e)]
            if len(lost) == before:
                return

    def _is_stemless(self, entry: Entry) -> bool:
        return bool(entry.head.start) and entry.head.stem not in self._by_name

    def _up_to_end(self, page: Entry) -> Timeline | None:
        """All ids up to the end of a page, from those that it leans on; None if one is gone."""
        timeline, path = Timeline.empty(), [page]
        while path[-1].head.start:
            stem = self._by_name.get(path[-1].head.stem)
            if stem is None or stem in path:
                return None
            path.append(stem)
        for at, entry in enumerate(reversed(path)):
            following = path[-2 - at].head.start if at + 1 < len(path) else entry.head.end
            count = following - entry.head.start
            spans = tuple(s for s in entry.head.spans if s.end <= following)
            timeline = timeline.extended(entry.head.ids[:count].tolist(), spans)
        return timeline


class _Sorted:
    """Positions with how often each is there, ascending."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._ordered: list[int] = []

    def add(self, position: int) -> None:
        self._counts[position] += 1
        if self._counts[position] == 1:
            insort(self._ordered, position)

    def remove(self, position: int) -> None:
        self._counts[position] -= 1
        if not self._counts[position]:
            del self._counts[position]
            del self._ordered[bisect_right(self._ordered, position) - 1]

    def up_to(self, last: int) -> Iterator[int]:
        for position in self._ordered:
            if position > last:
                return
            yield position


def _common(head: RecordHead, wanted: Timeline) -> int:
    """How many ids, from 0 on, a page that begins like `wanted` shares with it."""
    ids = wanted.ids[head.start : head.end]
    end = head.start + first_difference(head.ids[: len(ids)], ids)
    around = tuple(span for span in wanted.spans if span.start < end < span.end)
    return snapped(end, head.spans + around) if head.spans or around else end
