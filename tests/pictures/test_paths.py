"""What terminals paste for dropped files, in every quoting, and what is no drop at all."""

import os
import shlex
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ds4tui.pictures.paths import completions, dropped, is_picture, may_be_a_drop, named, quoted
from tests.pictures.samples import png
from tests.scale import scaled

NAMES = (
    "shot.png",
    "two words.png",
    "Screenshot 2026-12-01 at 9.41.07\u202fAM.png",
    "Snímek obrazovky 2026-12-01 v\u00a09.41.07.png",
    "it's (1) & $HOME; `x`.png",
    'a "quoted" one.png',
    "back\\slash.png",
    "100% [done] #2?.png",
    "表示 écran.JPG",
    "'.png",
    "~.png",
)
SHELL_SPECIAL = " \t'\"\\()&;$`[]#?*!{}<>|~%"


def escaped(path: str) -> str:
    """As Terminal.app, iTerm2 and kitty write a dropped file."""
    return "".join(f"\\{c}" if c in SHELL_SPECIAL and c != "%" else c for c in path)


QUOTINGS = {
    "plain": str,
    "backslashes": escaped,
    "shell": shlex.quote,
    "single": lambda path: "'" + path.replace("'", "'\\''") + "'",
    "double": lambda path: '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"',
    "address": lambda path: "file://" + quote(path),
    "address of this host": lambda path: f"file://localhost{quote(path)}",
    "quoted address": lambda path: f"'file://{quote(path)}'",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    where = tmp_path / "my shots"
    where.mkdir()
    for name in NAMES:
        (where / name).write_bytes(png())
    return where


@pytest.mark.parametrize("quoting", QUOTINGS)
@pytest.mark.parametrize("name", NAMES)
def test_one_dropped_file_in_every_quoting(folder: Path, name: str, quoting: str) -> None:
    path = folder / name
    for text in (QUOTINGS[quoting](str(path)), QUOTINGS[quoting](str(path)) + " "):
        assert dropped(text) == (path,), text


@pytest.mark.parametrize("between", [" ", "\n", "\r\n", "  "])
@pytest.mark.parametrize("quoting", [q for q in QUOTINGS if q != "plain"])
def test_several_dropped_files_side_by_side_or_one_a_line(
    folder: Path, quoting: str, between: str
) -> None:
    paths = tuple(folder / name for name in NAMES)
    assert dropped(between.join(QUOTINGS[quoting](str(path)) for path in paths)) == paths


def test_several_plain_paths_with_spaces_one_a_line_or_side_by_side(folder: Path) -> None:
    paths = (folder / NAMES[1], folder / NAMES[0], folder / NAMES[2])
    for between in ("\n", " "):
        assert dropped(between.join(map(str, paths))) == paths


@pytest.mark.parametrize("space", [" ", "\u202f", "\u00a0"])
def test_a_screenshot_is_found_whatever_became_of_its_odd_space(tmp_path: Path, space: str) -> None:
    path = tmp_path / f"Screenshot at 9.41.07{space}AM.png"
    path.write_bytes(png())
    for other in (" ", "\u202f", "\u00a0"):
        text = str(tmp_path / f"Screenshot at 9.41.07{other}AM.png")
        assert dropped(text) == dropped(escaped(text)) == (path,)
        assert named(text) == ((path,), "")


def test_names_that_look_the_same_are_not_guessed_between(tmp_path: Path) -> None:
    for space in ("\u202f", "\u00a0"):
        (tmp_path / f"9.41{space}AM.png").write_bytes(png())
    assert dropped(str(tmp_path / "9.41 AM.png")) == ()
    assert dropped(str(tmp_path / "9.41\u202fAM.png")) == (tmp_path / "9.41\u202fAM.png",)


def test_accents_that_are_put_together_otherwise_are_found(tmp_path: Path) -> None:
    path = tmp_path / "e\u0301cran.png"
    path.write_bytes(png())
    assert dropped(str(tmp_path / "\u00e9cran.png")) == (path,)


def test_the_home_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "my shot.png").write_bytes(png())
    for text in ("~/my shot.png", "~/my\\ shot.png", "'~/my shot.png'"):
        assert dropped(text) == (tmp_path / "my shot.png",)
    assert dropped("~nobody-of-that-name/x.png") == ()


def test_a_picture_that_is_not_called_one_is_dropped_too(tmp_path: Path) -> None:
    path = tmp_path / "clipboard"
    path.write_bytes(png())
    assert is_picture(path) and dropped(str(path)) == (path,)


def test_paths_of_windows_under_wsl(tmp_path: Path) -> None:
    environment = {"WSL_DISTRO_NAME": "Debian"}
    path = tmp_path / "my shot.png"
    path.write_bytes(png())
    inside = str(path).replace("/", "\\")
    for text in (f"\\\\wsl.localhost\\Debian{inside}", f'"\\\\wsl$\\Debian{inside}"'):
        assert dropped(text, environment) == (path,), text
    assert named("C:\\Users\\me\\shot.png", None, environment) == ((), "C:\\Users\\me\\shot.png")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "shot.png",  # relative: somebody's word, not a drop
        "see {0}",
        "{0} is what I mean",
        "{0} and {0}",
        "{0}\nwhat is this?",
        "/no/such/file.png",
        "{0} /no/such/file.png",
        "{folder}",
        "{notes}",
        "'{0}",
        "it's",
        "/usr/bin/env",
        "file:///no/such.png",
        "file://elsewhere{0}",
        "file://[oops{0}",
        "/\0.png",
        "/" + "x" * 5000,
        "\\",
        "'",
        '"\\',
    ],
)
def test_everything_else_is_text(folder: Path, text: str) -> None:
    (folder / "notes.txt").write_text("text")
    values = {"folder": folder, "notes": folder / "notes.txt"}
    assert dropped(text.format(folder / "shot.png", **values)) == ()


def test_long_pastes_are_text_at_once() -> None:
    assert not may_be_a_drop("/tmp/x.png\n" * 20_000)
    assert may_be_a_drop(" '/tmp/x.png'") and not may_be_a_drop("def f():\n    return '/tmp/x.png'")


def test_names_after_a_command_may_be_relative_and_need_not_be_pictures(folder: Path) -> None:
    (folder / "notes.txt").write_text("text")
    assert named("two words.png", folder) == ((folder / "two words.png",), "")
    assert named("shot.png notes.txt", folder)[0] == (folder / "shot.png", folder / "notes.txt")
    assert named("'two words.png' shot.png", folder)[0] == (
        folder / "two words.png",
        folder / "shot.png",
    )
    assert named("two\\ words.png shot.png", folder)[1] == ""
    assert named("shot.png gone.png", folder) == ((), "gone.png")
    assert named("gone away.png", folder)[1] in ("gone away.png", "gone")
    assert named("  ", folder) == ((), "")


@given(st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=30))
@settings(max_examples=scaled(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_a_file_is_called_it_is_found_in_every_quoting(tmp_path: Path, name: str) -> None:
    name += ".png"
    if len(name.encode()) > 250 or name.strip() != name or len(name.splitlines()) != 1:
        return
    where = tmp_path / str(len(os.listdir(tmp_path)))
    where.mkdir()
    (where / name).write_bytes(png())
    for quoting, write in QUOTINGS.items():
        found = dropped(write(str(where / name)))
        assert found == (where / name,), quoting
    assert named(quoted(name), where) == ((where / name,), "")


@given(st.text(max_size=60), st.sampled_from(["/", "'/", '"/', "~/", "file://", "\\~", ""]))
@settings(max_examples=scaled(200))
def test_no_text_is_too_odd_to_be_looked_at(text: str, begin: str) -> None:
    for path in dropped(begin + text):
        assert path.is_file()
    named(begin + text)


def test_completions_are_pictures_and_folders_as_they_are_typed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "shots of today").mkdir()
    (folder / "shoes.txt").write_text("no picture")
    (folder / ".hidden.png").write_bytes(png())
    assert completions("sho", folder) == ("shot.png", "shots of today/")
    assert completions("SHOT.", folder) == ("shot.png",)
    assert completions(".h", folder) == (".hidden.png",)
    assert completions("screenshot 2026-12-01 at 9.41.07 a", folder) == (NAMES[2],)
    assert completions("gone/", folder) == () and ".hidden.png" not in completions("", folder)
    monkeypatch.setenv("HOME", str(folder.parent))
    assert completions("~/my shots/shot.") == ("~/my shots/shot.png",)
    assert completions(f"{folder}/shot.") == (f"{folder}/shot.png",)
    assert len(completions("", folder, most=3)) == 3
