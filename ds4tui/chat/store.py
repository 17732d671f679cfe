"""Conversations in one sqlite file: trees of messages, with a leaf that says which path is shown.

A message is never moved or overwritten by another: a new answer to an old question is a new
child, and the conversation's `leaf_id` chooses the path from the root. Files of images are kept
once per content. The store knows neither the engine nor the screen.

Thread-safe: one connection behind one lock; every method is one transaction. A call may wait
for the disk or for another process (up to the busy timeout), so the app calls it off its loop.
Whatever sqlite objects to arrives as StoreError, naming the file and what to do.
"""

import json
import logging
import sqlite3
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from ds4tui.chat import attachments
from ds4tui.chat.messages import Image, Message, ToolCall
from ds4tui.chat.migrations import MIGRATIONS, applied_names, migrate
from ds4tui.chat.store_errors import explain
from ds4tui.errors import StoreError

log = logging.getLogger(__name__)

MessageStatus = Literal["complete", "partial", "cancelled", "failed"]
STATUSES: tuple[str, ...] = get_args(MessageStatus)

# Stands in the header of every database we made ("ds4t"): a foreign file is left alone.
APPLICATION_ID = 0x64733474
# Another ds4tui writes for milliseconds at a time; longer than this means that it hangs.
BUSY_TIMEOUT_S = 5.0
TITLE_CHARS = 80

_EMPTY_APPLICATION_ID = 0


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message where it stands in its tree.

    `status`: complete; partial (the process ended while it was streaming); cancelled (stopped
    by the person); failed. `stats` is what the front-end put there (JSON values).
    """

    id: int
    parent_id: int | None
    message: Message
    status: MessageStatus
    stats: dict[str, Any] | None
    created_at: float  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation and the path from its root to its leaf (empty without a leaf)."""

    id: int
    title: str
    model: str
    system: str
    leaf_id: int | None
    path: tuple[StoredMessage, ...] = ()


@dataclass(frozen=True, slots=True)
class ConversationSummary:
    id: int
    title: str
    model: str
    messages: int  # in the whole tree
    updated_at: float  # seconds since the epoch


def title_of(text: str) -> str:
    """The title of a conversation that begins with `text`: its first line with words in it."""
    lines = (" ".join(line.split()) for line in text.splitlines())
    first = next((line for line in lines if line), "")
    return first if len(first) <= TITLE_CHARS else first[: TITLE_CHARS - 1].rstrip() + "…"


class ConversationStore:
    """The conversations of one database file (see the module's text for threads and errors)."""

    def __init__(self, path: Path | str, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        """Open `path`, making it and its folder if need be, and bring it up to date.

        Raises StoreError for a file that cannot be opened, is locked, read-only, damaged, of
        another program, or made by a newer ds4tui.
        """
        self.path = str(path)
        self.problem: StoreError | None = None
        """Why this store keeps nothing, when it stands in for one that cannot be used."""
        self._lock = threading.RLock()
        self._db = self._connect(busy_timeout_s)

    @classmethod
    def in_memory(cls, problem: StoreError | None = None) -> "ConversationStore":
        """A store that lasts as long as the process; `problem` says why it is used."""
        store = cls(":memory:")
        store.problem = problem
        return store

    @classmethod
    def open_or_memory(cls, path: Path | str) -> "ConversationStore":
        """The store of `path`, or one in memory whose `problem` tells why not that one."""
        try:
            return cls(path)
        except StoreError as exc:
            log.warning("conversations are kept in memory only: %s", exc)
            return cls.in_memory(problem=exc)

    @property
    def keeps(self) -> bool:
        """Whether what is stored outlives the process."""
        return self.path != ":memory:"

    def close(self) -> None:
        with self._lock:
            self._db.close()

    # Conversations

    def create(self, title: str = "", model: str = "", system: str = "") -> Conversation:
        now = time.time()
        with self._transaction() as db:
            cursor = db.execute(
                "INSERT INTO conversations (title, model, system, created_at, updated_at)"
                " VALUES (?, ?, ?, ?, ?)",
                (_storable(title), model, _storable(system), now, now),
            )
            return Conversation(_row_id(cursor), title, model, system, None)

    def list(self, limit: int = 100, offset: int = 0) -> tuple[ConversationSummary, ...]:
        """Conversations that hold a message, the one used last first."""
        with self._reading() as db:
            rows = db.execute(
                "SELECT c.id, c.title, c.model, count(m.id), c.updated_at"
                " FROM conversations c JOIN messages m ON m.conversation_id = c.id"
                " GROUP BY c.id ORDER BY c.updated_at DESC, c.id DESC LIMIT ? OFFSET ?",
                (limit, offset),
            ).fetchall()
        return tuple(ConversationSummary(*row) for row in rows)

    def latest(self) -> ConversationSummary | None:
        """The conversation used last; None for an empty store."""
        found = self.list(limit=1)
        return found[0] if found else None

    def load(self, conversation_id: int) -> Conversation:
        """Raises StoreError if there is no such conversation."""
        with self._reading() as db:
            head = self._head(db, conversation_id)
            path = _stored_all(db, db.execute(_PATH_SQL, (head.leaf_id,)).fetchall())
        return Conversation(head.id, head.title, head.model, head.system, head.leaf_id, path)

    def rename(self, conversation_id: int, title: str) -> None:
        self._change(conversation_id, "title", _storable(title))

    def set_system(self, conversation_id: int, system: str) -> None:
        self._change(conversation_id, "system", _storable(system))

    def set_leaf(self, conversation_id: int, message_id: int | None) -> None:
        """Choose the path that is shown; None goes back to before the first message."""
        self._change(conversation_id, "leaf_id", message_id)

    # Messages

    def add_message(
        self,
        conversation_id: int,
        parent_id: int | None,
        message: Message,
        status: MessageStatus = "complete",
        stats: dict[str, Any] | None = None,
    ) -> int:
        """Add a child of `parent_id` (None: a first message) and return its id.

        The leaf stays where it is. Raises StoreError if the parent is of another conversation.
        """
        with self._transaction() as db:
            return self._insert(db, conversation_id, parent_id, message, status, stats)

    def begin_turn(
        self, conversation_id: int, parent_id: int | None, question: Message
    ) -> tuple[int, int]:
        """Keep a question before work on it starts, with an empty partial answer as the leaf.

        Returns the ids of the question and of the answer.
        """
        answer = Message("assistant", "")
        with self._transaction() as db:
            asked = self._insert(db, conversation_id, parent_id, question, "complete", None)
            answered = self._insert(db, conversation_id, asked, answer, "partial", None)
            db.execute(
                "UPDATE conversations SET leaf_id = ? WHERE id = ?", (answered, conversation_id)
            )
        return asked, answered

    def update_message(
        self,
        message_id: int,
        text: str,
        sampled_ids: Sequence[int] | None,
        status: MessageStatus,
        stats: dict[str, Any] | None,
        reasoning: str = "",
        tool_calls: Sequence[ToolCall] = (),
    ) -> None:
        """Write what is known of a message by now, whole."""
        values = (
            _storable(text),
            _pack_ids(sampled_ids),
            _checked(status),
            _pack_stats(stats),
            _storable(reasoning),
            _pack_calls(tool_calls),
        )
        with self._transaction() as db:
            cursor = db.execute(
                "UPDATE messages SET text = ?, sampled_ids = ?, status = ?, stats = ?,"
                " reasoning = ?, tool_calls = ? WHERE id = ? RETURNING conversation_id",
                (*values, message_id),
            )
            row = cursor.fetchone()
            if row is None:
                raise StoreError(f"{self.path} has no message {message_id}.")
            self._touch(db, row[0])

    def children(self, message_id: int | None, conversation_id: int) -> tuple[StoredMessage, ...]:
        """The continuations of a message, oldest first; of None: the first messages."""
        with self._reading() as db:
            rows = db.execute(
                f"SELECT {_COLUMNS} FROM messages m"
                " WHERE m.conversation_id = ? AND m.parent_id IS ? ORDER BY m.id",
                (conversation_id, message_id),
            ).fetchall()
            return _stored_all(db, rows)

    # The draft

    def keep_draft(self, draft: Message) -> None:
        """Keep what was typed (its text and images) and not sent when the app ended."""
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO draft VALUES (1, ?)", (_storable(draft.text),))
            attachments.keep_of_draft(db, draft.images)

    def take_draft(self) -> Message:
        """What `keep_draft` kept, once: it belongs to the app that asks first. Else an empty
        message."""
        with self._transaction() as db:
            row = db.execute("DELETE FROM draft RETURNING text").fetchone()
            images = attachments.take_of_draft(db)
        return Message("user", str(row[0]) if row else "", images=images)

    # Inside

    def _connect(self, busy_timeout_s: float) -> sqlite3.Connection:
        db: sqlite3.Connection | None = None
        try:
            if self.keeps:
                Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            db = sqlite3.connect(
                self.path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False
            )
            self._prepare(db)
        except (sqlite3.Error, OSError) as exc:
            if db is not None:
                db.close()
            raise explain(self.path, exc) from exc
        except StoreError:
            if db is not None:
                db.close()
            raise
        return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        db.execute("PRAGMA foreign_keys = ON")
        self._refuse_foreign_file(db)
        # With WAL, NORMAL survives the death of the process (not of the power) at a fraction
        # of the fsyncs; a reply is journalled every second.
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("BEGIN IMMEDIATE")
        unknown = applied_names(db) - {name for name, _ in MIGRATIONS}
        if unknown:
            db.execute("ROLLBACK")
            raise StoreError(
                f"{self.path} was written by a newer ds4tui ({', '.join(sorted(unknown))}).",
                "Update ds4tui, or set DS4TUI_DATA_DIR to another folder.",
            )
        migrate(db)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute("COMMIT")

    def _refuse_foreign_file(self, db: sqlite3.Connection) -> None:
        found = db.execute("PRAGMA application_id").fetchone()[0]
        tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if found != APPLICATION_ID and (found != _EMPTY_APPLICATION_ID or tables):
            raise StoreError(
                f"{self.path} is a database of another program.",
                "Move it away, or set DS4TUI_DATA_DIR to another folder.",
            )

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._transaction("DEFERRED") as db:  # needs no write lock
            yield db

    @contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                # Immediate: a lock that cannot be had is met here and not half-way.
                self._db.execute(f"BEGIN {kind}")
                yield self._db
                self._db.execute("COMMIT")
            except sqlite3.Error as exc:
                self._roll_back()
                raise explain(self.path, exc) from exc
            except BaseException:
                self._roll_back()
                raise

    def _roll_back(self) -> None:
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        except sqlite3.Error:  # a closed or broken connection: what led here is raised instead
            log.debug("rollback failed", exc_info=True)

    def _head(self, db: sqlite3.Connection, conversation_id: int) -> Conversation:
        row = db.execute(
            "SELECT id, title, model, system, leaf_id FROM conversations WHERE id = ?",
            (conversation_id,),
        ).fetchone()
        if row is None:
            raise StoreError(f"{self.path} has no conversation {conversation_id}.")
        return Conversation(*row)

    def _change(self, conversation_id: int, column: str, value: str | int | None) -> None:
        with self._transaction() as db:
            self._head(db, conversation_id)
            db.execute(
                f"UPDATE conversations SET {column} = ? WHERE id = ?", (value, conversation_id)
            )

    def _touch(self, db: sqlite3.Connection, conversation_id: int) -> None:
        db.execute(
            "UPDATE conversations SET updated_at = ? WHERE id = ?", (time.time(), conversation_id)
        )

    def _insert(
        self,
        db: sqlite3.Connection,
        conversation_id: int,
        parent_id: int | None,
        message: Message,
        status: MessageStatus,
        stats: dict[str, Any] | None,
    ) -> int:
        values = (
            conversation_id,
            parent_id,
            message.role,
            _storable(message.text),
            _pack_ids(message.sampled_ids),
            _checked(status),
            _pack_stats(stats),
            time.time(),
            _storable(message.reasoning),
            _pack_calls(message.tool_calls),
            _storable(message.tool_call_id),
            _storable(message.name),
        )
        cursor = db.execute(
            "INSERT INTO messages (conversation_id, parent_id, role, text, sampled_ids, status,"
            " stats, created_at, reasoning, tool_calls, tool_call_id, name)"
            f" VALUES ({', '.join('?' * len(values))})",
            values,
        )
        message_id = _row_id(cursor)
        attachments.keep(db, message_id, message.images)
        self._touch(db, conversation_id)
        return message_id


_COLUMNS = (
    "m.id, m.parent_id, m.role, m.text, m.sampled_ids, m.status, m.stats, m.created_at,"
    " m.reasoning, m.tool_calls, m.tool_call_id, m.name"
)
# A parent is always older than its child, so the path in order of ids is the path in order.
_PATH_SQL = f"""
    WITH RECURSIVE path (id) AS (
        SELECT ?
        UNION ALL
        SELECT m.parent_id FROM messages m JOIN path ON m.id = path.id
        WHERE m.parent_id IS NOT NULL
    )
    SELECT {_COLUMNS} FROM messages m JOIN path ON m.id = path.id ORDER BY m.id
"""


def _row_id(cursor: sqlite3.Cursor) -> int:
    assert cursor.lastrowid is not None  # an INSERT into a rowid table always has one
    return cursor.lastrowid


def _checked(status: str) -> str:
    if status not in STATUSES:
        raise ValueError(f"status must be one of {', '.join(STATUSES)}, not {status!r}")
    return status


def _storable(text: str) -> str:
    """`text` with lone surrogates (undecodable input) replaced: sqlite keeps UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _pack_ids(ids: Sequence[int] | None) -> bytes | None:
    return None if ids is None else struct.pack(f"<{len(ids)}i", *ids)  # int32, little-endian


def _unpack_ids(blob: bytes | None) -> tuple[int, ...] | None:
    return None if blob is None else struct.unpack(f"<{len(blob) // 4}i", blob)


def _pack_stats(stats: dict[str, Any] | None) -> str | None:
    return None if stats is None else json.dumps(stats)


def _pack_calls(calls: Sequence[ToolCall]) -> str:
    told = [[_storable(part) for part in (c.id, c.name, c.arguments)] for c in calls]
    return json.dumps(told, ensure_ascii=False) if told else ""


def _unpack_calls(text: str) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(*parts) for parts in json.loads(text)) if text else ()


def _stored_all(
    db: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]
) -> tuple[StoredMessage, ...]:
    images = attachments.images_of(db, [row[0] for row in rows])
    return tuple(_stored(row, images.get(row[0], ())) for row in rows)


def _stored(row: tuple[Any, ...], images: tuple[Image, ...]) -> StoredMessage:
    id_, parent_id, role, text, blob, status, stats, created_at, *told = row
    reasoning, calls, tool_call_id, name = told
    message = Message(
        role,
        text,
        _unpack_ids(blob),
        reasoning,
        _unpack_calls(calls),
        tool_call_id,
        name,
        images,
    )
    return StoredMessage(
        id_, parent_id, message, status, None if stats is None else json.loads(stats), created_at
    )
