"""The index of a folder of records: their heads, when they were used and how often, in sqlite.

The files are the truth. The index spares opening all of them at the start and remembers uses;
whatever is wrong with it, it is made anew from the files. A row's head is the bytes that the file
begins with, checksum included, so a row that sqlite returns damaged is not believed either.
Pins are not here: they must outlive it. Owned by whoever holds the folder's lock, one thread at
a time.
"""

import errno
import logging
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from ds4tui.cache.kvformat import FIXED, CorruptRecord, RecordHead, decoded, encoded
from ds4tui.cache.kvtally import Tally

_log = logging.getLogger(__name__)

INDEX_NAME = "index.sqlite"
# Where a file of another's bears that name, which is never changed nor removed.
_OTHER_NAME = "ds4tui-index.sqlite"
INDEX_FILES = tuple(
    name + ending
    for name in (INDEX_NAME, _OTHER_NAME)
    for ending in ("", "-wal", "-shm", "-journal")
)

# Stands in the header of every index that we made ("ds4k"): a foreign database is not read.
_APPLICATION_ID = 0x6473346B
_SCHEMA_VERSION = 1
_SQLITE_MAGIC = b"SQLite format 3\0"
# Where in sqlite's header (sqlite.org/fileformat.html) the schema's cookie and the id lie.
_COOKIE, _ID = slice(40, 44), slice(68, 72)

# The log goes into the database early: both count in the folder's budget.
_CHECKPOINT_PAGES = 64

# More than a commit adds to the files of the index: a row with its head, and the log until the
# next checkpoint.
GROWTH_BYTES = 512 << 10
# More than the log grows by for one row that changes or goes, and what a commit may grow it by:
# whatever changes at once is cut into commits with a checkpoint behind each.
_ROW_BYTES = 16 << 10
_COMMIT_BYTES = GROWTH_BYTES // 2

# What the system refuses says nothing of the database: making it anew would lose the uses.
_NOT_ITS_FAULT = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
}

# An index that failed is tried again after that.
_PAUSE_S = 60.0

_TABLE = """
    CREATE TABLE records (
        name TEXT PRIMARY KEY,
        file_bytes INTEGER NOT NULL,
        mtime_ns INTEGER NOT NULL,
        used_at REAL NOT NULL,
        hits INTEGER NOT NULL,
        head BLOB NOT NULL
    ) WITHOUT ROWID
"""


@dataclass(frozen=True, slots=True)
class IndexRow:
    """A record as it was when it was stored or adopted; `used_at` is in seconds since 1970."""

    head: RecordHead
    file_bytes: int
    mtime_ns: int
    used_at: float
    hits: int = 0


class Index:
    """Every method raises sqlite3.Error when the database cannot be used."""

    def __init__(self, path: Path) -> None:
        """Open the index at `path`, made if it is not there. sqlite3.DatabaseError for a file
        that is damaged or of another version, OSError if there can be none."""
        # Made for its owner only; the log takes over the mode.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        # Explicit transactions; any thread, since the owner sees to it that it is one at a time.
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=1.0)
        try:
            self._prepare()
        except BaseException:
            self._db.close()
            raise

    def _prepare(self) -> None:
        db = self._db
        db.execute("PRAGMA auto_vacuum = FULL")  # what goes takes no room
        db.execute("PRAGMA secure_delete = ON")  # nor can it be read
        db.execute("PRAGMA journal_mode = WAL")
        # Kills lose nothing with it; a power cut loses the newest rows, whose files are adopted.
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        db.execute("PRAGMA journal_size_limit = 0")
        marks = self._pragma("application_id"), self._pragma("user_version")
        if marks == (0, 0) and not db.execute("SELECT 1 FROM sqlite_master").fetchone():
            db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
            db.execute(_TABLE)
        elif marks != (_APPLICATION_ID, _SCHEMA_VERSION):
            raise sqlite3.DatabaseError("it is not an index of this version of ds4tui")

    def _pragma(self, name: str) -> int:
        return int(self._db.execute(f"PRAGMA {name}").fetchone()[0])

    def load(self) -> dict[str, IndexRow]:
        """All rows that can be believed, by name."""
        return _rows(self._db)

    def put(self, rows: Iterable[IndexRow]) -> None:
        """Add or replace rows."""
        values = [
            (r.head.name, r.file_bytes, r.mtime_ns, r.used_at, r.hits, encoded(r.head))
            for r in rows
        ]
        self._all("INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?, ?, ?)", values)

    def used(self, uses: Iterable[tuple[str, float, int]], room_bytes: int = GROWTH_BYTES) -> None:
        """(name, used_at, hits) of records that are there; the log grows by `room_bytes` at
        most, if that is enough for one."""
        values = [(used_at, hits, name) for name, used_at, hits in uses]
        self._all("UPDATE records SET used_at = ?, hits = ? WHERE name = ?", values, room_bytes)

    def remove(self, names: Iterable[str]) -> None:
        self._all("DELETE FROM records WHERE name = ?", [(name,) for name in names])

    def checkpoint(self) -> None:
        """Bring what its log holds into the database, and empty the log."""
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        self._db.close()

    def _all(
        self,
        statement: str,
        values: Sequence[tuple[object, ...]],
        room_bytes: int = GROWTH_BYTES,
    ) -> None:
        count = max(1, min(_COMMIT_BYTES, room_bytes) // _ROW_BYTES)
        for at in range(0, len(values), count):
            self._commit(statement, values[at : at + count])
            if len(values) > count:
                self.checkpoint()

    def _commit(self, statement: str, values: Sequence[tuple[object, ...]]) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._db.executemany(statement, values)
            self._db.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # the first error is the one to tell
                self._db.execute("ROLLBACK")
            raise


class SteadyIndex:
    """An index that harms nobody: whatever sqlite objects to is counted and told, and does not
    go farther. One that failed is made anew from the files after a while; until then there is
    none. `close` it before another process may write."""

    def __init__(self, folder: Path, tally: Tally) -> None:
        self._folder, self._tally = folder, tally
        self._index: Index | None = None
        self._failed_at: float | None = None

    def open(self) -> dict[str, IndexRow]:
        """The rows that can be believed; none if there is no index."""
        self.close()
        try:
            self._index, rows, problem = open_index(self._folder)
        except (sqlite3.Error, OSError) as exc:
            self._failed(exc)
            return {}
        self._failed_at = None
        if problem:
            self._tally.fault("index lost")
            self._tally.note("index", f"the index is made anew from the files: {problem}")
        return rows

    def look(self) -> dict[str, IndexRow]:
        """The rows of an index that another process may be writing; none if it cannot be read."""
        try:
            return read_index(self._folder)
        except (sqlite3.Error, OSError) as exc:
            _log.debug("the index of %s cannot be looked at: %s", self._folder, exc)
            return {}

    def put(self, rows: Collection[IndexRow]) -> None:
        self._change(lambda index: index.put(rows))

    def used(self, uses: Collection[tuple[str, float, int]], room_bytes: int) -> None:
        self._change(lambda index: index.used(uses, room_bytes))

    def remove(self, names: Collection[str]) -> None:
        self._change(lambda index: index.remove(names))

    def scrub(self) -> None:
        """Leave nothing of what was removed."""
        self._change(lambda index: index.checkpoint())

    def close(self) -> None:
        self._failed_at = None
        if self._index is not None:
            with suppress(sqlite3.Error):  # the files are enough
                self._index.close()
            self._index = None

    def _change(self, change: Callable[[Index], None]) -> None:
        failed_at = self._failed_at
        if failed_at is not None and time.monotonic() - failed_at > _PAUSE_S:
            self.open()  # the rows that it lacks come from the files at the next start
        if self._index is None:
            return
        try:
            change(self._index)
        except sqlite3.Error as exc:
            self._failed(exc)

    def _failed(self, exc: Exception) -> None:
        _log.warning("the index of %s cannot be used: %s", self._folder, exc)
        self._tally.fault("index lost")
        self._tally.note("index", f"the index cannot be used: {exc}")
        self.close()
        self._failed_at = time.monotonic()


def open_index(folder: Path) -> tuple[Index, dict[str, IndexRow], str]:
    """The index of `folder` with its rows, and what was wrong with it, in words; one that cannot
    be read is made anew. Raises sqlite3.Error or OSError if that cannot be done either."""
    path = _our_path(folder)
    is_beside = path.name != INDEX_NAME and not path.exists()
    problem = f"{INDEX_NAME} is not ours and stays" if is_beside else ""
    try:
        index, rows = _loaded(path)
        return index, rows, problem
    except sqlite3.DatabaseError as exc:
        if getattr(exc, "sqlite_errorcode", 0) & 0xFF in _NOT_ITS_FAULT:
            raise
        problem = str(exc)
    for ending in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + ending).unlink(missing_ok=True)
    index, rows = _loaded(path)
    return index, rows, problem


def _our_path(folder: Path) -> Path:
    """Where the index is or may be made. OSError if all names are others' files."""
    for name in (INDEX_NAME, _OTHER_NAME):
        if _is_ours(folder / name):
            return folder / name
    raise FileExistsError(errno.EEXIST, f"{INDEX_NAME} and {_OTHER_NAME} are not ours")


def _is_ours(path: Path) -> bool:
    """Whether we made it, however damaged it is by now; or nothing is there. Tells by the header,
    since to open a database may change it."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    with os.fdopen(opened, "rb") as file:
        header = file.read(100) if stat.S_ISREG(os.fstat(opened).st_mode) else b"?"
    if header[_ID] == _APPLICATION_ID.to_bytes(4, "big"):
        return header.startswith(_SQLITE_MAGIC)
    # One that was being made when its process was killed; what it has may be in its log.
    is_blank = header.startswith(_SQLITE_MAGIC) and not any(header[_ID] + header[_COOKIE])
    return not header or (is_blank and _is_blank(path))


def _is_blank(path: Path) -> bool:
    if not path.with_name(f"{path.name}-wal").exists():
        return True
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            marks = db.execute("PRAGMA application_id").fetchone()[0]
            is_empty = not db.execute("SELECT 1 FROM sqlite_master").fetchone()
            return marks == _APPLICATION_ID or (marks == 0 and is_empty)
    except sqlite3.Error:
        return False


def read_index(folder: Path) -> dict[str, IndexRow]:
    """The rows of the index of `folder`, in which nothing is changed. sqlite3.Error if there is
    none that can be read."""
    path = _our_path(folder).absolute()
    # Without a log nobody writes, and a reader of one that is not there would make it.
    has_log = path.with_name(f"{path.name}-wal").exists()
    mode = "mode=ro" if has_log else "mode=ro&immutable=1"
    with closing(sqlite3.connect(f"{path.as_uri()}?{mode}", uri=True, timeout=1.0)) as db:
        marks = tuple(
            int(db.execute(f"PRAGMA {name}").fetchone()[0])
            for name in ("application_id", "user_version")
        )
        return _rows(db) if marks == (_APPLICATION_ID, _SCHEMA_VERSION) else {}


def _rows(db: sqlite3.Connection) -> dict[str, IndexRow]:
    rows: dict[str, IndexRow] = {}
    columns = "name, file_bytes, mtime_ns, used_at, hits, head"
    with closing(db.execute(f"SELECT {columns} FROM records")) as cursor:
        for name, *fields in cursor:
            row = _row(*fields)
            if row is not None and row.head.name == name:
                rows[name] = row
    return rows


def _loaded(path: Path) -> tuple[Index, dict[str, IndexRow]]:
    index = Index(path)
    try:
        return index, index.load()
    except BaseException:
        index.close()
        raise


def _row(
    file_bytes: object, mtime_ns: object, used_at: object, hits: object, head: object
) -> IndexRow | None:
    """None for one that cannot be believed."""
    if not (isinstance(file_bytes, int) and isinstance(mtime_ns, int) and isinstance(hits, int)):
        return None
    if not isinstance(used_at, float) or not isinstance(head, bytes):
        return None
    try:
        decoded_head = decoded(head[: FIXED.size], head[FIXED.size :], file_bytes)
    except CorruptRecord:
        return None
    return IndexRow(decoded_head, file_bytes, mtime_ns, used_at, max(0, hits))
