"""The writing side of the disk tier: it adopts what lies in the folder, makes room, writes,
removes, and keeps the books true to the files. Whatever the system does, the worst is that
something is not stored: a counter and a note say which.

  (1) All files of the folder together never exceed the budget by what is written here: room is
      made before, for the record and for what the index may grow.
  (2) Nothing that a look-up found and is `in_use`, nothing that waits, and nothing that leads up
      to what is being stored makes way for it.
  (3) Only who holds the folder's lock changes anything in it.
  (4) A record is in the books as stored only after its file is in place.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ds4tui.cache.kvadopt import Adoption
from ds4tui.cache.kvbooks import Books, Entry, Found, Stray
from ds4tui.cache.kventries import what_of
from ds4tui.cache.kvfile import WritingStopped, record_parts, write_record
from ds4tui.cache.kvfolder import Folder, SeenFile
from ds4tui.cache.kvformat import CorruptRecord, RecordHead, encoded
from ds4tui.cache.kvindex import GROWTH_BYTES, IndexRow, SteadyIndex
from ds4tui.cache.kvpins import Pins
from ds4tui.cache.kvpolicy import (
    Eviction,
    default_budget_bytes,
    evictions,
    excess_bytes,
    floor_bytes,
    freeable_bytes,
)
from ds4tui.cache.kvqueue import Job
from ds4tui.cache.kvtally import Tally, fault_word
from ds4tui.cache.kvuses import Uses
from ds4tui.errors import StoreError

_log = logging.getLogger(__name__)

# So often one that reads looks whether it may write.
_TRY_AGAIN_S = 2.0

# Files of others grow unseen for that long.
_LOOK_S = 5.0


class Keeper:
    """`lock` is that of the books; `changing` is held by whoever changes the folder, and may be
    held for as long as a write takes: it is taken before `lock`, never after."""

    def __init__(
        self,
        path: Path,
        budget_bytes: int | None,
        books: Books,
        lock: threading.RLock,
        tally: Tally,
        *,
        clock: Callable[[], float] = time.time,
        floor: int | None = None,
        may_write: bool = True,
        shrinks: bool = True,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """StoreError if there can be no such folder."""
        self.budget_bytes = budget_bytes or 0
        self.used_bytes = self.stray_bytes = self.free_bytes = self.floor_bytes = 0
        self.why_not = ""  # nothing is written, in words
        self.changing = threading.RLock()
        self.is_stopped = is_stopped
        self._has_default_budget = budget_bytes is None
        self._is_closed, self._tried_at = False, time.monotonic()
        self._path, self._books, self._lock, self._tally = path, books, lock, tally
        self._clock, self._floor = clock, floor
        self._may_write, self._shrinks = may_write, shrinks
        self._index = SteadyIndex(path, tally)
        self._adoption = Adoption(path, books, lock, tally, self._try_to_remove)
        self._pins = Pins(books, lock, self.failed)
        self.uses = Uses(books, lock, tally, self._index, clock)
        self.touch, self.hold = self.uses.touch, self.uses.hold
        self._seen_at, self._looked_at, self._index_bytes = -1, 0.0, 0
        self._folder = self._opened()

    def _opened(self) -> Folder:
        folder: Folder | None = None
        try:
            self._folder = folder = Folder(self._path, is_made=self._may_write)
            if self._may_write and folder.is_open_to_others():
                said = "others may write in the folder, and take what is stored: see its mode"
                self._tally.note("folder", said)
            self._open()
            return folder
        except OSError as exc:
            self._index.close()
            if folder is not None:
                folder.give_lock()
            raise StoreError(
                f"The folder {self._path} cannot hold KV records: {exc.strerror or exc}.",
                "Choose another one with --kv-disk-dir, or run with --no-kv-disk.",
            ) from exc

    @property
    def path(self) -> Path:
        return self._path

    # -- opening -------------------------------------------------------------------------------

    def _open(self) -> None:
        """Take the lock if it can be had, and over what is there."""
        with self.changing:
            self.why_not = self._locked()
            self._adoption.may_change = not self.why_not
            if self.why_not:
                if self._may_write:
                    self._tally.note("read-only", f"nothing is stored: {self.why_not}")
                self.reread()
            else:
                self._take_over()
            if self._has_default_budget:
                free, total = self._folder.space()
                self.budget_bytes = default_budget_bytes(self.used_bytes, free, total)
            if not self.why_not and self._shrinks:
                self._shrink()

    def _take_over(self) -> None:
        """This process writes here from now on."""
        files = self._adoption.without_temporaries(self._folder.files())
        rows = self._index.open()
        adopted = self._adoption.take_over(files, rows, self._pins.read(self._folder))
        self._index.remove(rows.keys() - {file.name for file in files})
        self._index.put(adopted)
        self._measure(self._folder.files())

    @property
    def may_write(self) -> bool:
        """Whether this process writes, in the folder that it knows."""
        return not self.why_not and self._folder.is_ours()

    def _try_again(self) -> None:
        """Whoever wrote here may have gone, whatever was in the way, too."""
        now = time.monotonic()
        if self._is_closed or not self._may_write or now - self._tried_at < _TRY_AGAIN_S:
            return
        self._tried_at = now
        try:
            self._folder.give_lock()
            self._folder = Folder(self._path)  # it may have been deleted
            if not self._folder.take_lock():
                return
            self._adoption.may_change, self.why_not = True, ""
            self._take_over()
            self._tally.note("writer", "nobody else writes in this folder any more: this one does")
        except OSError as exc:
            self._adoption.may_change = False
            self.why_not = f"the folder cannot be written ({exc.strerror or exc})"

    def _locked(self) -> str:
        if not self._may_write:
            return "it is only looked at"
        try:
            if self._folder.take_lock():
                return ""
        except OSError as exc:
            self._tally.fault(fault_word(exc))
            return f"the folder cannot be written ({exc.strerror or exc})"
        return "another ds4tui writes in this folder"

    def reread(self) -> None:
        """Of a folder in which another process writes: take over what has changed, or all of it
        if that one has gone."""
        if self._is_closed:
            return
        with self.changing:
            self._try_again()
            if not self.why_not:
                return
            try:
                changed_at = self._folder.changed_at()
                if changed_at == self._seen_at:
                    return
                files = self._folder.files()
                pins = self._pins.read(self._folder)
                self._adoption.take_over(files, self._uses_seen(files), pins)
                self._measure(files)
                self._seen_at = changed_at
            except OSError as exc:
                self.failed("the folder could not be looked at", exc)

    def _uses_seen(self, files: Sequence[SeenFile]) -> dict[str, IndexRow]:
        """What the index of another process knows of these files, when they are first seen."""
        if self._seen_at != -1:
            return {}
        rows = self._index.look()
        return {file.name: rows[file.name] for file in files if file.name in rows}

    # -- storing -------------------------------------------------------------------------------

    def store(self, job: Job) -> None:
        """Write a record that is in the books, or take it out of them again."""
        try:
            with self.changing:
                try:
                    if not self._is_closed:
                        self._store(job, is_second_try=False)
                finally:
                    self.settle()
        finally:
            with self._lock:
                if job.entry.host is not None:
                    self._books.remove(job.entry)

    def _store(self, job: Job, *, is_second_try: bool) -> None:
        if not self._folder.is_ours() and not self._reopen():
            return
        with self._lock:
            if self._books.named(job.head.name) is not job.entry:
                return  # somebody cleared it while it waited
            found = self._books.found(job.timeline)
        stem = found.stem_at(job.head.start)
        if job.head.start and stem is None:
            self._refuse(job, "what leads up to it is not stored")
            return
        head = replace(job.head, stem=stem.head.name if stem is not None else "")
        try:
            if not self._room_for(len(encoded(head)) + head.payload_bytes, found, job):
                self._refuse(job, "there is no room for it among what is worth more")
                return
            self._write(replace(job, head=head))
        except WritingStopped:
            self._refuse(job, "there was no time left")
        except (ValueError, MemoryError) as exc:
            self._refuse(job, str(exc) or "no memory is left")
        except OSError as exc:
            word = self.failed(f"{what_of(job.entry)} could not be stored", exc)
            if word == "folder gone" and not is_second_try and self._reopen():
                self._store(job, is_second_try=True)

    def _room_for(self, nbytes: int, found: Found, job: Job) -> bool:
        """(1) and (2)."""
        self.uses.now()
        self.look()
        keep = found.path_to(job.head.start) | {job.entry.entry_id}
        excess = self.excess_bytes(nbytes + GROWTH_BYTES)
        return excess == 0 or self._evict(excess, keep)

    def look(self) -> None:
        """What lies in the folder now. Thousands of files take tens of milliseconds to look at,
        so that is done when a name has come or gone, and every few seconds, since files of others
        may grow; in between the index alone does."""
        is_late = time.monotonic() - self._looked_at > _LOOK_S
        if is_late or self._folder.changed_at() != self._seen_at:
            files = self._folder.files()
            pins = self._pins.read(self._folder)
            self._index.put(self._adoption.take_over(files, {}, pins))
            self._measure(files)
            return
        index_bytes = self._folder.index_bytes()
        self.used_bytes += index_bytes - self._index_bytes
        self._index_bytes = index_bytes

    def _write(self, job: Job) -> None:
        nbytes, seconds = self.write(job.entry, job.head)
        self._pins.go_on(self._folder, job.entry)
        self._tally.stored(job.head.kind, nbytes, seconds, job.head.tokens, job.why)

    def write(self, entry: Entry, head: RecordHead) -> tuple[int, float]:
        """Write the file of an entry that is in the books: its bytes, and the seconds it took.
        Raises as write_record."""
        assert entry.host is not None
        arrays = record_parts(entry.host)[1]
        before = self._folder.names()
        began = time.perf_counter()
        head = write_record(self._path, head, arrays, self.is_stopped)
        seconds = time.perf_counter() - began
        written = (self._path / head.name).stat()
        with self._lock:
            entry.head = replace(head, arrays=())
            entry.nbytes, entry.mtime_ns, entry.host = written.st_size, written.st_mtime_ns, None
            self.used_bytes += written.st_size
        row = IndexRow(head, entry.nbytes, entry.mtime_ns, entry.used_at, entry.hits)
        self._index.put([row])
        self.uses.write_down()
        changed_at = self._folder.changed_at()
        if self._folder.names() - before <= {head.name}:  # else others put something there
            self._seen_at = changed_at
        return written.st_size, seconds

    def _reopen(self) -> bool:
        """The folder is not the one that was opened: make it anew, or take over what another
        one made. Whether this process may write there."""
        self._tally.fault("folder gone")
        self._tally.note("folder", "the folder was deleted or replaced: it is made anew")
        with self._lock:
            for entry in list(self._books.entries.values()):
                if entry.host is None:
                    self._books.remove(entry)
            self._books.strays.clear()
        self._index.close()
        try:
            self._folder.give_lock()
            self._folder = Folder(self._path)
            self._open()
        except OSError as exc:
            self.why_not = f"the folder cannot be made ({exc.strerror or exc})"
            self.failed("the folder could not be made anew", exc)
            return False
        return not self.why_not

    # -- making room -----------------------------------------------------------------------------

    def excess_bytes(self, needed: int) -> int:
        """What would have to go before `needed` bytes are written."""
        free = self._space()
        return excess_bytes(needed, self.used_bytes, self.budget_bytes, free, self.floor_bytes)

    def _space(self) -> int:
        """What is free; the floor goes with the size of the disk."""
        free, total = self._folder.space()
        self.floor_bytes = floor_bytes(total) if self._floor is None else self._floor
        return free

    def _evict(self, excess: int, keep: Collection[int] = ()) -> bool:
        now = self.uses.now()
        with self._lock:
            staying = self._staying().union(keep)
        gone = evictions(self._books.stored(), excess, now, staying)
        if gone is None:
            return False
        used = self.used_bytes
        for eviction in gone:
            self._let_go(eviction)
        return used - self.used_bytes >= excess

    def _staying(self) -> set[int]:
        waiting = {e.entry_id for e in self._books.entries.values() if e.host is not None}
        return waiting | self.uses.held

    def _let_go(self, eviction: Eviction) -> None:
        with self._lock:
            if self.uses.is_held(eviction.entry_id):
                return  # a plan has just found it
            entry = self._books.entries.get(eviction.entry_id)
            names = [n for n, s in self._books.strays.items() if s.entry_id == eviction.entry_id]
        if entry is not None:
            self.forget([entry])
            self._tally.note(
                "evicted",
                f"{what_of(entry)}: {eviction.reason}",
                entry.head.tokens,
                entry.nbytes,
            )
        else:
            self._remove(names)
            with self._lock:
                strays = [self._books.strays.pop(name) for name in names]
            self.used_bytes -= sum(stray.nbytes for stray in strays)
            self._tally.note("evicted", "a record that nobody here can read")
        self._tally.evicted(eviction.why)

    def forget(self, entries: Iterable[Entry]) -> None:
        """Remove stored records, files first."""
        gone = list(entries)
        names = [entry.head.name for entry in gone]
        self._remove(names)
        with self._lock:
            for entry in gone:
                self._books.remove(entry)
                self.uses.forget(entry)
        self.used_bytes -= sum(entry.nbytes for entry in gone)
        self._index.remove(names)

    def _shrink(self) -> None:
        """A budget that was lowered holds from the start, and every record that goes is told."""
        over = self.used_bytes - self.budget_bytes
        could = freeable_bytes(self._books.stored())
        if over > 0:
            try:
                self._evict(min(over, could))
            except OSError as exc:
                self.failed("room could not be made", exc)
        if self.used_bytes > self.budget_bytes:
            self._tally.fault("over budget")
            said = "what is pinned or not ours takes more than the budget"
            self._tally.note("over budget", said, 0, self.used_bytes - self.budget_bytes)

    def prune(self, to_bytes: int) -> int:
        """Let go of what is worth least until the folder takes no more than that; the bytes that
        went. OSError if nothing may be removed, StoreError if it is another's to do."""
        with self.changing:
            self.check_writer()
            self._measure(self._folder.files())
            before = self.used_bytes
            with self._lock:
                staying = self._staying()
            could = freeable_bytes(self._books.stored(), staying)
            self._evict(min(could, max(0, before - to_bytes)))
            return before - self.used_bytes

    def remove(self, entries: Iterable[Entry]) -> int:
        """Remove these records, whatever they are worth, and what the index knows of them; their
        bytes."""
        with self.changing:
            stored = [entry for entry in entries if entry.host is None]
            self.forget(stored)
            if any(entry.is_pinned for entry in stored):
                self._pins.rest(self._folder)
            self._index.scrub()
            return sum(entry.nbytes for entry in stored)

    def damaged(self, entry: Entry, fault: CorruptRecord) -> None:
        """A record turned out to be of no use: it leaves the books, and the folder if it is the
        file that is wrong."""
        self._tally.fault(fault.fault)
        if fault.fault == "memory":
            return
        said = f"{what_of(entry)} is of no use ({fault.fault}): {fault.message}"
        self._tally.note("damaged", said, entry.head.tokens, entry.nbytes)
        with self._lock:
            self._books.remove(entry)
            if self.why_not or not fault.is_damage:
                kept = (entry.mtime_ns, entry.is_pinned and not fault.is_damage)
                stray = Stray(self._books.next_id(), entry.nbytes, fault.fault, *kept)
                self._books.strays[entry.head.name] = stray
        if fault.is_damage and not self.why_not:
            self._try_to_remove([entry.head.name])

    def pin(self, entry: Entry, *, is_pinned: bool) -> None:
        """OSError if it cannot be kept, StoreError if it is another's to do."""
        with self.changing:
            self.check_writer()
            self._pins.set(self._folder, entry, is_pinned=is_pinned)

    def check_writer(self) -> None:
        if self.why_not:
            raise StoreError(
                f"Nothing can be changed in {self._path}: {self.why_not}.",
                "Close the other ds4tui, or make the folder writable.",
            )

    def _remove(self, names: Iterable[str]) -> None:
        self._folder.remove(names)

    def _try_to_remove(self, names: Iterable[str]) -> None:
        try:
            self._remove(names)
        except OSError as exc:
            self.failed("a damaged file could not be removed", exc)

    # -- closing ---------------------------------------------------------------------------------

    def close(self, deadline_s: float) -> None:
        """Let the folder go; where a call to the system does not come back until then, the thread
        that made it does so, or the end of the process."""
        self._is_closed = True
        if self.changing.acquire(timeout=deadline_s):
            try:
                self._let_folder_go()
            finally:
                self.changing.release()
        self.why_not = self.why_not or "it is closed"

    def settle(self) -> None:
        """Who held `changing` while this was closed is done."""
        if self._is_closed:
            self._let_folder_go()

    def _let_folder_go(self) -> None:
        self.uses.write_down(self.budget_bytes - self.used_bytes)
        self._index.close()
        self._folder.give_lock()

    # -- what goes wrong -------------------------------------------------------------------------

    def failed(self, what: str, exc: OSError) -> str:
        word = fault_word(exc)
        _log.warning("%s: %s", what, exc)
        self._tally.fault(word)
        self._tally.note(word, f"{what}: {exc.strerror or exc}")
        return word

    def _refuse(self, job: Job, why: str) -> None:
        self._tally.fault("refused")
        host = job.entry.host
        nbytes = host.nbytes if host is not None else 0
        self._tally.note("refused", f"{what_of(job.entry)}: {why}", job.head.tokens, nbytes)

    def _measure(self, files: Sequence[SeenFile]) -> None:
        with suppress(OSError):
            self.free_bytes = self._space()
            self._seen_at = self._folder.changed_at()
            self._index_bytes = self._folder.index_bytes()
            self._looked_at = time.monotonic()
        self.used_bytes = sum(file.nbytes for file in files)
        strays = self._books.strays
        self.stray_bytes = sum(f.nbytes for f in files if f.kind == "foreign" or f.name in strays)
