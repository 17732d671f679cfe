"""No test of the doctor sees the models, terminal or home of who runs it."""

from pathlib import Path

import pytest

OTHERS = (
    "HF_HOME HF_HUB_CACHE HUGGINGFACE_HUB_CACHE XDG_CACHE_HOME LLAMA_CACHE OLLAMA_MODELS "
    "TERM TERM_PROGRAM KITTY_WINDOW_ID LC_TERMINAL TMUX COLORTERM LC_ALL LC_CTYPE LANG CXX"
).split()


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    for name in OTHERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr("ds4tui.library.places.OLLAMA_SERVICE", home / "no-service")
    return home
