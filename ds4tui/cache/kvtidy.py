"""Merges small pages on the writer's thread (kvmerge.py says which): one larger page is written,
and then the old ones go. Killed in between, both are there, and the next time the old ones go.
"""

import logging
import threading

from ds4tui.cache.kvarrays import HostPage
from ds4tui.cache.kvbooks import Books, Entry
from ds4tui.cache.kvfile import RecordFile, WritingStopped
from ds4tui.cache.kvformat import CorruptRecord, RecordHead, encoded
from ds4tui.cache.kvindex import GROWTH_BYTES
from ds4tui.cache.kvkeeper import Keeper
from ds4tui.cache.kvmerge import Run, merged, next_covered, next_run
from ds4tui.cache.kvtally import Tally

_log = logging.getLogger(__name__)


class Tidier:
    """`lock` is that of the books."""

    def __init__(self, books: Books, lock: threading.RLock, keeper: Keeper, tally: Tally) -> None:
        self._books, self._lock, self._keeper, self._tally = books, lock, keeper, tally

    def merge_some(self) -> bool:
        """Make one page of small ones; whether there may be more to do."""
        keeper = self._keeper
        with keeper.changing:
            try:
                return keeper.may_write and self._one()
            except (CorruptRecord, ValueError, MemoryError, WritingStopped) as exc:
                _log.info("pages are not merged: %s", exc or type(exc).__name__)
            except OSError as exc:
                keeper.failed("pages could not be merged", exc)
            finally:
                keeper.settle()
            return False

    def _one(self) -> bool:
        with self._lock:
            entries = list(self._books.entries.values())
        held = self._keeper.uses.held
        left = next_covered(entries, self._books.identity, held)
        if left is not None:  # of a merge that was cut short
            return self._replaced(Run((left[0],)), left[1].head.name)
        run = next_run(entries, self._books.identity, held)
        return run is not None and self._merge(run)

    def _merge(self, run: Run) -> bool:
        head, host = merged(run, [self._read(page) for page in run.pages])
        if self._books.named(head.name) is None:  # else a merge was cut short
            self._keeper.look()
            if self._keeper.excess_bytes(len(encoded(head)) + head.payload_bytes + GROWTH_BYTES):
                return False
            self._tally.merged(self._written(run, head, host))
        return self._replaced(run, head.name)

    def _written(self, run: Run, head: RecordHead, host: HostPage) -> int:
        """Its bytes."""
        used_at, hits = max(p.used_at for p in run.pages), max(p.hits for p in run.pages)
        with self._lock:
            entry = Entry(self._books.next_id(), head, host.nbytes, used_at, hits, host=host)
            self._books.add(entry)
        try:
            return self._keeper.write(entry, head)[0]
        finally:
            with self._lock:
                if entry.host is not None:
                    self._books.remove(entry)

    def _read(self, entry: Entry) -> HostPage:
        try:
            with RecordFile(self._keeper.path / entry.head.name) as file:
                return file.page()
        except CorruptRecord as exc:
            self._keeper.damaged(entry, exc)
            raise

    def _replaced(self, run: Run, name: str) -> bool:
        """The old pages go, unless a plan has just found one of them."""
        with self._lock:
            if any(self._keeper.uses.is_held(page.entry_id) for page in run.pages):
                return False
            self._books.lean(run.names, name)
            for page in run.pages:  # nobody finds them any more before their files go
                self._books.remove(page)
        self._keeper.forget(run.pages)
        return True
