import stat
from pathlib import Path

import pytest

from ds4tui.tui import clipboard
from ds4tui.tui.clipboard import CopyOutcome, clipboard_commands, copy_with_tool
from ds4tui.tui.wording import copied

WAYLAND_AND_X = {"WAYLAND_DISPLAY": "wayland-0", "DISPLAY": ":0", "TMUX": "x"}


def test_programs_are_tried_in_order_of_how_surely_they_reach_the_clipboard() -> None:
    assert [c[0] for c in clipboard_commands({}, "Darwin")] == ["pbcopy"]
    assert [c[0] for c in clipboard_commands(WAYLAND_AND_X, "Linux")] == [
        "wl-copy",
        "xclip",
        "xsel",
        "tmux",
    ]
    assert clipboard_commands({}, "Linux") == ()


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH, for fake programs."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def make_tool(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_the_text_reaches_the_first_program_there_is(tools: Path) -> None:
    make_tool(tools, "xclip", f"/bin/cat > {tools}/taken")
    assert copy_with_tool("héllo\n", WAYLAND_AND_X, "Linux") == CopyOutcome("xclip")
    assert (tools / "taken").read_bytes() == "héllo\n".encode()


def test_a_program_that_fails_is_no_success_and_the_next_one_is_tried(tools: Path) -> None:
    make_tool(tools, "wl-copy", "exit 1")
    assert copy_with_tool("x", WAYLAND_AND_X, "Linux") == CopyOutcome(
        None, "wl-copy failed (exit 1)"
    )
    make_tool(tools, "xsel", "exec /bin/cat > /dev/null")
    assert copy_with_tool("x", WAYLAND_AND_X, "Linux") == CopyOutcome("xsel")


def test_a_program_that_hangs_is_given_up(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipboard, "TOOL_TIMEOUT_S", 0.05)
    make_tool(tools, "wl-copy", "exec /bin/sleep 30")
    outcome = copy_with_tool("x", {"WAYLAND_DISPLAY": "w"}, "Linux")
    assert outcome == CopyOutcome(None, "wl-copy did not answer")


def test_toasts_claim_success_only_where_a_program_confirmed_it() -> None:
    assert copied("It", CopyOutcome("pbcopy")) == "It was copied (pbcopy)."
    assert "tmux's buffer" in copied("It", CopyOutcome("tmux"))
    words = copied("It", CopyOutcome(None, "xclip failed (exit 1)"))
    assert "sent to the terminal (xclip failed (exit 1))" in words and "copied" not in words
