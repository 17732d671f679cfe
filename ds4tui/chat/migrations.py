"""How the conversation database got its shape: a numbered list to which entries are only added.

The names of those that ran stand in the table `migrations`. A shipped entry is never edited:
a database made by any earlier ds4tui then ends in the same shape as a new one, and a database
that holds a name unknown here was made by a newer ds4tui.
"""

import sqlite3
import time
from collections.abc import Callable

Migration = tuple[str, Callable[[sqlite3.Connection], None]]


def _conversations(db: sqlite3.Connection) -> None:
    # A leaf and a parent must lie in the same conversation, hence the two-column references.
    # A conversation and its leaf point at each other, so that check waits for the commit.
    db.execute(
        """
        CREATE TABLE conversations (
            id INTEGER PRIMARY KEY,
            title TEXT NOT NULL,
            model TEXT NOT NULL,
            system TEXT NOT NULL,
            leaf_id INTEGER,
            created_at REAL NOT NULL,
            updated_at REAL NOT NULL,
            FOREIGN KEY (leaf_id, id) REFERENCES messages (id, conversation_id)
                DEFERRABLE INITIALLY DEFERRED
        )
        """
    )
    db.execute(
        """
        CREATE TABLE messages (
            id INTEGER PRIMARY KEY,
            conversation_id INTEGER NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
            parent_id INTEGER,
            role TEXT NOT NULL CHECK (role IN ('system', 'user', 'assistant', 'tool')),
            text TEXT NOT NULL,
            sampled_ids BLOB,
            status TEXT NOT NULL
                CHECK (status IN ('complete', 'partial', 'cancelled', 'failed')),
            stats TEXT,
            created_at REAL NOT NULL,
            UNIQUE (id, conversation_id),
            FOREIGN KEY (parent_id, conversation_id) REFERENCES messages (id, conversation_id)
        )
        """
    )
    db.execute("CREATE INDEX messages_by_parent ON messages (conversation_id, parent_id)")
    db.execute("CREATE INDEX conversations_by_use ON conversations (updated_at)")


def _attachments(db: sqlite3.Connection) -> None:
    db.execute(
        """
        CREATE TABLE attachments (
            hash TEXT PRIMARY KEY,
            media_type TEXT NOT NULL,
            content BLOB NOT NULL,
            created_at REAL NOT NULL
        ) WITHOUT ROWID
        """
    )
    db.execute(
        """
        CREATE TABLE message_attachments (
            message_id INTEGER NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
            position INTEGER NOT NULL,
            hash TEXT NOT NULL REFERENCES attachments (hash),
            PRIMARY KEY (message_id, position)
        )
        """
    )


def _draft(db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE draft (id INTEGER PRIMARY KEY CHECK (id = 1), text TEXT NOT NULL)")


def _tool_calls(db: sqlite3.Connection) -> None:
    # tool_calls is JSON: a list of [id, name, arguments]; arguments is JSON text itself, so that
    # it stays to the byte what it was.
    for column in ("reasoning", "tool_calls", "tool_call_id", "name"):
        db.execute(f"ALTER TABLE messages ADD COLUMN {column} TEXT NOT NULL DEFAULT ''")


def _places_of_images(db: sqlite3.Connection) -> None:
    # `position` is the number of an image among those of its message, `at` the character of the
    # message's text before which it stands.
    db.execute("ALTER TABLE message_attachments ADD COLUMN at INTEGER NOT NULL DEFAULT 0")
    db.execute("ALTER TABLE message_attachments ADD COLUMN name TEXT NOT NULL DEFAULT ''")


def _images_of_drafts(db: sqlite3.Connection) -> None:
    db.execute(
        """
        CREATE TABLE draft_attachments (
            position INTEGER PRIMARY KEY,
            hash TEXT NOT NULL REFERENCES attachments (hash),
            at INTEGER NOT NULL,
            name TEXT NOT NULL
        )
        """
    )


def _agents(db: sqlite3.Connection) -> None:
    # A conversation's `origin` is person or agent, `client` the program that worked on it last,
    # `tools` JSON: a list of [name, description, parameters]. A message's `client` is the program
    # that sent it, "" for a person. A chain key (ledger.py) that is NULL is told when it is needed.
    db.execute("ALTER TABLE conversations ADD COLUMN origin TEXT NOT NULL DEFAULT 'person'")
    for table, column in (
        ("conversations", "client"),
        ("conversations", "tools"),
        ("messages", "client"),
    ):
        db.execute(f"ALTER TABLE {table} ADD COLUMN {column} TEXT NOT NULL DEFAULT ''")
    db.execute("ALTER TABLE messages ADD COLUMN chain_key BLOB")
    db.execute("CREATE INDEX messages_by_chain_key ON messages (chain_key)")


def _deleted(db: sqlite3.Connection) -> None:
    # When a conversation was taken out of the list, in seconds since the epoch; NULL: it was not.
    db.execute("ALTER TABLE conversations ADD COLUMN deleted_at REAL")


def _drafts(db: sqlite3.Connection) -> None:
    # One for each app that has the conversation open (NULL: a chat that is none yet); `app` is
    # the one that keeps it, "" if none does any more.
    db.execute(
        """
        CREATE TABLE drafts (
            id INTEGER PRIMARY KEY,
            conversation_id INTEGER REFERENCES conversations (id) ON DELETE CASCADE,
            app TEXT NOT NULL,
            text TEXT NOT NULL,
            kept_at REAL NOT NULL
        )
        """
    )
    db.execute(
        """
        CREATE TABLE images_of_drafts (
            draft_id INTEGER NOT NULL REFERENCES drafts (id) ON DELETE CASCADE,
            position INTEGER NOT NULL,
            hash TEXT NOT NULL REFERENCES attachments (hash),
            at INTEGER NOT NULL,
            name TEXT NOT NULL,
            PRIMARY KEY (draft_id, position)
        )
        """
    )
    db.execute("INSERT INTO drafts SELECT id, NULL, '', text, ? FROM draft", (time.time(),))
    db.execute(
        "INSERT INTO images_of_drafts SELECT d.id, a.position, a.hash, a.at, a.name"
        " FROM draft d JOIN draft_attachments a"
    )
    db.execute("DROP TABLE draft_attachments")
    db.execute("DROP TABLE draft")


def _sampling(db: sqlite3.Connection) -> None:
    # What a person set for this conversation, as JSON: numbers by names of settings; "": nothing.
    db.execute("ALTER TABLE conversations ADD COLUMN sampling TEXT NOT NULL DEFAULT ''")


def _pastes_of_drafts(db: sqlite3.Connection) -> None:
    # Which parts of a draft's text the prompt shows folded: JSON, a list of [start, end).
    db.execute("ALTER TABLE drafts ADD COLUMN pastes TEXT NOT NULL DEFAULT '[]'")


MIGRATIONS: tuple[Migration, ...] = (
    ("0001_conversations", _conversations),
    ("0002_attachments", _attachments),
    ("0003_draft", _draft),
    ("0004_tool_calls", _tool_calls),
    ("0005_places_of_images", _places_of_images),
    ("0006_images_of_drafts", _images_of_drafts),
    ("0007_agents", _agents),
    ("0008_deleted", _deleted),
    ("0009_drafts", _drafts),
    ("0010_sampling", _sampling),
    ("0011_pastes_of_drafts", _pastes_of_drafts),
)


def applied_names(db: sqlite3.Connection) -> frozenset[str]:
    """The names of the migrations that ran in `db`; empty for a new database."""
    db.execute(
        "CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY, applied_at REAL NOT NULL)"
    )
    return frozenset(row[0] for row in db.execute("SELECT name FROM migrations"))


def migrate(db: sqlite3.Connection, migrations: tuple[Migration, ...] = MIGRATIONS) -> None:
    """Run what has not run yet, in order. The caller holds the write transaction."""
    applied = applied_names(db)
    for name, change in migrations:
        if name not in applied:
            change(db)
            db.execute("INSERT INTO migrations VALUES (?, ?)", (name, time.time()))
