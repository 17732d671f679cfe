"""Rows of the conversation database: messages to columns and back.

The functions work in the caller's transaction; what sqlite objects to is the caller's.
"""

import json
import sqlite3
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ds4tui.chat import attachments
from ds4tui.chat.messages import Image, Message, Tool, ToolCall

MessageStatus = Literal["complete", "partial", "cancelled", "failed"]
STATUSES: tuple[str, ...] = get_args(MessageStatus)


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message where it stands in its tree.

    `status`: complete; partial (at work, or the process ended while it was streaming); cancelled
    (stopped by the person); failed. `stats` is what the front-end put there (JSON values).
    """

    id: int
    parent_id: int | None
    message: Message
    status: MessageStatus
    stats: dict[str, Any] | None
    created_at: float  # seconds since the epoch
    client: str = ""  # the program that sent it or was answered; "": a person in the app


COLUMNS = (
    "m.id, m.parent_id, m.role, m.text, m.sampled_ids, m.status, m.stats, m.created_at,"
    " m.reasoning, m.tool_calls, m.tool_call_id, m.name, m.client"
)
# A parent is always older than its child, so the path in order of ids is the path in order.
PATH_SQL = f"""
    WITH RECURSIVE path (id) AS (
        SELECT :leaf
        UNION ALL
        SELECT m.parent_id FROM messages m JOIN path ON m.id = path.id
        WHERE m.parent_id > :after
    )
    SELECT {COLUMNS} FROM messages m JOIN path ON m.id = path.id
    WHERE m.id > :after ORDER BY m.id
"""


def insert(
    db: sqlite3.Connection,
    conversation_id: int,
    parent_id: int | None,
    message: Message,
    status: MessageStatus,
    stats: dict[str, Any] | None = None,
    client: str = "",
    chain_key: bytes | None = None,
) -> int:
    """Write a message with its images; its id."""
    values = (
        conversation_id,
        parent_id,
        message.role,
        storable(message.text),
        pack_ids(message.sampled_ids),
        checked(status),
        pack_stats(stats),
        time.time(),
        storable(message.reasoning),
        pack_calls(message.tool_calls),
        storable(message.tool_call_id),
        storable(message.name),
        client,
        chain_key,
    )
    cursor = db.execute(
        "INSERT INTO messages (conversation_id, parent_id, role, text, sampled_ids, status,"
        " stats, created_at, reasoning, tool_calls, tool_call_id, name, client, chain_key)"
        f" VALUES ({', '.join('?' * len(values))})",
        values,
    )
    message_id = row_id(cursor)
    attachments.keep(db, message_id, message.images)
    return message_id


def touch(db: sqlite3.Connection, conversation_id: int) -> None:
    """The conversation was used now, which brings it back if it was deleted."""
    db.execute(
        "UPDATE conversations SET updated_at = ?, deleted_at = NULL WHERE id = ?",
        (time.time(), conversation_id),
    )


def is_on_path(db: sqlite3.Connection, message_id: int | None, leaf_id: int | None) -> bool:
    """Whether the path that ends at `leaf_id` leads through `message_id` (None: it always does)."""
    while leaf_id is not None and message_id is not None and leaf_id > message_id:
        row = db.execute("SELECT parent_id FROM messages WHERE id = ?", (leaf_id,)).fetchone()
        leaf_id = row[0] if row else None
    return message_id is None or leaf_id == message_id


def row_id(cursor: sqlite3.Cursor) -> int:
    assert cursor.lastrowid is not None  # an INSERT into a rowid table always has one
    return cursor.lastrowid


def checked(status: str) -> str:
    if status not in STATUSES:
        raise ValueError(f"status must be one of {', '.join(STATUSES)}, not {status!r}")
    return status


def storable(text: str) -> str:
    """`text` with lone surrogates (undecodable input) replaced: sqlite keeps UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


def pack_ids(ids: Sequence[int] | None) -> bytes | None:
    return None if ids is None else struct.pack(f"<{len(ids)}i", *ids)  # int32, little-endian


def _unpack_ids(blob: bytes | None) -> tuple[int, ...] | None:
    return None if blob is None else struct.unpack(f"<{len(blob) // 4}i", blob)


def pack_stats(stats: dict[str, Any] | None) -> str | None:
    return None if stats is None else json.dumps(stats)


def pack_calls(calls: Sequence[ToolCall]) -> str:
    told = [[storable(part) for part in (c.id, c.name, c.arguments)] for c in calls]
    return json.dumps(told, ensure_ascii=False) if told else ""


def _unpack_calls(text: str) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(*parts) for parts in json.loads(text)) if text else ()


def pack_tools(tools: Sequence[Tool]) -> str:
    told = [[storable(part) for part in (t.name, t.description, t.parameters)] for t in tools]
    return json.dumps(told, ensure_ascii=False) if told else ""


def unpack_tools(text: str) -> tuple[Tool, ...]:
    return tuple(Tool(*parts) for parts in json.loads(text)) if text else ()


def pack_sampling(values: Mapping[str, float]) -> str:
    return json.dumps(dict(values)) if values else ""


def unpack_sampling(text: str) -> dict[str, float]:
    """Numbers by name; others are left out."""
    told = json.loads(text) if text else {}
    return {name: v for name, v in told.items() if type(v) in (int, float)}


def stored_all(
    db: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]
) -> tuple[StoredMessage, ...]:
    """Rows of COLUMNS as messages, with their images."""
    images = attachments.images_of(db, [row[0] for row in rows])
    return tuple(_stored(row, images.get(row[0], ())) for row in rows)


def _stored(row: tuple[Any, ...], images: tuple[Image, ...]) -> StoredMessage:
    id_, parent_id, role, text, blob, status, stats, created_at, *told = row
    reasoning, calls, tool_call_id, name, client = told
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
    known = None if stats is None else json.loads(stats)
    return StoredMessage(id_, parent_id, message, status, known, created_at, client)
