"""What tests put in the place of the home and the programs of who runs them."""

from collections.abc import Iterable
from pathlib import Path

import pytest

# Where other programs keep models, as the environment says it.
MODEL_FOLDERS = (
    "HF_HOME HF_HUB_CACHE HUGGINGFACE_HUB_CACHE XDG_CACHE_HOME LLAMA_CACHE OLLAMA_MODELS"
).split()


def empty_home(folder: Path, monkeypatch: pytest.MonkeyPatch, unset: Iterable[str]) -> Path:
    """A home below `folder`, without other programs' models and the variables `unset`."""
    home = folder / "home"
    home.mkdir()
    for name in (*MODEL_FOLDERS, *unset):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr("ds4tui.library.places.OLLAMA_SERVICE", home / "no-service")
    return home
