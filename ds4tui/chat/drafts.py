"""What was typed and not sent, of each conversation and each app that has it open.

Several apps may use one database. A draft belongs to the app that keeps it as long as that runs;
what a dead one left is for whoever opens the conversation next. The functions raise StoreError.
"""

import fcntl
import json
import logging
import os
import secrets
import sqlite3
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ds4tui.chat import attachments
from ds4tui.chat.messages import Message
from ds4tui.chat.store import ConversationStore, title_of
from ds4tui.chat.store_rows import row_id, storable

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Draft:
    """What was typed; of it, the parts that were pasted and are shown folded, in order."""

    message: Message = Message("user", "")  # noqa: RUF009 (frozen, too)
    pastes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Waiting:
    """A draft of a conversation called `title`, and its first line with words."""

    title: str
    words: str


class RunningApp:
    """This app among those that use the `database`. A lock on a file beside it says that it runs;
    the system drops that however the app ends. Thread-safe as far as the store is."""

    def __init__(self, database: str) -> None:
        self.name = secrets.token_hex(8)
        self._database = database
        self._is_begun = database == ":memory:"
        self._lock: int | None = None  # an open file

    def begin(self) -> None:
        """Have others leave alone what is kept under this name. Where files cannot be locked they
        do not, and a draft belongs to who asks first."""
        if self._is_begun:
            return
        self._is_begun = True
        try:
            flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC
            self._lock = os.open(self._path(self.name), flags, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            log.warning("another ds4tui may take this one's drafts: %s", exc)

    def runs(self, name: str) -> bool:
        """Whether the app called `name` runs; what is left of one that does not is removed."""
        if name == self.name:
            return True
        if not name or self._database == ":memory:":
            return False
        path = self._path(name)
        try:
            with path.open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink(missing_ok=True)
        except BlockingIOError:
            return True
        except OSError as exc:
            log.debug("%s does not run: %s", name, exc)
        return False

    def end(self) -> None:
        """What is kept under this name is for others from now on."""
        if self._lock is not None:
            with suppress(OSError):  # whoever finds it sees that it is not locked
                self._path(self.name).unlink()
            os.close(self._lock)
            self._lock = None

    def _path(self, name: str) -> Path:
        return Path(f"{self._database}.app-{os.path.basename(name)}")


def keep(
    store: ConversationStore,
    app: RunningApp,
    conversation_id: int | None,
    draft: Message,
    pastes: Sequence[str] = (),
) -> None:
    """Keep `draft` in the place of what `app` kept of that conversation (None: of a chat that is
    none yet). An empty one is not kept; of a conversation that is gone, as of none."""
    is_empty = not (draft.text.strip() or draft.images)
    if not is_empty:
        app.begin()
    with store.transaction() as db:
        db.execute(
            "DELETE FROM drafts WHERE app = ? AND conversation_id IS ?",
            (app.name, conversation_id),
        )
        if is_empty:
            return
        known = db.execute("SELECT id FROM conversations WHERE id = ?", (conversation_id,))
        cursor = db.execute(
            "INSERT INTO drafts (conversation_id, app, text, kept_at, pastes)"
            " VALUES (?, ?, ?, ?, ?)",
            (
                conversation_id if known.fetchone() else None,
                app.name,
                storable(draft.text),
                time.time(),
                json.dumps(_places(draft.text, pastes)),
            ),
        )
        attachments.keep_of_draft(db, row_id(cursor), draft.images)


def take(store: ConversationStore, app: RunningApp, conversation_id: int | None) -> Message:
    """The draft of a conversation that `app` kept, else the newest that one left which does not
    run any more; it is `app`'s from now on. An empty message if there is none."""
    return taken(store, app, conversation_id).message


def taken(store: ConversationStore, app: RunningApp, conversation_id: int | None) -> Draft:
    """As `take`, with the pastes in it."""
    with store.transaction() as db:
        rows = db.execute(
            "SELECT id, text, pastes FROM drafts WHERE conversation_id IS ? AND app = ?",
            (conversation_id, app.name),
        ).fetchall()
        rows = rows or _left(db, app, conversation_id)
        if not rows:
            return Draft()
        app.begin()
        draft_id, text, places = rows[0]
        db.execute("UPDATE drafts SET app = ? WHERE id = ?", (app.name, draft_id))
        pastes = tuple(text[start:end] for start, end in json.loads(places))
        return Draft(_with_images(db, draft_id, text), pastes)


def waiting(store: ConversationStore, app: RunningApp) -> dict[int, Waiting]:
    """The drafts that `app` would show, by conversation, the newest last."""
    with store.transaction("DEFERRED") as db:
        rows = db.execute(
            "SELECT d.conversation_id, d.app, c.title, d.text FROM drafts d"
            " JOIN conversations c ON c.id = d.conversation_id"
            " WHERE c.deleted_at IS NULL ORDER BY d.id"
        ).fetchall()
    others = {name for name in {row[1] for row in rows} if name != app.name and app.runs(name)}
    return {
        id_: Waiting(title, title_of(text) or "a picture")
        for id_, name, title, text in rows
        if name not in others
    }


def _left(
    db: sqlite3.Connection, app: RunningApp, conversation_id: int | None
) -> list[tuple[int, str, str]]:
    """(id, text, places of pastes) of what apps left that do not run, the newest first."""
    rows = db.execute(
        "SELECT id, app, text, pastes FROM drafts WHERE conversation_id IS ? ORDER BY id DESC",
        (conversation_id,),
    )
    return [(id_, text, places) for id_, name, text, places in rows if not app.runs(name)]


def _places(text: str, pastes: Sequence[str]) -> list[tuple[int, int]]:
    """Where the `pastes` stand in `text`, in order."""
    places, at = [], 0
    for paste in pastes:
        start = text.find(paste, at)
        if start >= 0:
            at = start + len(paste)
            places.append((start, at))
    return places


def _with_images(db: sqlite3.Connection, draft_id: int, text: str) -> Message:
    """A picture whose file is gone is told in its place."""
    images = []
    put_in = 0
    for image, is_there in attachments.images_of_draft(db, draft_id):
        at = image.at + put_in
        if not is_there:
            words = f"[{image.name or 'picture'} is gone] "
            text = text[:at] + words + text[at:]
            put_in += len(words)
        else:
            images.append(image.moved(at))
    return Message("user", text, images=tuple(images))
