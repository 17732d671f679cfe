"""Who writes a reply, told over processes by locks that the system drops with them."""

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ds4tui.chat.branching import begin_again
from ds4tui.chat.ledger import Asked, ConversationLedger, ReplySoFar
from ds4tui.chat.messages import Message
from ds4tui.chat.store import ConversationStore
from ds4tui.chat.writing import LEFT_S, Writing

CHILD = """
import os, signal, sys
from ds4tui.chat.messages import Message
from ds4tui.chat.store import ConversationStore
store = ConversationStore(sys.argv[1])
_, reply = store.begin_turn(store.create().id, None, Message("user", "hi"))
print(reply, flush=True)
sys.stdin.read()
"""


def left(database: Path) -> list[str]:
    return sorted(p.name for p in database.parent.iterdir() if ".writing-" in p.name)


def test_a_reply_of_another_process_is_held_until_that_is_killed(tmp_path: Path) -> None:
    database = tmp_path / "c.db"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(database)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout is not None
        reply = int(child.stdout.readline())
        store = ConversationStore(database)
        assert store.writing.is_held(reply) is True
        child.kill()
        child.wait(20)
        assert store.writing.is_held(reply) is False
        assert store.writing.is_held(reply) is False  # and so it stays
    store.close()


def test_a_reply_is_held_from_when_others_can_see_it_to_its_end(tmp_path: Path) -> None:
    database = tmp_path / "c.db"
    mine, other = ConversationStore(database), ConversationStore(database)
    chat = mine.create().id
    asked, reply = mine.begin_turn(chat, None, Message("user", "hi"))
    assert mine.writing.is_held(reply) is True and other.writing.is_held(reply) is True
    mine.update_message(reply, "so far", None, "partial", None)
    assert other.writing.is_held(reply) is True
    mine.update_message(reply, "whole", None, "complete", None)
    assert mine.writing.is_held(reply) is None and other.writing.is_held(reply) is None
    again = begin_again(mine, chat, asked, reply)
    assert other.writing.is_held(again) is True
    mine.close()
    assert other.writing.is_held(again) is None and left(database) == []
    other.close()


def test_so_is_an_agent_s(tmp_path: Path) -> None:
    database = tmp_path / "c.db"
    mine, other = ConversationStore(database), ConversationStore(database)
    ledger = ConversationLedger(mine)
    joined = ledger.join(Asked((Message("user", "hi"),), "codex", "fake"))
    assert other.writing.is_held(joined.reply_id) is True
    ledger.note(joined, ReplySoFar("done", status="failed"))
    assert other.writing.is_held(joined.reply_id) is None
    ledger.close()
    mine.close()
    other.close()


def test_what_was_left_long_ago_is_removed_and_what_is_held_is_not(tmp_path: Path) -> None:
    database = tmp_path / "c.db"
    writing = Writing(str(database))
    writing.hold(3)
    for name in ("c.db.writing-1", "c.db.writing-2", "c.db.writing-x", "other.db.writing-1"):
        (tmp_path / name).touch()
    long_ago = time.time() - 2 * LEFT_S
    for number in (1, 3):
        os.utime(tmp_path / f"c.db.writing-{number}", (long_ago, long_ago))
    ConversationStore(database).close()
    assert left(database) == [
        "c.db.writing-2",  # fresh: who follows that reply shall be told
        "c.db.writing-3",
        "c.db.writing-x",
        "other.db.writing-1",
    ]
    writing.close()


def test_where_files_cannot_be_locked_nothing_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no locks here")

    database = tmp_path / "c.db"
    monkeypatch.setattr(fcntl, "flock", refuse)
    store = ConversationStore(database)
    _, reply = store.begin_turn(store.create().id, None, Message("user", "hi"))
    assert store.writing.is_held(reply) is None and left(database) == []
    (tmp_path / "c.db.writing-77").touch()
    assert store.writing.is_held(77) is None
    store.update_message(reply, "whole", None, "complete", None)
    store.close()


def test_a_store_in_memory_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = ConversationStore.in_memory()
    _, reply = store.begin_turn(store.create().id, None, Message("user", "hi"))
    assert store.writing.is_held(reply) is None and not list(tmp_path.iterdir())
    store.close()
