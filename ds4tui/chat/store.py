"""Conversations in one sqlite file: trees of messages, with a leaf that says which path is shown.

A message is never moved or overwritten by another: a new answer to an old question is a new
child, and the conversation's `leaf_id` chooses the path from the root. Files of images are kept
once per content. The store knows neither the engine nor the screen.

Thread-safe: one connection behind one lock; every method is one transaction. A call may wait
for the disk or for another process (up to the busy timeout), so the app calls it off its loop.
Whatever sqlite objects to arrives as StoreError, naming the file and what to do.
"""

import logging
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import EllipsisType
from typing import Any

from ds4tui.chat.messages import Message, Tool, ToolCall
from ds4tui.chat.migrations import MIGRATIONS, applied_names, migrate
from ds4tui.chat.store_errors import explain
from ds4tui.chat.store_rows import (
    COLUMNS,
    PATH_SQL,
    checked,
    insert,
    is_on_path,
    pack_calls,
    pack_ids,
    pack_sampling,
    pack_stats,
    pack_tools,
    row_id,
    storable,
    stored_all,
    touch,
    unpack_sampling,
    unpack_tools,
)
from ds4tui.chat.store_rows import STATUSES as STATUSES  # exported with what they describe
from ds4tui.chat.store_rows import MessageStatus as MessageStatus
from ds4tui.chat.store_rows import StoredMessage as StoredMessage
from ds4tui.chat.writing import Writing
from ds4tui.errors import ConversationWentOn, StoreError

log = logging.getLogger(__name__)

# Stands in the header of every database we made ("ds4t"): a foreign file is left alone.
APPLICATION_ID = 0x64733474
# Another ds4tui writes for milliseconds at a time; longer than this means that it hangs.
BUSY_TIMEOUT_S = 5.0
TITLE_CHARS = 80

_EMPTY_APPLICATION_ID = 0

# A person wrote a message of it: agents may have begun it, or gone on with it.
_BY_PERSON = (
    " AND EXISTS (SELECT 1 FROM messages p WHERE p.conversation_id = c.id AND p.client = '')"
)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation and the path from its root to its leaf (empty without a leaf)."""

    id: int
    title: str
    model: str
    system: str
    leaf_id: int | None
    path: tuple[StoredMessage, ...] = ()
    origin: str = "person"  # who began it: person | agent
    client: str = ""  # the program that began it or worked on it last; "": none did
    tools: tuple[Tool, ...] = ()  # what the program offered to the model last
    sampling: Mapping[str, float] = field(default_factory=dict)  # what a person set for it


@dataclass(frozen=True, slots=True)
class ConversationSummary:
    id: int
    title: str
    model: str
    messages: int  # in the whole tree
    updated_at: float  # seconds since the epoch
    origin: str = "person"  # person | agent
    client: str = ""  # the program that began it or worked on it last; "": none did


@dataclass(frozen=True, slots=True)
class PathEnd:
    """How a path goes on: the `messages` behind a known one, or all if it `is_known` no more."""

    is_known: bool
    leaf_id: int | None
    messages: tuple[StoredMessage, ...]
    used_s: float  # when the conversation changed last, in seconds since the epoch


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
        self.writing = Writing(self.path)
        """Which partial replies somebody is at work on."""
        self.writing.tidy()

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
        self.writing.close()
        with self._lock:
            self._db.close()

    # Conversations

    def create(
        self,
        title: str = "",
        model: str = "",
        system: str = "",
        tools: Sequence[Tool] = (),
    ) -> Conversation:
        now = time.time()
        with self.transaction() as db:
            cursor = db.execute(
                "INSERT INTO conversations (title, model, system, created_at, updated_at, tools)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (storable(title), model, storable(system), now, now, pack_tools(tools)),
            )
            return Conversation(row_id(cursor), title, model, system, None, tools=tuple(tools))

    def list(
        self, limit: int = 100, offset: int = 0, by_persons: bool = False
    ) -> tuple[ConversationSummary, ...]:
        """Conversations that hold a message, the one used last first; of a person's if
        `by_persons`."""
        return self._listed(_BY_PERSON if by_persons else "", limit, offset)

    def latest(self) -> ConversationSummary | None:
        """The conversation used last among those that a person wrote in; None if there is none."""
        found = self._listed(_BY_PERSON, 1, 0)
        return found[0] if found else None

    def load(self, conversation_id: int, branch_of: int | None = None) -> Conversation:
        """A conversation as it is shown. With `branch_of`, a message that it does not show, the
        path to that is shown from now on. Raises StoreError if there is no such conversation."""
        if branch_of is not None:
            self._show(conversation_id, branch_of)
        with self._reading() as db:
            head = self._head(db, conversation_id)
            rows = db.execute(PATH_SQL, {"leaf": head.leaf_id, "after": 0}).fetchall()
            path = stored_all(db, rows)
        return replace(head, path=path)

    def after(self, conversation_id: int, message_id: int | None) -> "PathEnd":
        """How the shown path goes on behind `message_id` (None: from its beginning)."""
        with self._reading() as db:
            head = self._head(db, conversation_id)
            is_known = is_on_path(db, message_id, head.leaf_id)
            after = (message_id or 0) if is_known else 0
            rows = db.execute(PATH_SQL, {"leaf": head.leaf_id, "after": after}).fetchall()
            return PathEnd(is_known, head.leaf_id, stored_all(db, rows), self._used_s(db, head.id))

    def message(self, message_id: int) -> StoredMessage:
        """Raises StoreError if there is no such message."""
        with self._reading() as db:
            rows = db.execute(f"SELECT {COLUMNS} FROM messages m WHERE m.id = ?", (message_id,))
            found = stored_all(db, rows.fetchall())
        if not found:
            raise StoreError(f"{self.path} has no message {message_id}.")
        return found[0]

    @property
    def version(self) -> int:
        """Another number whenever another process has changed the file since it was asked last;
        costs microseconds."""
        with self._lock:
            try:
                return int(self._db.execute("PRAGMA data_version").fetchone()[0])
            except sqlite3.Error as exc:
                raise explain(self.path, exc) from exc

    def rename(self, conversation_id: int, title: str) -> None:
        self._change(conversation_id, "title", storable(title))

    def set_system(self, conversation_id: int, system: str) -> None:
        with self.transaction() as db:
            self._set(db, conversation_id, "system", storable(system))
            # It stands before all messages: the ledger tells their keys anew.
            db.execute(
                "UPDATE messages SET chain_key = NULL WHERE conversation_id = ?",
                (conversation_id,),
            )

    def set_sampling(self, conversation_id: int, values: Mapping[str, float]) -> None:
        """Keep what a person set for a conversation: numbers by names of settings."""
        self._change(conversation_id, "sampling", pack_sampling(values))

    def set_leaf(self, conversation_id: int, message_id: int | None) -> None:
        """Choose the path that is shown; None goes back to before the first message."""
        self._change(conversation_id, "leaf_id", message_id)

    def replace_leaf(self, conversation_id: int, expected: int | None, to: int | None) -> bool:
        """`set_leaf`, unless the path ends elsewhere than at `expected` by now: another app or an
        agent went on, and nobody's turn is hidden by somebody who does not know of it. Whether
        it was set."""
        with self.transaction() as db:
            is_expected = self._head(db, conversation_id).leaf_id == expected
            if is_expected:
                self._set(db, conversation_id, "leaf_id", to)
        return is_expected

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
        with self.transaction() as db:
            touch(db, conversation_id)
            return insert(db, conversation_id, parent_id, message, status, stats)

    def begin_turn(
        self,
        conversation_id: int,
        parent_id: int | None,
        question: Message,
        expected_leaf: int | EllipsisType | None = ...,
    ) -> tuple[int, int]:
        """Keep a question before work on it starts, with an empty partial answer as the leaf.

        Returns the ids of the question and of the answer. With an `expected_leaf`, raises
        ConversationWentOn if the path ends elsewhere by now; nothing is kept then.
        """
        answer = Message("assistant", "")
        with self.transaction() as db:
            if expected_leaf is not ... and (
                self._head(db, conversation_id).leaf_id != expected_leaf
            ):
                raise ConversationWentOn
            asked = insert(db, conversation_id, parent_id, question, "complete")
            answered = insert(db, conversation_id, asked, answer, "partial")
            self.writing.hold(answered)
            db.execute(
                "UPDATE conversations SET leaf_id = ? WHERE id = ?", (answered, conversation_id)
            )
            touch(db, conversation_id)
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
            storable(text),
            pack_ids(sampled_ids),
            checked(status),
            pack_stats(stats),
            storable(reasoning),
            pack_calls(tool_calls),
        )
        with self.transaction() as db:
            cursor = db.execute(
                "UPDATE messages SET text = ?, sampled_ids = ?, status = ?, stats = ?,"
                " reasoning = ?, tool_calls = ?, chain_key = NULL WHERE id = ?"
                " RETURNING conversation_id",
                (*values, message_id),
            )
            row = cursor.fetchone()
            if row is None:
                raise StoreError(f"{self.path} has no message {message_id}.")
            touch(db, row[0])
        if status != "partial":
            self.writing.release(message_id)

    def children(self, message_id: int | None, conversation_id: int) -> tuple[StoredMessage, ...]:
        """The continuations of a message, oldest first; of None: the first messages."""
        with self._reading() as db:
            rows = db.execute(
                f"SELECT {COLUMNS} FROM messages m"
                " WHERE m.conversation_id = ? AND m.parent_id IS ? ORDER BY m.id",
                (conversation_id, message_id),
            ).fetchall()
            return stored_all(db, rows)

    # Inside

    def _listed(self, which: str, limit: int, offset: int) -> tuple[ConversationSummary, ...]:
        with self._reading() as db:
            rows = db.execute(
                "SELECT c.id, c.title, c.model, count(m.id), c.updated_at, c.origin, c.client"
                " FROM conversations c JOIN messages m ON m.conversation_id = c.id"
                f" WHERE c.deleted_at IS NULL{which}"
                " GROUP BY c.id ORDER BY c.updated_at DESC, c.id DESC LIMIT ? OFFSET ?",
                (limit, offset),
            ).fetchall()
        return tuple(ConversationSummary(*row) for row in rows)

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
        with self.transaction("DEFERRED") as db:  # needs no write lock
            yield db

    @contextmanager
    def transaction(self, kind: str = "IMMEDIATE") -> Iterator[sqlite3.Connection]:
        """For what belongs to the store and has its own module (ledger.py)."""
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
            "SELECT id, title, model, system, leaf_id, origin, client, tools, sampling"
            " FROM conversations WHERE id = ?",
            (conversation_id,),
        ).fetchone()
        if row is None:
            raise StoreError(f"{self.path} has no conversation {conversation_id}.")
        *head, tools, sampling = row
        id_, title, model, system, leaf_id, origin, client = head
        told, values = unpack_tools(tools), unpack_sampling(sampling)
        return Conversation(id_, title, model, system, leaf_id, (), origin, client, told, values)

    def _show(self, conversation_id: int, message_id: int) -> None:
        with self.transaction() as db:
            if not is_on_path(db, message_id, self._head(db, conversation_id).leaf_id):
                self._set(db, conversation_id, "leaf_id", message_id)

    def _used_s(self, db: sqlite3.Connection, conversation_id: int) -> float:
        row = db.execute("SELECT updated_at FROM conversations WHERE id = ?", (conversation_id,))
        return float(row.fetchone()[0])

    def _change(self, conversation_id: int, column: str, value: str | int | None) -> None:
        with self.transaction() as db:
            self._set(db, conversation_id, column, value)

    def _set(
        self, db: sqlite3.Connection, conversation_id: int, column: str, value: str | int | None
    ) -> None:
        self._head(db, conversation_id)
        db.execute(f"UPDATE conversations SET {column} = ? WHERE id = ?", (value, conversation_id))
