"""What agents send over HTTP as conversations of the store.

An agent sends its whole history with each request. Each stored message has a chain key: a running
key of the conversation up to it (conversation_keys.py says what does not count in it), so the
deepest known beginning of a request is found by looking for keys, and only what follows it is
written. A request goes on with a known conversation if it holds one of its replies, or is an
agent's last request again; any other one begins a conversation, however alike they begin.

Keys of messages that the app wrote, or wrote anew, are told when the next request asks for them.
"""

import logging
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ds4tui.chat.conversation_keys import Contents, ConversationKeys
from ds4tui.chat.messages import Message, Tool, ToolCall
from ds4tui.chat.replay import whole_replies
from ds4tui.chat.store import ConversationStore, MessageStatus, title_of
from ds4tui.chat.store_rows import (
    COLUMNS,
    insert,
    is_on_path,
    pack_tools,
    row_id,
    storable,
    stored_all,
    touch,
)
from ds4tui.errors import StoreError

log = logging.getLogger(__name__)

# One transaction tells the keys of so many messages: the app waits for no more.
FILLED_AT_ONCE = 500

# What clients put before a person's words: <environment_context>..</environment_context>
_BLOCK = re.compile(r"\s*<([\w-]+)[^>]*>.*?</\1>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for a reply to `messages`, as `client` sent it to the model."""

    messages: tuple[Message, ...]
    client: str
    model: str
    tools: tuple[Tool, ...] = ()


@dataclass(frozen=True, slots=True)
class Joined:
    """Where a request stands: its conversation, and the reply, which is partial at first."""

    conversation_id: int
    reply_id: int
    known: int  # messages of it that were stored before, the system text not counted
    is_shown: bool  # whether the conversation's path ends with the reply


@dataclass(frozen=True, slots=True)
class ReplySoFar:
    """A reply as far as it is written."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    sampled_ids: tuple[int, ...] | None = None
    status: MessageStatus = "partial"
    stats: dict[str, Any] | None = None


class ConversationLedger:
    """Writes on a thread of its own, in order. What fails there is logged and told once to
    `on_problem`, on that thread; nobody's reply waits for it. `on_change` is called there, too."""

    def __init__(self, store: ConversationStore) -> None:
        self.on_problem: Callable[[StoreError], None] = lambda problem: None
        self.on_change: Callable[[Joined], None] = lambda joined: None
        self._store = store
        self._contents = Contents()
        self._is_told = False
        self._lock = threading.Lock()  # of what belongs to the joining thread
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ds4tui-ledger")

    def use(self, store: ConversationStore) -> None:
        """Write to another store from now on: the one before failed."""
        self._store = store

    def record(self, asked: Asked) -> "Recording":
        """Have a request written; returns at once."""
        recording = Recording(self, asked)
        self.write(recording.join)
        return recording

    def write(self, work: Callable[[], None]) -> None:
        """Do `work` on the ledger's thread, after what was handed in before."""
        with suppress(RuntimeError):  # closed: the process ends
            self._thread.submit(self._guarded, work)

    def wait(self) -> None:
        """Wait for what was handed in so far."""
        with suppress(RuntimeError):  # closed
            self._thread.submit(lambda: None).result()

    def close(self) -> None:
        """Wait for what was handed in."""
        self._thread.shutdown(wait=True)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except StoreError as exc:
            log.error("an agent's conversation could not be kept: %s", exc)
            if not self._is_told:
                self._is_told = True
                self.on_problem(exc)
        except Exception:  # the thread's root: a reply must not end because of its record
            log.exception("an agent's conversation could not be kept")

    # What waits for the disk

    def join(self, asked: Asked) -> Joined:
        """Write what of a request is new, with an empty partial reply. Raises StoreError."""
        system, messages = parted(asked.messages)
        with self._lock:
            keys = self._keys(system, messages)
            while self._fill():
                pass
            with self._store.transaction() as db:
                depth, parent_id = _deepest(db, keys)
                if not _goes_on(db, messages, depth, parent_id):
                    depth, parent_id = 0, None
                conversation_id = _conversation(db, asked, system, messages, parent_id)
                for message, key in zip(messages[depth:], keys[depth:], strict=True):
                    parent_id = insert(
                        db,
                        conversation_id,
                        parent_id,
                        message,
                        "complete",
                        client=asked.client,
                        chain_key=key,
                    )
                reply = Message("assistant", "")
                reply_id = insert(
                    db, conversation_id, parent_id, reply, "partial", client=asked.client
                )
                self._store.writing.hold(reply_id)
                is_shown = _take_leaf(db, conversation_id, reply_id)
                touch(db, conversation_id)
            self._is_told = False
        return Joined(conversation_id, reply_id, depth, is_shown)

    def note(self, joined: Joined, reply: ReplySoFar) -> None:
        """Write what is known of a reply by now, whole. Raises StoreError."""
        self._store.update_message(
            joined.reply_id,
            reply.text,
            reply.sampled_ids,
            reply.status,
            reply.stats,
            reply.reasoning,
            reply.calls,
        )

    def _keys(self, system: str, messages: Sequence[Message]) -> list[bytes]:
        keys = ConversationKeys(None, self._contents, after=self._root_key(system))
        return [keys.add(message) for message in messages]

    def _root_key(self, system: str) -> bytes:
        if not system:
            return b""
        return ConversationKeys(None, self._contents).add(Message("system", system))

    def _fill(self) -> bool:
        """Tell the keys of some messages that have none; whether there were as many as may be."""
        with self._store.transaction() as db:
            rows = db.execute(
                f"SELECT {COLUMNS} FROM messages m WHERE m.chain_key IS NULL ORDER BY m.id LIMIT ?",
                (FILLED_AT_ONCE,),
            ).fetchall()
            for stored in stored_all(db, rows):
                before = self._key_before(db, stored.id, stored.parent_id)
                key = ConversationKeys(None, self._contents, after=before).add(stored.message)
                db.execute("UPDATE messages SET chain_key = ? WHERE id = ?", (key, stored.id))
        return len(rows) == FILLED_AT_ONCE

    def _key_before(self, db: sqlite3.Connection, id_: int, parent_id: int | None) -> bytes:
        if parent_id is not None:  # which is older, so it has its key by now
            row = db.execute("SELECT chain_key FROM messages WHERE id = ?", (parent_id,))
            return bytes(row.fetchone()[0])
        row = db.execute(
            "SELECT c.system FROM conversations c JOIN messages m ON m.conversation_id = c.id"
            " WHERE m.id = ?",
            (id_,),
        )
        return self._root_key(row.fetchone()[0])


class Recording:
    """One request and its reply on their way into the store. `note` and `end` may be called from
    any thread and return at once."""

    def __init__(self, ledger: ConversationLedger, asked: Asked) -> None:
        self.joined: Joined | None = None
        """Where it stands, once that is written."""
        self._ledger = ledger
        self._asked: Asked | None = asked

    def join(self) -> None:
        """On the ledger's thread."""
        asked, self._asked = self._asked, None  # a history is held no longer than needed
        assert asked is not None
        self.joined = self._ledger.join(asked)
        self._ledger.on_change(self.joined)

    def note(self, reply: ReplySoFar) -> None:
        """Have the reply so far written."""
        self._ledger.write(lambda: self._note(reply))

    def _note(self, reply: ReplySoFar) -> None:
        if self.joined is not None:
            self._ledger.note(self.joined, reply)
            if reply.status != "partial":
                self._ledger.on_change(self.joined)


def parted(messages: Sequence[Message]) -> tuple[str, list[Message]]:
    """The system text that a request begins with, "" if none, and its other messages, replies
    that came back in pieces put together."""
    told = whole_replies(messages)
    if told and told[0].role == "system":
        return told[0].text, told[1:]
    return "", told


def title_for(messages: Sequence[Message]) -> str:
    """By the first words that are a person's and not a client's."""
    said = (_BLOCK.sub("", m.text) for m in messages if m.role == "user")
    first = next((text for text in said if text.strip()), "")
    return title_of(first) or title_of(next((m.text for m in messages), ""))


def _deepest(db: sqlite3.Connection, keys: Sequence[bytes]) -> tuple[int, int | None]:
    """How many of a request's messages are known, and the last of them; of several that are the
    same, that of the conversation used last."""
    low, high = 0, len(keys)
    while low < high:  # what stands before a known message is known
        middle = (low + high + 1) // 2
        row = db.execute("SELECT 1 FROM messages WHERE chain_key = ?", (keys[middle - 1],))
        low, high = (middle, high) if row.fetchone() else (low, middle - 1)
    if not low:
        return 0, None
    found = db.execute(
        "SELECT m.id FROM messages m JOIN conversations c ON c.id = m.conversation_id"
        " WHERE m.chain_key = ? ORDER BY c.updated_at DESC, m.id = c.leaf_id DESC, m.id DESC",
        (keys[low - 1],),
    ).fetchone()
    return low, int(found[0])


def _goes_on(
    db: sqlite3.Connection, messages: Sequence[Message], depth: int, parent_id: int | None
) -> bool:
    """Whether a request belongs to the conversation of which it shares `depth` messages: clients
    begin all conversations with the same words."""
    if any(message.role == "assistant" for message in messages[:depth]):
        return True
    if depth < len(messages) or parent_id is None:
        return False
    row = db.execute("SELECT client FROM messages WHERE id = ?", (parent_id,)).fetchone()
    return bool(row[0])


def _conversation(
    db: sqlite3.Connection,
    asked: Asked,
    system: str,
    messages: Sequence[Message],
    parent_id: int | None,
) -> int:
    """The conversation that a request belongs to, made if it begins one."""
    tools = pack_tools(asked.tools)
    if parent_id is None:
        cursor = db.execute(
            "INSERT INTO conversations (title, model, system, created_at, updated_at, origin,"
            " client, tools) VALUES (?, ?, ?, ?, 0, 'agent', ?, ?)",
            (
                storable(title_for(messages)),
                asked.model,
                storable(system),
                time.time(),
                asked.client,
                tools,
            ),
        )
        return row_id(cursor)
    row = db.execute("SELECT conversation_id FROM messages WHERE id = ?", (parent_id,)).fetchone()
    db.execute(
        "UPDATE conversations SET client = ?1, tools = ?2 WHERE id = ?3"
        " AND (client, tools) IS NOT (?1, ?2)",
        (asked.client, tools, row[0]),
    )
    return int(row[0])


def _take_leaf(db: sqlite3.Connection, conversation_id: int, reply_id: int) -> bool:
    """Show the path to the reply, unless that hides what a person wrote; whether it is shown."""
    row = db.execute(
        "SELECT c.leaf_id, m.client FROM conversations c LEFT JOIN messages m ON m.id = c.leaf_id"
        " WHERE c.id = ?",
        (conversation_id,),
    ).fetchone()
    leaf_id, client = row
    is_free = leaf_id is None or bool(client) or is_on_path(db, leaf_id, reply_id)
    if is_free:
        db.execute("UPDATE conversations SET leaf_id = ? WHERE id = ?", (reply_id, conversation_id))
    return is_free
