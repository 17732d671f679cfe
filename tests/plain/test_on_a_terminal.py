"""The plain mode on a terminal of its own: keys, signals, and what bytes it sends."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ds4tui.chat.store import ConversationStore
from tests.tui.test_real_terminal import Terminal

PROGRAM = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # or Ctrl+C would be no signal
from pathlib import Path
from ds4tui.chat.store import ConversationStore
from ds4tui.config import load_settings
from ds4tui.plain.chat import Ports
from ds4tui.plain.running import run_plain
from tests.fakes import FakeAssistant

def unused(*arguments):
    raise AssertionError(arguments)

assistant = FakeAssistant("word " * 200, token_delay_s=float(sys.argv[2]))
ports = Ports(lambda name, progress: assistant, unused, unused, unused)
sys.exit(run_plain(load_settings({}), ConversationStore(Path(sys.argv[1])), ports))
"""
WITHOUT_TERMINAL = PROGRAM.replace("fcntl.ioctl", "# fcntl.ioctl")
Open = Callable[..., Terminal]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    terminals: list[Terminal] = []

    def open_one(token_delay_s: float = 0.0, term: str = "dumb") -> Terminal:
        terminals.append(Terminal(tmp_path / "c.db", token_delay_s, PROGRAM, term))
        return terminals[-1]

    yield open_one
    for each in terminals:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()
        each.close()


def status(database: Path) -> str:
    store = ConversationStore(database)
    found = store.load(1).path[-1].status
    store.close()
    return found


def test_a_chat_from_hello_to_ctrl_d_without_one_escape(opened: Open) -> None:
    on = opened()
    on.until(b"You: ")
    on.type(b"hello\r")
    on.until(b"End of answer: stop")
    on.until(b"You: ", on.seen.index(b"End of answer"))
    on.type(b"\x04")
    assert on.ended() == 0
    assert b"Ctrl+D leaves" in on.seen and b"Decision: cold" in on.seen
    assert b"\x1b" not in on.seen and b"\x08" not in on.seen


def test_a_capable_terminal_gets_readlines_own_sequences_only(opened: Open) -> None:
    on = opened(term="xterm-256color")
    on.until(b"You: ")
    on.type(b"hello\r")
    on.until(b"End of answer: stop")
    on.until(b"You: ", on.seen.index(b"End of answer"))
    on.type(b"\x04")
    assert on.ended() == 0
    # Bracketed pastes on and off, and meta keys: nothing that draws or moves.
    assert not re.sub(rb"\x1b\[\?(2004|1034)[hl]", b"", on.seen).count(b"\x1b")


def test_ctrl_c_stops_an_answer_and_the_chat_goes_on(opened: Open, tmp_path: Path) -> None:
    on = opened(0.05)
    on.until(b"You: ")
    on.type(b"hello\r")
    on.until(b"word word")
    on.type(b"\x03")
    on.until(b"End of answer: stopped.")
    on.until(b"You: ", on.seen.index(b"End of answer"))
    assert status(tmp_path / "c.db") == "cancelled"
    on.type(b"/quit\r")
    assert on.ended() == 0


def test_ctrl_c_drops_a_line_that_up_brings_back(opened: Open, tmp_path: Path) -> None:
    on = opened()
    on.until(b"You: ")
    on.type(b"a long thought")
    on.until(b"a long thought")
    on.type(b"\x03")
    on.until(b"Ctrl+D or /quit leaves.")
    on.until(b"You: ", on.seen.index(b"/quit leaves."))
    on.type(b"\x1b[A!\r")
    on.until(b"End of answer: stop")
    on.until(b"You: ", on.seen.index(b"End of answer"))
    on.type(b"\x04")
    assert on.ended() == 0
    store = ConversationStore(tmp_path / "c.db")
    assert store.load(1).path[0].message.text == "a long thought!"
    store.close()


def test_a_question_that_is_edited_stands_in_the_line(opened: Open, tmp_path: Path) -> None:
    on = opened()
    on.until(b"You: ")
    on.type(b"hello\r")
    on.until(b"End of answer: stop")
    on.type(b"/edit\r")
    on.until(b"or nothing: ")
    on.type(b"1\r")
    on.until(b"You: hello", on.seen.index(b"or nothing: "))
    on.type(b" again\r")
    on.until(b"End of answer: stop", on.seen.rindex(b"or nothing: "))
    on.until(b"You: ", on.seen.rindex(b"End of answer"))
    on.type(b"\x04")
    assert on.ended() == 0
    store = ConversationStore(tmp_path / "c.db")
    assert store.load(1).path[0].message.text == "hello again"
    store.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_asked_to_end_it_ends_in_order(
    opened: Open, number: signal.Signals, tmp_path: Path
) -> None:
    on = opened(0.05)
    on.until(b"You: ")
    on.type(b"hello\r")
    on.until(b"word word")
    on.process.send_signal(number)
    assert on.ended() == 0
    assert status(tmp_path / "c.db") == "cancelled"


def test_asked_to_end_while_it_waits_for_a_line(opened: Open) -> None:
    on = opened()
    on.until(b"You: ")
    on.process.send_signal(signal.SIGTERM)
    assert on.ended() == 0 and b"Traceback" not in on.seen


def test_a_reader_that_hangs_up_ends_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_TERMINAL, str(tmp_path / "c.db"), "0.05"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ},
    )  # fmt: skip
    assert process.stdin and process.stdout and process.stderr
    process.stdin.write(b"hello\n")
    process.stdin.flush()
    while b"Answer:" not in process.stdout.readline():
        pass
    process.stdout.close()
    process.wait(30)
    process.stdin.close()
    process.stderr.close()
    assert status(tmp_path / "c.db") == "cancelled"
