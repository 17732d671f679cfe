"""What people pinned: a file of its own, which outlives the index, and the marks of the records.

A pin is of a conversation and lies on its last page, so all that it leans on stays:

  (1) When a page goes on from the end of a pinned one, the pin moves to it.
  (2) Who takes back the pin of a page takes back those of the pages before it, too, unless one
      is the end of another conversation.
  (3) The pin of a record that cannot be read for a while is kept with its file.
"""

import threading
from collections.abc import Callable, Sequence

from ds4tui.cache.kvbooks import Books, Entry
from ds4tui.cache.kvfolder import Folder


class Pins:
    """`lock` is that of the books; the folder is that of who calls, who has the right to write
    there."""

    def __init__(
        self, books: Books, lock: threading.RLock, failed: Callable[[str, OSError], str]
    ) -> None:
        self._books, self._lock, self._failed = books, lock, failed

    def read(self, folder: Folder) -> frozenset[str]:
        try:
            return folder.read_pins()
        except OSError as exc:
            self._failed("the pins could not be read", exc)
            return frozenset()

    def set(self, folder: Folder, entry: Entry, *, is_pinned: bool) -> None:
        """OSError, and nothing has changed, if that cannot be kept."""
        with self._lock:
            marks = {entry: True} if is_pinned else dict.fromkeys(self._pinned_of(entry), False)
        self._mark(folder, marks)

    def go_on(self, folder: Folder, entry: Entry) -> None:
        """(1), now that `entry` is stored."""
        with self._lock:
            stem = self._books.named(entry.head.stem)
            is_next = stem is not None and stem.is_pinned and stem.head.end == entry.head.start
        if stem is None or not is_next or entry.head.kind != "page":
            return
        try:
            self._mark(folder, {entry: True, stem: False})
        except OSError as exc:
            self._failed("a pin could not go on with its conversation", exc)

    def rest(self, folder: Folder) -> None:
        """Some of what was pinned has been removed. OSError."""
        self._mark(folder, {})

    def _pinned_of(self, entry: Entry) -> Sequence[Entry]:
        """(2)"""
        found: list[Entry] = []
        at: Entry | None = entry
        while at is not None and at not in found:
            found.append(at)
            stem = self._books.named(at.head.stem)
            at = stem if stem is not None and stem.head.end == at.head.start else None
        return [each for each in found if each.is_pinned]

    def _mark(self, folder: Folder, marks: dict[Entry, bool]) -> None:
        there = folder.read_pins()
        with self._lock:
            before = {entry: entry.is_pinned for entry in marks}
            for entry, is_pinned in marks.items():
                entry.is_pinned = is_pinned
            names = {e.head.name for e in self._books.entries.values() if e.is_pinned}
            unread = there & self._books.strays.keys()
        try:
            folder.write_pins(names | unread)
        except OSError:
            for entry, was in before.items():
                entry.is_pinned = was
            raise
