"""Sampled ids of replies on disk, so that a conversation is still exact after a restart.

A table of its own file: key (conversation_keys.py) and vocabulary to ids. It is a cache: what
sqlite objects to, a damaged file too, is a reply that is not known, told in the log once.
"""

import logging
import sqlite3
import threading
import time
from array import array
from collections.abc import Sequence
from pathlib import Path

_log = logging.getLogger(__name__)

# 100 million tokens' worth of replies would be 400 MB; people come back to the latest ones.
_MAX_BYTES = 64 * 2**20
_ROW_BYTES = 64  # of a row beside its ids
# Finding what to evict reads the whole index.
_SAVES_BETWEEN_EVICTIONS = 256


class SavedReplies:
    """Thread-safe. `vocabulary` names the tokenizer: ids of another are nothing."""

    def __init__(self, path: Path, vocabulary: bytes, max_bytes: int = _MAX_BYTES) -> None:
        self._path = path
        self._vocabulary = vocabulary
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._has_failed = False
        self._saved = 0
        self._database: sqlite3.Connection | None = None

    def load(self, key: bytes) -> tuple[int, ...] | None:
        """The ids of the reply, None if it is not known."""
        row = self._execute(
            "UPDATE replies SET used_at = ? WHERE key = ? AND vocabulary = ? RETURNING ids",
            (time.time(), key, self._vocabulary),
        )
        return tuple(array("I", row[0][0])) if row else None

    def save(self, key: bytes, ids: Sequence[int]) -> None:
        """Keep the ids of a reply; the least recently used ones go."""
        data = array("I", ids).tobytes()
        self._execute(
            "INSERT OR REPLACE INTO replies VALUES (?, ?, ?, ?)",
            (key, self._vocabulary, data, time.time()),
        )
        self._saved += 1
        if self._saved % _SAVES_BETWEEN_EVICTIONS == 1:
            self._execute(_EVICT, (_ROW_BYTES, self._max_bytes))

    def close(self) -> None:
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None

    def _execute(self, statement: str, values: tuple[object, ...]) -> list[tuple[bytes]]:
        with self._lock:
            try:
                database = self._opened()
                with database:
                    return database.execute(statement, values).fetchall()
            except sqlite3.Error as exc:
                if not self._has_failed:
                    _log.warning("%s: replies are not kept over restarts: %s", self._path, exc)
                self._has_failed = True
                return []

    def _opened(self) -> sqlite3.Connection:
        if self._database is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            database = sqlite3.connect(self._path, check_same_thread=False)
            try:
                for statement in _SETUP:
                    database.execute(statement)
            except sqlite3.Error:
                database.close()
                raise
            self._database = database
        return self._database


_SETUP = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = NORMAL",
    """
    CREATE TABLE IF NOT EXISTS replies (
        key BLOB NOT NULL,
        vocabulary BLOB NOT NULL,
        ids BLOB NOT NULL,
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
