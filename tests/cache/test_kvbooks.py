"""Who leans on whom in the books, and what a look-up finds."""

from dataclasses import replace

import pytest

from ds4tui.cache.kvbooks import Books, Entry, Stray
from ds4tui.cache.kvformat import RecordHead, prefix_key
from ds4tui.cache.timeline import Timeline
from tests.cache.kv_samples import IDENTITY
from tests.cache.pictures import span, with_images

STORY = Timeline.of(range(1, 101))


def head(timeline: Timeline, start: int, end: int, stem: str = "") -> RecordHead:
    key = prefix_key(IDENTITY, timeline, start)
    spans = tuple(s for s in timeline.spans if start <= s.start < end)
    ids = timeline.ids[start:end]
    kind = "page" if end > start else "snapshot"
    return RecordHead(kind, IDENTITY, key, start, end, ids, spans, 1, stem=stem)  # type: ignore[arg-type]


def added(books: Books, record: RecordHead) -> Entry:
    entry = Entry(books.next_id(), record, 100, 0.0)
    books.add(entry)
    return entry


def orphans(books: Books) -> set[int]:
    return {record.entry_id for record in books.stored() if record.is_orphan}


def test_what_leans_on_nothing_is_an_orphan_and_so_is_what_leans_on_it() -> None:
    books = Books(IDENTITY)
    root = added(books, head(STORY, 0, 40))
    middle = added(books, head(STORY, 40, 70, root.head.name))
    tail = added(books, head(STORY, 70, 100, middle.head.name))
    end = added(books, head(STORY, 100, 100, tail.head.name))
    assert orphans(books) == set()
    books.remove(middle)
    assert orphans(books) == {tail.entry_id, end.entry_id}
    assert books.found(STORY).reach == 40 and not books.found(STORY).snapshots


def test_records_that_lean_on_each_other_in_a_ring_are_orphans() -> None:
    books = Books(IDENTITY)
    one, other = head(STORY, 10, 20), head(STORY, 20, 30)
    entries = [
        added(books, replace(one, stem=other.name)),
        added(books, replace(other, stem=one.name)),
    ]
    assert orphans(books) == {entry.entry_id for entry in entries}


def test_a_look_up_links_what_it_finds_to_what_leads_up_to_it_now() -> None:
    books = Books(IDENTITY)
    tail = added(books, head(STORY, 70, 100, "a page that has gone"))
    added(books, head(STORY, 0, 80))
    assert orphans(books) == {tail.entry_id}
    found = books.found(STORY)
    assert found.reach == 100 and orphans(books) == {tail.entry_id}  # (2)
    books.relink(found)
    assert orphans(books) == set()


def test_the_longest_of_several_pages_is_the_stem() -> None:
    books = Books(IDENTITY)
    added(books, head(STORY, 0, 30))
    long = added(books, head(STORY, 0, 60))
    found = books.found(STORY)
    assert [common for _, common in found.pages] == [30, 60]
    assert found.stem_at(20) is long and found.stem_at(61) is None and found.stem_at(0) is None
    assert found.stem_name(61) == "" and found.path_to(60) == {1, 2}


def test_an_image_is_shared_whole_or_not_at_all() -> None:
    stored = with_images(1, span(0, 5, 3), 2)
    books = Books(IDENTITY)
    added(books, head(stored, 0, 7))
    assert books.found(stored).reach == 7
    assert books.found(with_images(1, span(0, 4, 3), 2)).reach == 1
    assert books.found(with_images(1, span(0, 5, 4), 2)).reach == 1
    assert books.found(with_images(1, span(0, 5, 3))).reach == 6


def test_a_snapshot_is_not_found_within_an_image() -> None:
    """One of equal rows that goes on: it stood at the image's end elsewhere."""
    stored, longer = with_images(1, span(0, 3, 3)), with_images(1, span(0, 5, 3))
    books = Books(IDENTITY)
    added(books, head(longer, 0, 6))
    added(books, head(stored, 4, 4))
    assert books.found(longer).reach == 6 and not books.found(longer).snapshots


def test_records_of_other_models_count_and_are_not_found() -> None:
    books = Books(b"another")
    entry = added(books, head(STORY, 0, 40))
    assert books.found(STORY).reach == 0 and books.named(entry.head.name) is entry
    books.strays["x"] = Stray(books.next_id(), 7, "version")
    assert sum(record.nbytes for record in books.stored()) == 107
    with pytest.raises(ValueError, match="there already"):
        books.add(replace_entry(entry))
    books.remove(entry)
    books.remove(entry)  # once is enough
    assert books.named(entry.head.name) is None


def replace_entry(entry: Entry) -> Entry:
    return Entry(99, entry.head, 1, 0.0)
