"""Replies outlive the process, within a bound, and a broken file is a reply that is not known."""

import logging
from pathlib import Path

import pytest

from ds4tui.chat import saved_replies
from ds4tui.chat.saved_replies import SavedReplies


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def test_ids_are_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "replies.sqlite3"
    first = SavedReplies(path, b"a")
    first.save(key(1), (5, 2**31))
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
    monkeypatch.setattr(saved_replies.time, "time", lambda: next(clock))
    saved = SavedReplies(tmp_path / "replies.sqlite3", b"a", max_bytes=5 * (64 + 400))
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
