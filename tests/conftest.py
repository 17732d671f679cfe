"""Every test gets folders of its own; the real model is read where `ds4tui pull` put it."""

import os
from pathlib import Path

import pytest

from ds4tui.config import load_settings
from ds4tui.library.resolve import resolve_model

os.environ["DS4TUI_DEBUG"] = "1"  # the session's invariants are asserted at every step
_REAL_DATA_DIR = load_settings().data_dir


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Settings, state, logs, models and conversations of a test are under its tmp_path."""
    # The cache is everybody's: what is compiled into it is named by all that it was made from.
    kept = {f"DS4TUI_{name}" for name in ("DEBUG", "TEST_SCALE", "KERNELS", "CACHE_DIR")}
    for name in [name for name in os.environ if name.startswith("DS4TUI_")]:
        if name not in kept:
            monkeypatch.delenv(name)
    for folder in ("config", "state", "data"):
        monkeypatch.setenv(f"DS4TUI_{folder.upper()}_DIR", str(tmp_path / folder))
    return tmp_path


@pytest.fixture(scope="session")
def real_data_dir() -> Path:
    """The user data folder, which holds the real model."""
    return _REAL_DATA_DIR


@pytest.fixture(scope="session")
def smollm2_path(real_data_dir: Path) -> Path:
    """The real SmolLM2; a test that asks for it fails, with the command to run, without it."""
    return resolve_model("smollm2", real_data_dir)
