"""Sampled ids of replies on disk, so that a conversation is still exact after a restart.

A table of its own file: key (conversation_keys.py) and vocabulary to ids. It is a cache. Each
row has a checksum, and what is wrong with one is a reply that is not known, whose row goes; so is
what sqlite objects to, a damaged file too. Told in the log once. Nothing waits for another process
for long, and a file that cannot be written is still read.
"""

import logging
import os
import sqlite3
import threading
import time
from array import array
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import xxhash

_log = logging.getLogger(__name__)

# 100 million tokens' worth of replies would be 400 MB; people come back to the latest ones.
_MAX_BYTES = 64 * 2**20
_ROW_BYTES = 72  # of a row beside its ids
# Finding what to evict reads the whole index.
_SAVES_BETWEEN_EVICTIONS = 256
# For the database while another process writes, and how long nobody asks again after that.
_BUSY_TIMEOUT_S = 0.2
_PAUSE_S = 5.0
# A use is noted when the last note is older: a look-up is a read only.
_USE_NOTED_S = 3600.0


class SavedReplies:
    """Thread-safe. `vocabulary` names the tokenizer, which has `vocab_size` ids: those of another
    are nothing."""

    def __init__(
        self,
        path: Path,
        vocabulary: bytes,
        max_bytes: int = _MAX_BYTES,
        vocab_size: int = 2**31,
    ) -> None:
        self._path = path
        self._vocabulary = vocabulary
        self._vocab_size = vocab_size
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._has_failed = False
        self._is_read_only = False
        self._pause_until_s = 0.0
        self._saved = 0
        self._database: sqlite3.Connection | None = None

    def load(self, key: bytes) -> tuple[int, ...] | None:
        """The ids of the reply, None if it is not known."""
        name = key, self._vocabulary
        rows = self._execute(
            "SELECT ids, checksum, used_at FROM replies WHERE key = ? AND vocabulary = ?", name
        )
        if not rows:
            return None
        stored, checksum, used_at = rows[0]
        ids = self._checked(key, stored, checksum)
        if ids is None:
            self._told(f"a reply's ids are damaged in {self._path}; they are not used")
            self._change("DELETE FROM replies WHERE key = ? AND vocabulary = ?", name)
            return None
        if not isinstance(used_at, float) or abs(time.time() - used_at) > _USE_NOTED_S:
            self._change(
                "UPDATE replies SET used_at = ? WHERE key = ? AND vocabulary = ?",
                (time.time(), *name),
            )
        return ids

    def save(self, key: bytes, ids: Sequence[int]) -> None:
        """Keep the ids of a reply; the least recently used ones go."""
        data = array("I", ids).tobytes()
        checksum = self._checksum(key, data)
        self._change(
            "INSERT OR REPLACE INTO replies VALUES (?, ?, ?, ?, ?)",
            (key, self._vocabulary, data, checksum, time.time()),
        )
        self._saved += 1
        if self._saved % _SAVES_BETWEEN_EVICTIONS == 1:
            self._change(_EVICT, (_ROW_BYTES, self._max_bytes))

    def clear(self) -> None:
        """Forget all replies, of all vocabularies; nothing of them stays in the file."""
        self._change("DELETE FROM replies", ())
        with self._lock, suppress(sqlite3.Error):
            if self._database is not None and not self._is_read_only:
                self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None

    def _checked(self, key: bytes, stored: object, checksum: object) -> tuple[int, ...] | None:
        if not isinstance(stored, bytes) or checksum != self._checksum(key, stored):
            return None
        ids = array("I")
        if len(stored) % ids.itemsize:
            return None
        ids.frombytes(stored)
        return tuple(ids) if not ids or max(ids) < self._vocab_size else None

    def _checksum(self, key: bytes, data: bytes) -> bytes:
        return xxhash.xxh3_64_digest(key + self._vocabulary + data)

    def _change(self, statement: str, values: tuple[object, ...]) -> None:
        if not self._is_read_only:
            self._execute(statement, values)

    def _execute(self, statement: str, values: tuple[object, ...]) -> list[tuple[object, ...]]:
        with self._lock:
            if time.monotonic() < self._pause_until_s:
                return []
            try:
                database = self._opened()
                if self._is_read_only and not statement.startswith("SELECT"):
                    return []
                with database:
                    return database.execute(statement, values).fetchall()
            except (sqlite3.Error, OSError) as exc:
                if "locked" in str(exc) or "busy" in str(exc):
                    self._pause_until_s = time.monotonic() + _PAUSE_S
                self._told(f"{self._path}: replies are not kept over restarts: {exc}")
                return []

    def _told(self, words: str) -> None:
        if not self._has_failed:
            _log.warning("%s", words)
        self._has_failed = True

    def _opened(self) -> sqlite3.Connection:
        if self._database is None:
            try:
                self._database = self._for_writing()
            except (sqlite3.Error, OSError):
                # On a read-only file system. One that is no database fails here again.
                self._database = self._for_reading()
                self._is_read_only = True
        return self._database

    def _for_writing(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # For this user only, and so are the files that sqlite puts beside it.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
        with suppress(OSError):
            self._path.chmod(0o600)
        database = sqlite3.connect(self._path, timeout=_BUSY_TIMEOUT_S, check_same_thread=False)
        try:
            for statement in _SETUP:
                database.execute(statement)
        except sqlite3.Error:
            database.close()
            raise
        return database

    def _for_reading(self) -> sqlite3.Connection:
        uri = f"{self._path.absolute().as_uri()}?mode=ro&immutable=1"
        database = sqlite3.connect(uri, uri=True, check_same_thread=False)
        try:
            database.execute("SELECT 1 FROM replies LIMIT 1")
        except sqlite3.Error:
            database.close()
            raise
        return database


_SETUP = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = NORMAL",
    "PRAGMA secure_delete = ON",
    """
    CREATE TABLE IF NOT EXISTS replies (
        key BLOB NOT NULL,
        vocabulary BLOB NOT NULL,
        ids BLOB NOT NULL,
        checksum BLOB NOT NULL,
        used_at REAL NOT NULL,
        PRIMARY KEY (key, vocabulary)
    ) WITHOUT ROWID
    """,
    "CREATE INDEX IF NOT EXISTS replies_by_use ON replies (used_at)",
)

# The newest stay while they fit.
_EVICT = """
DELETE FROM replies WHERE used_at <= (
    SELECT used_at FROM (
        SELECT used_at, sum(length(ids) + ?) OVER (ORDER BY used_at DESC, key) AS so_far
        FROM replies
    ) WHERE so_far > ? ORDER BY used_at DESC LIMIT 1
)
"""
