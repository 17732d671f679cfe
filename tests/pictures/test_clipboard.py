"""The clipboard's picture through fake programs on PATH, on every kind of session."""

import base64
from pathlib import Path

import pytest

from ds4tui.pictures import clipboard
from ds4tui.pictures.clipboard import Clipboard, clipboard_picture
from tests.pictures.programs import give, make, only_these
from tests.pictures.samples import png

X11, WAYLAND, WSL = {"DISPLAY": ":0"}, {"WAYLAND_DISPLAY": "w"}, {"WSL_DISTRO_NAME": "Debian"}
ASK = "-selection clipboard -o -t"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return only_these(tmp_path, monkeypatch)


def test_x11_gives_the_form_that_keeps_every_pixel(programs: Path) -> None:
    give(programs, "xclip", f"{ASK} TARGETS", b"TARGETS\nimage/jpeg\nimage/png\nUTF8_STRING\n")
    give(programs, "xclip", f"{ASK} image/png", png())
    assert clipboard_picture(X11, "Linux") == Clipboard(png())


def test_wayland_gives_what_there_is(programs: Path) -> None:
    give(programs, "wl-paste", "--list-types", b"image/jpeg\n")
    give(programs, "wl-paste", "--no-newline --type image/jpeg", b"jpeg")
    assert clipboard_picture({**WAYLAND, **X11}, "Linux") == Clipboard(b"jpeg")


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("text/uri-list", "file://{0}/my%20shot.png\r\nfile://{0}/b.png\r\n"),
        ("x-special/gnome-copied-files", "copy\nfile://{0}/my%20shot.png\nfile://{0}/b.png"),
    ],
)
def test_files_that_were_copied_are_files(
    programs: Path, tmp_path: Path, kind: str, content: str
) -> None:
    paths = (tmp_path / "my shot.png", tmp_path / "b.png")
    for path in paths:
        path.write_bytes(png())
    give(programs, "xclip", f"{ASK} TARGETS", f"TARGETS\n{kind}\n".encode())
    give(programs, "xclip", f"{ASK} {kind}", content.format(tmp_path).encode())
    assert clipboard_picture(X11, "Linux") == Clipboard(paths=paths)


def test_macos_gives_pixels_as_hexadecimal(programs: Path) -> None:
    give(programs, "osascript", "-e the clipboard as «class PNGf»",
         "«data PNGf".encode() + png().hex().upper().encode() + "»\n".encode())  # fmt: skip
    assert clipboard_picture({}, "Darwin") == Clipboard(png())


def test_macos_gives_a_file_of_the_finder_and_not_its_icon(programs: Path) -> None:
    give(programs, "osascript", "-e POSIX path of (the clipboard as «class furl»)", b"/a/b c.png\n")
    give(programs, "osascript", "-e the clipboard as «class PNGf»", "«data PNGf00»".encode())
    assert clipboard_picture({}, "Darwin") == Clipboard(paths=(Path("/a/b c.png"),))


def test_macos_prefers_pngpaste_and_asks_on_where_it_has_nothing(programs: Path) -> None:
    make(programs, "pngpaste", "echo 'No image data found' >&2; exit 1")
    assert "no picture" in clipboard_picture({}, "Darwin").problem
    give(programs, "osascript", "-e the clipboard as «class PNGf»", "«data PNGf00FF»".encode())
    assert clipboard_picture({}, "Darwin") == Clipboard(b"\0\xff")
    (programs / "pngpaste").unlink()
    give(programs, "pngpaste", "-", png())
    assert clipboard_picture({}, "Darwin") == Clipboard(png())


def test_windows_gives_base64(programs: Path) -> None:
    script = base64.encodebytes(png()).decode().replace("\n", "\r\n")
    make(programs, "powershell.exe", f"/bin/cat <<'END'\n{script}\nEND")
    assert clipboard_picture(WSL, "Linux") == Clipboard(png())
    make(programs, "powershell.exe", "echo 'Add-Type : error'")
    assert "no picture" in clipboard_picture(WSL, "Linux").problem
    make(programs, "powershell.exe", "true")
    assert clipboard_picture(WSL, "Linux").problem == "There is no picture on the clipboard"


@pytest.mark.parametrize("targets", [b"UTF8_STRING\nTEXT\n", None])
def test_text_or_nothing_on_the_clipboard_is_no_picture(
    programs: Path, targets: bytes | None
) -> None:
    if targets is None:
        make(programs, "xclip", "echo 'Error: target TARGETS not available' >&2; exit 1")
    else:
        give(programs, "xclip", f"{ASK} TARGETS", targets)
    found = clipboard_picture(X11, "Linux")
    assert found.is_empty and found.problem == "There is no picture on the clipboard"


def test_what_fails_is_told_and_the_next_program_is_asked(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clipboard, "TOOL_TIMEOUT_S", 0.05)
    make(programs, "wl-paste", "exec /bin/sleep 30")
    found = clipboard_picture(WAYLAND, "Linux")
    assert found.is_empty and found.problem == "wl-paste did not answer within 0.05 s"
    monkeypatch.setattr(clipboard, "TOOL_TIMEOUT_S", 20.0)
    make(programs, "wl-paste", "exit 1")
    give(programs, "xclip", f"{ASK} TARGETS", b"image/png\n")
    give(programs, "xclip", f"{ASK} image/png", png())
    assert clipboard_picture({**WAYLAND, **X11}, "Linux") == Clipboard(png())


def test_a_program_that_breaks_half_way_is_told(programs: Path) -> None:
    give(programs, "xclip", f"{ASK} TARGETS", b"image/png\n")
    assert "xclip failed (exit 1)" in clipboard_picture(X11, "Linux").problem
    (programs / "xclip").write_bytes(b"\x7fELF rubbish")
    assert "could not be run" in clipboard_picture(X11, "Linux").problem


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (X11, "need xclip"),
        (WAYLAND, "need wl-paste"),
        ({"SSH_CONNECTION": "x"}, "machine that you come from"),
        ({}, "no clipboard"),
    ],
)
def test_without_a_program_the_reason_says_what_would_help(
    programs: Path, environment: dict[str, str], words: str
) -> None:
    assert words in clipboard_picture(environment, "Linux").problem
