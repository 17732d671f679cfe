"""Replies outlive the process, within a bound, and a broken file is a reply that is not known."""

import errno
import logging
import sqlite3
import stat
from array import array
from pathlib import Path

import pytest

from ds4tui.chat import saved_replies
from ds4tui.chat.saved_replies import SavedReplies


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def test_ids_are_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "replies.sqlite3"
    first = SavedReplies(path, b"a")
    first.save(key(1), (5, 2**31 - 1))
    first.save(key(1), (5, 6, 7))
    first.save(key(2), ())
    first.close()
    again = SavedReplies(path, b"a")
    assert again.load(key(1)) == (5, 6, 7)
    assert again.load(key(2)) == ()
    assert again.load(key(3)) is None
    again.close()


def test_ids_of_another_vocabulary_are_nothing(tmp_path: Path) -> None:
    path = tmp_path / "replies.sqlite3"
    one, other = SavedReplies(path, b"a"), SavedReplies(path, b"b")
    one.save(key(1), (5,))
    assert other.load(key(1)) is None
    other.save(key(1), (6,))
    assert (one.load(key(1)), other.load(key(1))) == ((5,), (6,))
    one.close()
    other.close()


def test_the_least_recently_used_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_replies, "_SAVES_BETWEEN_EVICTIONS", 2)
    clock = iter(range(1000))
    monkeypatch.setattr(saved_replies.time, "time", lambda: next(clock) * 1e4)
    saved = SavedReplies(tmp_path / "replies.sqlite3", b"a", max_bytes=5 * (72 + 400))
    for number in range(5):
        saved.save(key(number), range(100))
    assert saved.load(key(0)) is not None
    for number in range(5, 8):
        saved.save(key(number), range(100))
    there = [number for number in range(8) if saved.load(key(number)) is not None]
    assert there[0] == 0 and there[-1] == 7 and 5 <= len(there) <= 6
    saved.close()


def test_a_file_that_is_no_database_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "replies.sqlite3"
    path.write_bytes(b"something else entirely, and not short" * 50)
    saved = SavedReplies(path, b"a")
    with caplog.at_level(logging.WARNING):
        saved.save(key(1), (5,))
        assert saved.load(key(1)) is None
    assert caplog.text.count("not kept over restarts") == 1
    saved.close()


def damage(path: Path, change: str, *values: object) -> None:
    database = sqlite3.connect(path)
    with database:
        database.execute(change, values)
    database.close()


@pytest.mark.parametrize(
    ("change", "values"),
    [
        ("UPDATE replies SET ids = ?", (array("I", (5, 7)).tobytes(),)),  # one bit of an id
        ("UPDATE replies SET ids = ?", (b"1234567",)),
        ("UPDATE replies SET ids = ?", ("text",)),
        ("UPDATE replies SET checksum = ?", (b"",)),
        ("UPDATE replies SET key = ?", (key(2),)),  # the ids of another reply
    ],
)
def test_a_damaged_row_is_a_reply_that_is_not_known(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: str, values: tuple[object, ...]
) -> None:
    path = tmp_path / "replies.sqlite3"
    first = SavedReplies(path, b"a")
    first.save(key(1), (5, 6))
    first.close()
    damage(path, change, *values)
    again = SavedReplies(path, b"a")
    with caplog.at_level(logging.WARNING):
        assert again.load(key(1)) is None and again.load(key(2)) is None
    assert caplog.text.count("are not used") == 1
    again.save(key(1), (8,))
    assert again.load(key(1)) == (8,)
    again.close()


def test_ids_outside_the_vocabulary_are_nothing(tmp_path: Path) -> None:
    saved = SavedReplies(tmp_path / "replies.sqlite3", b"a", vocab_size=10)
    saved.save(key(1), (9,))
    saved.save(key(2), (10,))
    assert (saved.load(key(1)), saved.load(key(2))) == ((9,), None)
    saved.close()


def test_only_this_user_reads_it_and_clearing_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "replies.sqlite3"
    saved = SavedReplies(path, b"a")
    ids = tuple(range(1000, 1400))
    saved.save(key(1), ids)
    there = sorted(tmp_path.iterdir())
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in there)
    needle = array("I", ids).tobytes()
    assert any(needle[:400] in file.read_bytes() for file in there)
    saved.clear()
    assert saved.load(key(1)) is None
    assert not any(needle[:400] in file.read_bytes() for file in tmp_path.iterdir())
    saved.close()


def test_nobody_waits_for_another_process_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "replies.sqlite3"
    saved = SavedReplies(path, b"a")
    saved.save(key(1), (5,))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    tries = []
    monkeypatch.setattr(
        saved_replies.time, "monotonic", lambda: tries.append(1) or float(len(tries))
    )
    assert saved.load(key(1)) == (5,), "reading waits for no writer"
    for number in range(2, 5):
        saved.save(key(number), (6,))  # the first waits, the others do not ask
    other.execute("ROLLBACK")
    other.close()
    assert saved.load(key(4)) is None
    monkeypatch.undo()
    saved.close()


def test_a_file_that_cannot_be_written_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "replies.sqlite3"
    first = SavedReplies(path, b"a")
    first.save(key(1), (5, 6))
    first.close()

    def refused(*arguments: object) -> int:
        raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(saved_replies.os, "open", refused)
    again = SavedReplies(path, b"a")
    assert again.load(key(1)) == (5, 6)
    again.save(key(2), (7,))
    assert again.load(key(2)) is None
    again.close()
