"""Drafts of each conversation and each app: kept, taken once, never another running app's."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ds4tui.chat.drafts import RunningApp, Waiting, keep, take, waiting
from ds4tui.chat.finding import delete, purge
from ds4tui.chat.messages import Image, Message
from ds4tui.chat.migrations import MIGRATIONS, migrate
from ds4tui.chat.store import ConversationStore
from ds4tui.errors import StoreError

NONE = Message("user", "")
SEEN = Message("user", "see  there", images=(Image(b"one", 4, "a.png"), Image(b"two", 4)))


def words(text: str) -> Message:
    return Message("user", text)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "c.db"


@pytest.fixture
def store(path: Path) -> Iterator[ConversationStore]:
    store = ConversationStore(path)
    yield store
    store.close()


def conversation(store: ConversationStore, title: str = "t") -> int:
    chat = store.create(title).id
    store.set_leaf(chat, store.add_message(chat, None, words(title)))
    return chat


def test_each_conversation_has_a_draft_of_its_own_with_its_images(
    store: ConversationStore,
) -> None:
    app, chat = RunningApp(store.path), conversation(store)
    keep(store, app, chat, Message("user", "older", images=(Image(b"old"),)))
    keep(store, app, chat, SEEN)
    keep(store, app, None, words("of a new chat"))
    assert take(store, app, chat) == SEEN and take(store, app, None) == words("of a new chat")
    assert take(store, app, chat) == SEEN  # it stays until another is kept
    keep(store, app, chat, NONE)
    assert take(store, app, chat) == NONE
    keep(store, app, chat, Message("user", "", images=(Image(b"one"),)))
    assert take(store, app, chat).images == (Image(b"one"),)
    app.end()


def test_a_running_app_keeps_its_draft_and_a_dead_one_leaves_it(store: ConversationStore) -> None:
    chat = conversation(store)
    first, second = RunningApp(store.path), RunningApp(store.path)
    keep(store, first, chat, words("of the first"))
    assert take(store, second, chat) == NONE and waiting(store, second) == {}
    keep(store, second, chat, words("of the second"))
    assert take(store, first, chat) == words("of the first")
    first.end()
    assert take(store, second, chat) == words("of the second")  # its own comes first
    keep(store, second, chat, NONE)
    assert take(store, second, chat) == words("of the first")
    second.end()
    third = RunningApp(store.path)
    assert waiting(store, third) == {chat: Waiting("t", "of the first")}
    assert take(store, third, chat) == words("of the first")
    third.end()


CHILD = """
import sys
from ds4tui.chat.drafts import RunningApp, keep
from ds4tui.chat.messages import Message
from ds4tui.chat.store import ConversationStore
store = ConversationStore(sys.argv[1])
app = RunningApp(store.path)
keep(store, app, None, Message("user", "typed before the kill"))
print("kept", flush=True)
sys.stdin.read()
"""


def test_what_a_killed_app_had_kept_is_there_and_nothing_else_of_it(
    store: ConversationStore, path: Path
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout is not None and child.stdout.readline() == b"kept\n"
        app = RunningApp(store.path)
        assert take(store, app, None) == NONE
        os.kill(child.pid, signal.SIGKILL)
        child.wait(20)
    assert take(store, app, None) == words("typed before the kill")
    app.end()
    assert [p for p in path.parent.iterdir() if ".app-" in p.name] == []


def test_a_picture_whose_file_is_gone_is_told_in_its_place(
    store: ConversationStore, path: Path
) -> None:
    app = RunningApp(store.path)
    keep(store, app, None, SEEN)
    db = sqlite3.connect(path)
    db.execute("DELETE FROM attachments WHERE content = ?", (b"one",))
    db.commit()
    db.close()
    draft = take(store, app, None)
    assert draft.text == "see [a.png is gone]  there"
    assert draft.images == (Image(b"two", len("see [a.png is gone] ")),)
    app.end()


def test_a_draft_of_a_conversation_that_is_gone_is_one_of_a_new_chat(
    store: ConversationStore,
) -> None:
    app, chat, kept = RunningApp(store.path), conversation(store), conversation(store)
    keep(store, app, chat, words("with it"))
    keep(store, app, kept, SEEN)
    delete(store, chat)
    assert set(waiting(store, app)) == {kept}
    assert purge(store, older_than_s=-1) == 1
    assert take(store, app, chat) == NONE and take(store, app, kept) == SEEN
    keep(store, app, chat, words("typed since"))
    assert take(store, app, None) == words("typed since")
    app.end()


def test_the_draft_of_an_older_version_comes_back_with_its_pictures(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    db = sqlite3.connect(path, isolation_level=None)
    migrate(db, MIGRATIONS[:8])
    db.execute("PRAGMA application_id = 0x64733474")
    db.execute("INSERT INTO draft VALUES (1, 'look ')")
    db.execute("INSERT INTO attachments VALUES ('aa', 'image/png', x'0102', 0)")
    db.execute("INSERT INTO draft_attachments VALUES (0, 'aa', 5, 'a.png')")
    db.close()
    store = ConversationStore(path)
    app = RunningApp(store.path)
    wanted = Message("user", "look ", images=(Image(b"\x01\x02", 5, "a.png"),))
    assert take(store, app, None) == wanted
    app.end()
    store.close()


def test_a_store_in_memory_has_drafts_too_and_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = ConversationStore.in_memory()
    app = RunningApp(store.path)
    keep(store, app, None, words("draft"))
    assert take(store, app, None) == words("draft")
    app.end()
    assert list(tmp_path.iterdir()) == []
    store.close()
    with pytest.raises(StoreError):
        take(store, app, None)


def test_where_files_cannot_be_locked_a_draft_is_kept_all_the_same(
    store: ConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError("no locks here")

    monkeypatch.setattr("ds4tui.chat.drafts.fcntl.flock", refuse)
    app, other = RunningApp(store.path), RunningApp(store.path)
    keep(store, app, None, words("draft"))
    assert take(store, app, None) == words("draft")
    assert take(store, other, None) == words("draft")  # who asks first has it
    app.end()
    other.end()
