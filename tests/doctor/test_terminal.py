"""What a terminal can show: by what it is called, and by what a real pseudoterminal answers."""

import json
import os
import select
import subprocess
import sys
import termios
from collections.abc import Mapping

import pytest

from ds4tui.doctor import terminal as terminals
from ds4tui.doctor.terminal import Answer, _graphics, ask, terminal

# Standard input becomes the terminal that controls this process, which then asks it.
PROGRAM = """
import fcntl, json, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from ds4tui.doctor import terminal
terminal.ANSWER_S = float(sys.argv[1])
if sys.argv[2] == "background":
    os.getpgrp = lambda: -1
found, why = terminal.ask(0, {"TERM": "xterm", "TERM_PROGRAM": sys.argv[3]})
print(json.dumps([found and [found.kitty, found.sixel], why]))
"""
KITTY = b"\x1b_Gi=31;OK\x1b\\"
SILENT_S, PATIENT_S = "0.1", "60"


def read_up_to(master: int, ending: bytes) -> bytes:
    """What was written to the terminal, up to `ending`; a failure if nothing comes for long."""
    written = b""
    while not written.endswith(ending):
        assert select.select([master], [], [], 60)[0], f"only {written!r} came"
        written += os.read(master, 100)
    return written


def asked(
    reply: bytes, seconds: str = PATIENT_S, place: str = "foreground", program: str = ""
) -> tuple[list[bool] | None, str, bytes]:
    """What came of it, why, and all that was written to the terminal."""
    master, slave = os.openpty()
    before = termios.tcgetattr(slave)
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, seconds, place, program],
        stdin=slave, stdout=subprocess.PIPE, start_new_session=True,
    ) as process:  # fmt: skip
        written = b""
        if reply:
            written = read_up_to(master, b"\x1b[c")
            os.write(master, reply)
        out, _ = process.communicate()
    assert termios.tcgetattr(slave) == before, "its modes are as they were"
    os.write(slave, b"end")
    written += read_up_to(master, b"end")
    os.close(master)
    os.close(slave)
    found, why = json.loads(out)
    return found, why, written.removesuffix(b"end")


def test_a_terminal_with_both_ways() -> None:
    found, why, written = asked(KITTY + b"\x1b[?62;4;22c")
    assert found == [True, True] and why == ""
    question = terminals.KITTY_QUESTION + b"\x1b[c"
    assert written == question + b"\r\x1b[K", "its answer was not shown"


def test_a_terminal_with_neither() -> None:
    assert asked(b"\x1b[?64;14;22c")[0] == [False, False]
    assert asked(b"\x1b[?4c")[0] == [False, False], "the first number is its class"


def test_a_silent_terminal_is_waited_for_a_moment() -> None:
    found, why, _ = asked(b"", SILENT_S)
    assert found is None and why == "it did not answer"


def test_in_the_background_it_is_not_asked() -> None:
    found, why, written = asked(b"", place="background")
    assert (found, why, written) == (None, "this runs in the background", b"")


def test_what_would_print_the_question_is_not_asked_it() -> None:
    found, _, written = asked(b"\x1b[?1;2c", program="Apple_Terminal")
    assert found == [False, False] and written == b"\x1b[c\r\x1b[K"


def test_ctrl_c_while_it_is_asked_ends_it() -> None:
    master, slave = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, PATIENT_S, "foreground", ""],
        stdin=slave, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    ) as process:  # fmt: skip
        before = termios.tcgetattr(slave)
        read_up_to(master, b"\x1b[c")
        os.write(master, b"\x03")
        assert b"KeyboardInterrupt" in process.communicate()[1]
    assert termios.tcgetattr(slave)[3] == before[3]
    os.close(master)
    os.close(slave)


def test_what_is_no_terminal_is_never_written_to() -> None:
    reading, writing = os.pipe()
    found, why = ask(writing, {"TERM": "xterm"})
    os.close(writing)
    assert found is None and "cannot be asked" in why and os.read(reading, 9) == b""
    os.close(reading)
    assert ask(0, {"TERM": "dumb"}) == (None, "a terminal of this kind does not answer")


@pytest.mark.parametrize(
    ("environment", "ways"),
    [
        ({"TERM": "xterm-kitty"}, ["kitty graphics"]),
        ({"TERM_PROGRAM": "ghostty"}, ["kitty graphics"]),
        ({"TERM_PROGRAM": "iTerm.app"}, ["iTerm images"]),
        ({"TERM_PROGRAM": "WezTerm"}, ["kitty graphics", "sixel", "iTerm images"]),
        ({"TERM": "foot"}, ["sixel"]),
        ({"TERM": "xterm-256color"}, []),
    ],
)
def test_names_tell_where_nothing_was_answered(
    environment: Mapping[str, str], ways: list[str]
) -> None:
    assert list(_graphics(environment, None)) == ways


def test_an_answer_counts_more_than_a_name() -> None:
    assert list(_graphics({"TERM": "xterm-kitty"}, Answer(False, True))) == ["sixel"]


def test_without_a_terminal_that_is_what_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    (found,) = terminal({"TERM": "xterm", "LANG": "en_GB.UTF-8", "COLORTERM": "truecolor"})
    assert found.text.endswith("it was not asked: standard input is no terminal")
    assert found.facts["images"] == ["half blocks in true colour"]
    (plain,) = terminal({"TERM": "xterm", "LANG": "C"})
    assert "no images" in plain.text
