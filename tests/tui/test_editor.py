"""The prompt in a person's own editor."""

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from textual.app import SuspendNotSupported

from ds4tui.app import Ds4App
from ds4tui.errors import UsageError
from ds4tui.tui.editor import edited, editor_command
from tests.tui.harness import running


@pytest.fixture
def lent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Says when the terminal is lent and comes back; a headless one cannot be."""
    said: list[str] = []

    @contextmanager
    def suspend(app: Ds4App) -> Iterator[None]:
        said.append("lent")
        yield
        said.append("back")

    monkeypatch.setattr(Ds4App, "suspend", suspend)
    return said


def editor(folder: Path, script: str) -> str:
    """A program that is run with the file's path as $1."""
    path = folder / "my editor"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return f"'{path}' --wait"


def test_the_editor_is_the_persons_with_its_arguments() -> None:
    assert editor_command({"VISUAL": "code -w", "EDITOR": "ed"}) == ["code", "-w"]
    assert editor_command({"EDITOR": "'my vi' -n"}) == ["my vi", "-n"]
    assert editor_command({}) == ["vi"] == editor_command({"EDITOR": " "})
    with pytest.raises(UsageError, match="EDITOR cannot be read"):
        editor_command({"EDITOR": "'vi"})


def test_the_line_end_that_editors_add_is_none_of_the_text(tmp_path: Path) -> None:
    adding = {"EDITOR": editor(tmp_path, 'printf "more\\n" >> "$2"')}
    assert edited("é ", adding) == "é more"
    assert edited("a\n", adding) == "a\nmore\n"


@pytest.mark.parametrize(
    ("script", "words"), [("exit 3", "ended with 3"), (None, "could not be run: No such file")]
)
def test_an_editor_that_fails_is_told(tmp_path: Path, script: str | None, words: str) -> None:
    command = editor(tmp_path, script) if script else str(tmp_path / "nowhere")
    with pytest.raises(UsageError) as refused:
        edited("text", {"EDITOR": command})
    assert words in refused.value.message and "EDITOR=" in refused.value.hint


async def test_the_prompt_is_written_in_the_editor_and_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lent: list[str]
) -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", editor(tmp_path, 'printf "\\nand\\033[31m more\\n" >> "$2"'))
    async with running() as on:
        await on.type("draft")
        await on.press("ctrl+g")
        await on.until(lambda: on.prompt.text == "draft\nand more")
        assert lent == ["lent", "back"] and on.questions == []
        await on.type("!")
        assert on.prompt.text == "draft\nand more!"


async def test_a_failing_editor_leaves_the_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lent: list[str]
) -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", editor(tmp_path, 'echo lost > "$2"; exit 1'))
    async with running() as on:
        await on.type("draft")
        await on.press("ctrl+g")
        await on.until(lambda: any("ended with 1" in notice for notice in on.notices))
        assert on.prompt.text == "draft"


async def test_a_terminal_that_cannot_be_lent_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def refused(app: Ds4App) -> Iterator[None]:
        raise SuspendNotSupported("no")
        yield

    monkeypatch.setattr(Ds4App, "suspend", refused)
    async with running() as on:
        await on.press("ctrl+g")
        await on.until(lambda: any("cannot be lent" in notice for notice in on.notices))
