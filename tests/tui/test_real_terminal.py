"""The app on a terminal of its own: what it sends, and what it leaves behind."""

import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ds4tui.chat.store import ConversationStore

PROGRAM = """
import sys
from pathlib import Path
from ds4tui.app import Ds4App
from ds4tui.chat.store import ConversationStore
from ds4tui.config import load_settings
from tests.fakes import FakeAssistant

def unused(*arguments):
    raise AssertionError(arguments)

delay_s = float(sys.argv[2])
app = Ds4App(
    load_settings({}),
    ConversationStore(Path(sys.argv[1])),
    lambda name, progress: FakeAssistant("word " * 200, token_delay_s=delay_s),
    unused,
    unused,
)
app.run()
"""
TIMEOUT_S = 30.0
ENTER_ALTERNATE_SCREEN, LEAVE_ALTERNATE_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"
SHOW_CURSOR, END_OF_PASTES, END_OF_MOUSE = b"\x1b[?25h", b"\x1b[?2004l", b"\x1b[?1000l"


class Terminal:
    """A pseudo-terminal with the app in it."""

    def __init__(
        self,
        database: Path,
        token_delay_s: float,
        program: str = PROGRAM,
        term: str = "xterm-256color",
    ) -> None:
        self.here, there = pty.openpty()
        os.set_blocking(self.here, False)
        environment = {**os.environ, "TERM": term, "COLUMNS": "90", "LINES": "30"}
        command = [sys.executable, "-c", program, str(database), str(token_delay_s)]
        self.process = subprocess.Popen(
            command,
            stdin=there,
            stdout=there,
            stderr=there,
            env=environment,
            close_fds=True,
            start_new_session=True,
        )
        self.device = os.ttyname(there)
        os.close(there)
        self.seen = b""
        self.is_closed = False

    def close(self) -> None:
        """As a terminal's window is closed."""
        if not self.is_closed:
            os.close(self.here)
        self.is_closed = True

    def type(self, text: bytes) -> None:
        os.write(self.here, text)

    def until(self, text: bytes, after: int = 0) -> None:
        """Read until `text` has come, behind the first `after` bytes."""
        deadline = time.monotonic() + TIMEOUT_S
        while text not in self.seen[after:]:
            assert time.monotonic() < deadline, f"{text!r} never came: {self.seen[-2000:]!r}"
            self.read()

    def read(self) -> bool:
        """Take what the app sent; whether it may send more."""
        if select.select([self.here], [], [], 0.2)[0]:
            try:
                self.seen += os.read(self.here, 65536)
            except OSError:  # the other end is closed
                return False
        return True

    def ended(self) -> int:
        deadline = time.monotonic() + TIMEOUT_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, "the app did not end"
            self.read()
        while self.read() and select.select([self.here], [], [], 0)[0]:
            pass
        return self.process.returncode


@pytest.fixture
def terminal(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Terminal]:
    opened = Terminal(tmp_path / "c.db", request.param)
    yield opened
    if opened.process.poll() is None:
        opened.process.kill()
        opened.process.wait()
    opened.close()


@pytest.mark.parametrize("terminal", [0.0], indirect=True)
def test_a_chat_and_a_way_out_that_restores_the_terminal(terminal: Terminal) -> None:
    terminal.until(b"fake")  # the model's name in the header
    assert ENTER_ALTERNATE_SCREEN in terminal.seen
    terminal.type(b"hello\r")
    terminal.until(b"word word")
    terminal.until(b"decode")
    terminal.type(b"\x11")  # ctrl+q
    assert terminal.ended() == 0
    tail = terminal.seen[terminal.seen.rindex(LEAVE_ALTERNATE_SCREEN) :]
    assert SHOW_CURSOR in terminal.seen and ENTER_ALTERNATE_SCREEN not in tail
    assert END_OF_PASTES in terminal.seen and END_OF_MOUSE in terminal.seen
    assert b"Traceback" not in terminal.seen


@pytest.mark.parametrize("terminal", [0.02], indirect=True)
def test_quitting_in_the_middle_of_an_answer_takes_seconds_at_most(terminal: Terminal) -> None:
    terminal.until(b"fake")
    terminal.type(b"hello\r")
    terminal.until(b"word word")
    terminal.type(b"\x03\x03")  # ctrl+c, twice
    assert terminal.ended() == 0
    assert LEAVE_ALTERNATE_SCREEN in terminal.seen


@pytest.mark.parametrize("terminal", [0.0], indirect=True)
def test_newline_keys_as_terminals_send_them(terminal: Terminal, tmp_path: Path) -> None:
    terminal.until(b"fake")
    # Ctrl+J; ESC CR; the kitty protocol; xterm's modifyOtherKeys; a bracketed paste; then Enter.
    terminal.type(b"a\nb\x1b\rc\x1b[13;2ud\x1b[27;2;13~e\x1b[200~f\ng\x1b[201~\r")
    terminal.until(b"decode")
    terminal.type(b"\x11")
    assert terminal.ended() == 0
    store = ConversationStore(tmp_path / "c.db")
    assert store.load(1).path[0].message.text == "a\nb\nc\nd\nef\ng"
    store.close()


# As terminals spell them: kitty's protocol (also with event types), xterm's modifyOtherKeys, ESC CR
# and ESC LF for Alt+Enter, the kitty keypad.
NEWLINES = (
    b"\x1b\n", b"\x1b[13;3u", b"\x1b[13;5u", b"\x1b[13;4u", b"\x1b[13;6u", b"\x1b[13;2:1u",
    b"\x1b[27;3;13~", b"\x1b[27;5;13~", b"\x1b[27;6;13~", b"\x1b[106;5u", b"\x1b[57414;2u",
)  # fmt: skip


@pytest.mark.parametrize("terminal", [0.0], indirect=True)
def test_more_spellings_of_a_newline(terminal: Terminal, tmp_path: Path) -> None:
    terminal.until(b"fake")
    for number, spelling in enumerate(NEWLINES):
        terminal.type(b"%d" % number + spelling)
    terminal.type(b"end\r")
    terminal.until(b"decode")
    terminal.type(b"\x11")
    assert terminal.ended() == 0
    store = ConversationStore(tmp_path / "c.db")
    lines = store.load(1).path[0].message.text.split("\n")
    assert lines == [*map(str, range(len(NEWLINES))), "end"]
    store.close()


# Terminal.app sends the same byte for Enter with and without Shift: it can only send. The others
# are Enter of kitty's protocol, and of keypads.
@pytest.mark.parametrize("terminal", [0.0], indirect=True)
def test_enter_sends_however_a_terminal_spells_it(terminal: Terminal, tmp_path: Path) -> None:
    terminal.until(b"fake")
    store = ConversationStore(tmp_path / "c.db")
    for enter in (b"\r", b"\x1b[13u", b"\x1bOM", b"\x1b[57414u"):
        text = f"sent by {enter!r}"
        terminal.type(text.encode() + enter)
        deadline = time.monotonic() + TIMEOUT_S
        while not (found := store.latest()) or [
            (m.message.text, m.status) for m in store.load(found.id).path[-2:]
        ] != [(text, "complete"), ("word " * 200, "complete")]:
            assert time.monotonic() < deadline, enter
            terminal.read()
    store.close()
    terminal.type(b"\x11")
    assert terminal.ended() == 0


@pytest.mark.parametrize("escape", [b"\x1b", b"\x1b[27u"])
@pytest.mark.parametrize("terminal", [0.02], indirect=True)
def test_a_lone_escape_stops_an_answer_and_nothing_else(
    terminal: Terminal, escape: bytes, tmp_path: Path
) -> None:
    terminal.until(b"fake")
    terminal.type(b"hello\r")
    terminal.until(b"word word")
    terminal.type(b"draft")
    terminal.until(b"draft")
    terminal.type(escape)
    terminal.until(b"stopped")  # in the line under the answer
    terminal.until(b"Enter sends", terminal.seen.rindex(b"stopped"))
    terminal.type(b"!")
    terminal.until(b"!", terminal.seen.rindex(b"Enter sends"))
    terminal.type(b"\x11")
    assert terminal.ended() == 0
    store = ConversationStore(tmp_path / "c.db")
    asked, answered = store.load(1).path
    assert asked.message.text == "hello" and answered.status == "cancelled"
    store.close()


@pytest.mark.parametrize("terminal", [0.0], indirect=True)
def test_a_paste_with_colours_is_text_and_no_keys(terminal: Terminal, tmp_path: Path) -> None:
    terminal.until(b"fake")
    terminal.type(b"see \x1b[200~log line\n\x1b[31mERROR\n/quit\nmore\n\x1b[201~!\r")
    terminal.until(b"decode")
    terminal.type(b"\x11")
    assert terminal.ended() == 0
    store = ConversationStore(tmp_path / "c.db")
    assert store.load(1).path[0].message.text == "see log line\nERROR\n/quit\nmore\n!"
    store.close()


@pytest.fixture
def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An editor that waits for a line on the terminal and writes it into the file."""
    script = tmp_path / "editor"
    script.write_text('#!/bin/sh\necho EDITOR HERE\nread line\necho "$line" >> "$1"\n')
    script.chmod(0o700)
    monkeypatch.setenv("EDITOR", str(script))
    monkeypatch.delenv("VISUAL", raising=False)


@pytest.mark.usefixtures("editor")
@pytest.mark.parametrize("terminal", [0.0], indirect=True)
def test_an_editor_has_the_terminal_while_it_runs(terminal: Terminal, tmp_path: Path) -> None:
    terminal.until(b"fake")
    terminal.type(b"draft \x07")  # ctrl+g
    terminal.until(b"EDITOR HERE")
    assert terminal.seen.rindex(LEAVE_ALTERNATE_SCREEN) < terminal.seen.rindex(b"EDITOR HERE")
    seen = len(terminal.seen)
    terminal.type(b"written outside\r")
    terminal.until(ENTER_ALTERNATE_SCREEN, seen)
    terminal.until(b"written outside", terminal.seen.rindex(ENTER_ALTERNATE_SCREEN))
    terminal.type(b"!\r")
    terminal.until(b"decode")
    terminal.type(b"\x11")
    assert terminal.ended() == 0
    store = ConversationStore(tmp_path / "c.db")
    assert store.load(1).path[0].message.text == "draft written outside!"
    store.close()


@pytest.mark.parametrize("escapes", [(b"\x1b\x1b",), (b"\x1b", b"\x1b")])
@pytest.mark.parametrize("terminal", [0.0], indirect=True)
def test_escape_twice_lists_the_questions_however_a_terminal_sends_it(
    terminal: Terminal, escapes: tuple[bytes, ...]
) -> None:
    terminal.until(b"fake")
    terminal.type(b"hello\r")
    terminal.until(b"decode")
    done = terminal.seen.index(b"decode")
    terminal.until(b"Enter sends", done)  # before that an escape stops the answer
    for escape in escapes:
        terminal.type(escape)
    terminal.until(b"Edit a question")
    terminal.type(b"\x11")
    assert terminal.ended() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("terminal", [0.02], indirect=True)
def test_asked_to_end_it_ends_in_order(
    terminal: Terminal, number: signal.Signals, tmp_path: Path
) -> None:
    terminal.until(b"fake")
    terminal.type(b"hello\r")
    terminal.until(b"word word")
    terminal.process.send_signal(number)
    assert terminal.ended() == 0
    assert LEAVE_ALTERNATE_SCREEN in terminal.seen
    store = ConversationStore(tmp_path / "c.db")
    assert store.load(1).path[-1].status == "cancelled"
    store.close()


@pytest.mark.parametrize("terminal", [0.02], indirect=True)
def test_a_killed_app_leaves_the_question_and_some_of_the_answer(
    terminal: Terminal, tmp_path: Path
) -> None:
    terminal.until(b"fake")
    terminal.type(b"hello\r")
    store = ConversationStore(tmp_path / "c.db")
    deadline = time.monotonic() + TIMEOUT_S
    while not (found := store.latest()) or not store.load(found.id).path[-1].message.text:
        assert time.monotonic() < deadline
        terminal.read()
    terminal.process.send_signal(signal.SIGKILL)
    assert terminal.ended() == -signal.SIGKILL
    asked, answered = store.load(found.id).path
    assert asked.message.text == "hello" and answered.status == "partial"
    assert answered.message.text.startswith("word")
    store.close()


@pytest.mark.parametrize("with_signal", [True, False])
@pytest.mark.parametrize("terminal", [0.02], indirect=True)
def test_a_closed_terminal_ends_the_app_and_the_conversation_is_stored(
    terminal: Terminal, with_signal: bool, tmp_path: Path
) -> None:
    terminal.until(b"fake")
    terminal.type(b"hello\r")
    terminal.until(b"word word")
    terminal.close()
    if with_signal:
        terminal.process.send_signal(signal.SIGHUP)
    terminal.process.wait(TIMEOUT_S)
    store = ConversationStore(tmp_path / "c.db")
    assert store.load(1).path[-1].status == "cancelled"
    store.close()


@pytest.mark.parametrize("terminal", [0.0], indirect=True)
def test_a_terminal_that_takes_nothing_does_not_keep_an_app_that_is_asked_to_end(
    terminal: Terminal,
) -> None:
    terminal.until(b"fake")
    device = os.open(terminal.device, os.O_RDWR | os.O_NOCTTY)
    termios.tcflow(device, termios.TCOOFF)
    terminal.process.send_signal(signal.SIGTERM)
    terminal.process.wait(TIMEOUT_S)
    os.close(device)
