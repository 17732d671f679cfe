"""Makes the books those of the files: adopts what is valid, reports what is not.

Files that are damaged are removed, if this process may; those of another version, or which the
system will not read now, stay and count, and go first when room is needed. Files of others are
not touched. Nothing goes, and nothing is missing, without a note.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ds4tui.cache.kvbooks import Books, Entry, Stray
from ds4tui.cache.kvfile import read_head
from ds4tui.cache.kvfolder import SeenFile
from ds4tui.cache.kvformat import CorruptRecord, Fault
from ds4tui.cache.kvindex import IndexRow
from ds4tui.cache.kvtally import Tally


class Adoption:
    """`remove` removes files of these names; it is not called while `may_change` is False.
    `lock` is that of the books."""

    def __init__(
        self,
        path: Path,
        books: Books,
        lock: threading.RLock,
        tally: Tally,
        remove: Callable[[Iterable[str]], None],
    ) -> None:
        self._path, self._books, self._lock, self._tally = path, books, lock, tally
        self._remove = remove
        self.may_change = False

    def without_temporaries(self, files: Sequence[SeenFile]) -> tuple[SeenFile, ...]:
        """Nobody else writes: what is half written will never be whole. OSError."""
        orphans = [file for file in files if file.kind == "temporary"]
        if orphans:
            nbytes = sum(file.nbytes for file in orphans)
            self._tally.fault("half written", len(orphans))
            said = f"{len(orphans)} half-written {_files(orphans)} removed"
            self._tally.note("removed", said, 0, nbytes)
            self._remove(file.name for file in orphans)
        return tuple(file for file in files if file.kind != "temporary")

    def take_over(
        self, files: Sequence[SeenFile], rows: dict[str, IndexRow], pins: frozenset[str]
    ) -> tuple[IndexRow, ...]:
        """Adopt what is not in the books yet; what of it `rows` do not know, or not as it is now.
        OSError if a damaged file cannot be removed."""
        self.forget_lost(files, rows)
        damaged: dict[Fault, list[SeenFile]] = {}
        adopted: list[IndexRow] = []
        are_new = False
        for file in files:
            if file.kind != "record" or self._is_known(file.name):
                continue
            row = rows.get(file.name)
            try:
                if row is None or (row.file_bytes, row.mtime_ns) != (file.nbytes, file.mtime_ns):
                    row = self._read(file, row)
                    adopted.append(row)
            except CorruptRecord as exc:
                damaged.setdefault(exc.fault, []).append(file)
                continue
            self._enter(row, is_pinned=file.name in pins)
            are_new = True
        for fault, found in damaged.items():
            self._report(fault, found, pins)
        if are_new:  # else nobody's stem has come: that takes a while
            with self._lock:
                self._books.relink_orphans()
        if adopted and rows:
            self._tally.note("adopted", f"{len(adopted)} {_records(adopted)} not in the index")
        return tuple(adopted)

    def forget_lost(self, files: Sequence[SeenFile], rows: dict[str, IndexRow]) -> None:
        """What the index or the books know and no file holds any more, or another one does."""
        sizes = {file.name: file.nbytes for file in files if file.kind == "record"}
        seen = {(file.name, file.nbytes, file.mtime_ns) for file in files}
        lost = {name: row.file_bytes for name, row in rows.items() if name not in sizes}
        with self._lock:
            for entry in list(self._books.entries.values()):
                if entry.host is None and sizes.get(entry.head.name) != entry.nbytes:
                    lost[entry.head.name] = entry.nbytes
                    self._books.remove(entry)
            for name, stray in list(self._books.strays.items()):
                if (name, stray.nbytes, stray.mtime_ns) not in seen:  # another file by now
                    del self._books.strays[name]
        if lost:
            self._tally.fault("gone", len(lost))
            said = f"{len(lost)} {_records(lost)} removed or changed by others"
            self._tally.note("gone", said, 0, sum(lost.values()))

    def _is_known(self, name: str) -> bool:
        with self._lock:
            return self._books.named(name) is not None or name in self._books.strays

    def _read(self, file: SeenFile, row: IndexRow | None) -> IndexRow:
        head, nbytes = read_head(self._path / file.name)
        used_at, hits = (row.used_at, row.hits) if row is not None else (head.created_at, 0)
        return IndexRow(head, nbytes, file.mtime_ns, used_at, hits)

    def _enter(self, row: IndexRow, *, is_pinned: bool) -> None:
        with self._lock:
            entry_id = self._books.next_id()
            uses = (row.used_at, row.hits, row.mtime_ns)
            self._books.add(Entry(entry_id, row.head, row.file_bytes, *uses, is_pinned))

    def _report(self, fault: Fault, files: Sequence[SeenFile], pins: frozenset[str]) -> None:
        nbytes = sum(file.nbytes for file in files)
        self._tally.fault(fault, len(files))
        if CorruptRecord(fault, "").is_damage and self.may_change:
            self._remove(file.name for file in files)
            said = f"{len(files)} damaged {_records(files)} removed ({fault})"
        else:
            said = f"{len(files)} {_records(files)} of no use here ({fault})"
            with self._lock:
                for file in files:
                    self._books.strays[file.name] = Stray(
                        self._books.next_id(),
                        file.nbytes,
                        fault,
                        file.mtime_ns,
                        file.name in pins and not CorruptRecord(fault, "").is_damage,
                    )
        self._tally.note("damaged", said, 0, nbytes)


def _records(of: Sequence[object] | dict[str, int]) -> str:
    return "record was" if len(of) == 1 else "records were"


def _files(of: Sequence[object]) -> str:
    return "file was" if len(of) == 1 else "files were"
