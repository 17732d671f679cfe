"""No test of the doctor sees the models, terminal or home of who runs it."""

from pathlib import Path

import pytest

from tests.surroundings import empty_home

OTHERS = (
    "TERM TERM_PROGRAM KITTY_WINDOW_ID LC_TERMINAL TMUX COLORTERM LC_ALL LC_CTYPE LANG CXX"
).split()


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_home(tmp_path, monkeypatch, OTHERS)
