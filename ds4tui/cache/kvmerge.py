"""Small pages become larger ones while nothing else is to be done.

Turns leave a page each, and a long conversation would be read from hundreds of files. Pages that
follow each other, and from which nothing forks, become one by copying their rows; the old ones go
once it is in place. Choosing is pure:

  (1) A page that was made this way is never merged again, so each byte is written at most twice.
  (2) The ends of system prompts, what is pinned and what is in use stay as they are.
  (3) Nothing makes way for it.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ds4tui.cache.kvarrays import HostPage, HostRows, Pooled
from ds4tui.cache.kvbooks import Entry
from ds4tui.cache.kvfile import record_parts
from ds4tui.cache.kvformat import PAGE_POSITIONS_MAX, RecordHead

# Merged pages have more positions than small ones, so that they are not small themselves.
SMALL_POSITIONS = PAGE_POSITIONS_MAX // 2
MERGED_POSITIONS_MIN = PAGE_POSITIONS_MAX * 3 // 4


@dataclass(frozen=True, slots=True)
class Run:
    """Pages one behind the other."""

    pages: tuple[Entry, ...]

    @property
    def nbytes(self) -> int:
        return sum(page.nbytes for page in self.pages)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(page.head.name for page in self.pages)


def next_run(entries: Iterable[Entry], identity: bytes, held: Collection[int]) -> Run | None:
    """Pages of that model that may become one; None if there are none."""
    pages = [e for e in entries if e.head.kind == "page" and e.head.identity == identity]
    leaning: dict[str, list[Entry]] = {}
    for page in pages:
        leaning.setdefault(page.head.stem, []).append(page)
    small = [page for page in pages if _is_small(page, held)]
    followed = {found.head.name for page in small if (found := _only_next(page, leaning, held))}
    for first in small:
        if first.head.name not in followed:
            for run in _runs(first, leaning, held):
                if run.pages[-1].head.end - run.pages[0].head.start >= MERGED_POSITIONS_MIN:
                    return run
    return None


def next_covered(
    entries: Iterable[Entry], identity: bytes, held: Collection[int]
) -> tuple[Entry, Entry] | None:
    """A small page, all of whose rows are in a larger one of the same timeline, with that one."""
    pages = [e for e in entries if e.head.kind == "page" and e.head.identity == identity]
    by_name = {page.head.name: page for page in pages}
    beside: dict[bytes, list[Entry]] = {}
    for page in pages:
        beside.setdefault(page.head.parent, []).append(page)
    for page in pages:
        if not _is_small(page, held):
            continue
        stem = by_name.get(page.head.stem)
        for other in [*([stem] if stem is not None else []), *beside[page.head.parent]]:
            if other is not page and _holds(other, page):
                return page, other
    return None


def _holds(other: Entry, page: Entry) -> bool:
    """Both are of one timeline up to the start of the later one."""
    start, end = page.head.start - other.head.start, page.head.end - other.head.start
    is_longer = other.host is None and other.head.tokens > page.head.tokens
    if not (is_longer and start >= 0 and end <= other.head.tokens):
        return False
    inside = (s for s in other.head.spans if page.head.start < s.end and s.start < page.head.end)
    is_same = np.array_equal(other.head.ids[start:end], page.head.ids)
    return is_same and tuple(inside) == page.head.spans  # a picture that is cut is of no use


def _is_small(page: Entry, held: Collection[int]) -> bool:
    is_free = page.host is None and not page.is_pinned and page.entry_id not in held
    return is_free and not page.is_anchor and page.head.tokens < SMALL_POSITIONS


def _only_next(page: Entry, leaning: dict[str, list[Entry]], held: Collection[int]) -> Entry | None:
    """The page that goes on from the end of `page`, if it is small and the only one that leans on
    it."""
    found = leaning.get(page.head.name, [])
    if len(found) != 1 or found[0].head.start != page.head.end or not _is_small(found[0], held):
        return None
    return found[0]


def _runs(first: Entry, leaning: dict[str, list[Entry]], held: Collection[int]) -> Iterable[Run]:
    """The longest ones from `first` on, each as long as a page may be."""
    run = [first]
    while (found := _only_next(run[-1], leaning, held)) is not None:
        if found.head.end - run[0].head.start > PAGE_POSITIONS_MAX:
            yield Run(tuple(run))
            run = []
        run.append(found)
    yield Run(tuple(run))


def merged(run: Run, pages: Sequence[HostPage]) -> tuple[RecordHead, HostPage]:
    """The record that holds the rows of all. ValueError if they are not alike."""
    first, last = run.pages[0].head, run.pages[-1].head
    layers = zip(*(page.layers for page in pages), strict=True)
    host = HostPage(first.start, last.end, tuple(_joined(parts) for parts in layers))
    head = replace(
        first,
        end=last.end,
        ids=np.concatenate([page.head.ids for page in run.pages]),
        spans=tuple(span for page in run.pages for span in page.head.spans),
        arrays=tuple(record_parts(host)[0]),
        recompute_ms=sum(page.head.recompute_ms for page in run.pages),
        point="",
        what=last.what or first.what,
    )
    return head, host


def _joined(parts: Sequence[HostRows | None]) -> HostRows | None:
    rows = [part for part in parts if part is not None]
    if not rows:
        return None
    pools = [part.pooled for part in rows if part.pooled is not None]
    alike = {(p.axes, p.dtypes, len(p.arrays), p.pooled and p.pooled.size) for p in rows}
    if len(rows) != len(parts) or len(alike) != 1:
        raise ValueError("pages of other layers cannot become one")
    arrays = tuple(
        np.concatenate([part.arrays[i] for part in rows], axis=axis)
        for i, axis in enumerate(rows[0].axes)
    )
    pooled = Pooled(pools[0].size, pools[0].start, pools[-1].end) if pools else None
    return HostRows(arrays, rows[0].axes, rows[0].dtypes, pooled)
