"""The conversation database in a temporary folder: made, opened again, and brought up to date."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

from ds4tui.selftest.checks import Check, expect


def store_checks(folder: Path) -> Iterator[Check]:
    yield Check("conversations kept and opened again", lambda: _keeps(folder / "new.sqlite3"))
    yield Check(
        "an old database of conversations brought up to date",
        lambda: _migrates(folder / "old.sqlite3"),
    )


def _keeps(path: Path) -> str:
    from ds4tui.chat.messages import Message
    from ds4tui.chat.store import ConversationStore

    store = ConversationStore(path)
    try:
        kept = store.create("title")
        _, answer = store.begin_turn(kept.id, None, Message("user", "ä question"))
        store.update_message(answer, "an answer", (1, 2, 3), "complete", None)
    finally:
        store.close()
    store = ConversationStore(path)
    try:
        turns = [(m.message.role, m.message.text) for m in store.load(kept.id).path]
        wanted = [("user", "ä question"), ("assistant", "an answer")]
        expect(turns == wanted, f"{turns} came back")
    finally:
        store.close()
    return f"sqlite {sqlite3.sqlite_version}"


def _migrates(path: Path) -> str:
    from ds4tui.chat.drafts import RunningApp, keep, take
    from ds4tui.chat.messages import Message
    from ds4tui.chat.migrations import MIGRATIONS, migrate
    from ds4tui.chat.store import APPLICATION_ID, ConversationStore

    db = sqlite3.connect(path)
    try:
        migrate(db, MIGRATIONS[:1])
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute("INSERT INTO conversations VALUES (1, 'old', '', '', NULL, 0, 0)")
        db.commit()
    finally:
        db.close()
    store = ConversationStore(path)
    try:
        expect(store.load(1).title == "old", "what it held is gone")
        draft = Message("user", "draft")
        app, other = RunningApp(store.path), RunningApp(store.path)
        keep(store, app, 1, draft)
        expect(take(store, other, 1) == Message("user", ""), "a draft went to another app")
        app.end()
        expect(take(store, other, 1) == draft, "the draft is another")
        other.end()
    finally:
        store.close()
    return f"{len(MIGRATIONS)} steps"
