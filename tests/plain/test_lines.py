"""Lines in and out, whatever standard input and output are."""

import io
import sys

import pytest

from ds4tui.plain.lines import Lines


def lines_of(text: str) -> Lines:
    return Lines(io.StringIO(text), io.StringIO())


def test_a_backslash_goes_on_with_the_next_line() -> None:
    lines = lines_of("one\\\n\\\nthree\r\nfour\\")
    assert lines.message("You: ") == "one\n\nthree"
    assert lines.message("You: ") == "four"
    assert lines.message("You: ") is None


def test_what_is_no_utf8_is_read_with_a_sign_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    piped = io.TextIOWrapper(io.BytesIO(b"caf\xe9\nnext\n"), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", piped)
    lines = Lines(out=io.StringIO())
    assert lines.line("You: ") == "caf\N{REPLACEMENT CHARACTER}"
    assert lines.line("You: ") == "next"


def test_a_closed_input_is_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert Lines(out=io.StringIO()).line("You: ") is None


def test_unfinished_lines_are_ended_before_whole_ones() -> None:
    out = io.StringIO()
    lines = Lines(io.StringIO(), out)
    lines.write("begun")
    lines.say("whole", "", "two\n")
    lines.write("a\tb\x1b[31m\r\nc")
    lines.end_line()
    assert out.getvalue() == "begun\nwhole\ntwo\na\tb␛[31m\nc\n"


class Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_who_hears_nothing_is_asked_nothing() -> None:
    lines = Lines(io.StringIO("more\n"), Gone())
    told: list[str] = []
    lines.on_gone = lambda: told.append("gone")
    lines.say("one", "two")
    assert told == ["gone"] and lines.is_gone and lines.line("You: ") is None
