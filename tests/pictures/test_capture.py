"""Screenshots through fake programs on PATH."""

from pathlib import Path

import pytest

from ds4tui.pictures import capture as capture_module
from ds4tui.pictures.capture import Capture, capture
from tests.pictures.programs import make, only_these
from tests.pictures.samples import png

X11, WAYLAND = {"DISPLAY": ":0"}, {"WAYLAND_DISPLAY": "w", "DISPLAY": ":0"}


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "shot.png").write_bytes(png())
    return only_these(tmp_path, monkeypatch)


def take(programs: Path, last: str = '"$last"') -> str:
    """A script that puts the picture into the file that is named last."""
    return f'for last in "$@"; do :; done; /bin/cp {programs.parent}/shot.png {last}'


@pytest.mark.parametrize("tool", ["maim", "scrot", "gnome-screenshot", "spectacle", "import"])
def test_x11_uses_what_there_is(programs: Path, tool: str) -> None:
    make(programs, tool, take(programs))
    assert capture(X11, "Linux") == Capture(png(), tool)


def test_macos_lets_the_person_choose_and_is_silent(programs: Path) -> None:
    make(programs, "screencapture", '[ "$1 $2" = "-i -x" ] || exit 9; ' + take(programs))
    assert capture({}, "Darwin") == Capture(png(), "screencapture")


def test_wayland_takes_what_slurp_says(programs: Path) -> None:
    make(programs, "slurp", "echo '10,20 30x40'")
    make(programs, "grim", '[ "$1 $2" = "-g 10,20 30x40" ] || exit 9; ' + take(programs))
    assert capture(WAYLAND, "Linux") == Capture(png(), "grim")
    make(programs, "slurp", "echo 'selection cancelled' >&2; exit 1")
    left = capture(WAYLAND, "Linux")
    assert left.was_left and "selection cancelled" in left.problem


def test_the_desktops_own_program_comes_first(programs: Path) -> None:
    for tool in ("slurp", "grim", "spectacle", "gnome-screenshot"):
        make(programs, tool, take(programs))
    assert capture({**WAYLAND, "XDG_CURRENT_DESKTOP": "KDE"}, "Linux").tool == "spectacle"
    desktop = {**WAYLAND, "XDG_CURRENT_DESKTOP": "ubuntu:GNOME"}
    assert capture(desktop, "Linux").tool == "gnome-screenshot"


@pytest.mark.parametrize("script", ["true", "exit 1"])
def test_a_person_who_chooses_nothing_has_left(programs: Path, script: str) -> None:
    make(programs, "screencapture", script)
    left = capture({}, "Darwin")
    assert left.was_left and left.data == b""


def test_a_program_that_hangs_is_told(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_module, "CHOOSE_S", 0.05)
    make(programs, "maim", "exec /bin/sleep 30")
    taken = capture(X11, "Linux")
    assert "did not answer" in taken.problem and not taken.was_left


@pytest.mark.parametrize(
    ("environment", "words"),
    [(X11, "maim, scrot"), (WAYLAND, "grim with slurp"), ({}, "no screen")],
)
def test_without_a_program_the_reason_says_what_would_help(
    programs: Path, environment: dict[str, str], words: str
) -> None:
    make(programs, "grim", take(programs))  # of no use without slurp
    assert words in capture(environment, "Linux").problem
