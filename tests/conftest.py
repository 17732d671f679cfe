"""Every test gets folders of its own; the real model is read where `ds4tui pull` put it.

Tests marked dev_models need more models, which tools/dev_models.py fetches; they are collected
only where DS4TUI_DEV_MODELS names the folder.
"""

import os
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

from ds4tui.config import load_settings
from ds4tui.library.resolve import resolve_model

os.environ["DS4TUI_DEBUG"] = "1"  # the session's invariants are asserted at every step
# A busy machine must not turn a test red; CI runs the same examples each time, people new ones.
hypothesis.settings.register_profile(
    "ds4tui", deadline=None, derandomize=bool(os.environ.get("CI")), print_blob=True
)
hypothesis.settings.load_profile("ds4tui")
_REAL_DATA_DIR = load_settings().data_dir
_DEV_MODELS = os.environ.get("DS4TUI_DEV_MODELS")
_DEV_FILES = {
    "qwen": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "gemma": "gemma-3-270m-q4_k_m.gguf",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if _DEV_MODELS:
        return
    left_out = [item for item in items if item.get_closest_marker("dev_models")]
    kept = [item for item in items if not item.get_closest_marker("dev_models")]
    items[:] = kept
    if left_out:
        config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session")
def one_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everybody's cache folder, or else each test, and each process of one, would compile the
    kernels anew. What is compiled into it is named by all that it was made from."""
    given = os.environ.get("DS4TUI_CACHE_DIR")
    return Path(given) if given else tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, one_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Settings, state, logs, models and conversations of a test are under its tmp_path."""
    kept = {f"DS4TUI_{name}" for name in ("DEBUG", "TEST_SCALE", "KERNELS")}
    for name in [name for name in os.environ if name.startswith("DS4TUI_")]:
        if name not in kept:
            monkeypatch.delenv(name)
    for folder in ("config", "state", "data"):
        monkeypatch.setenv(f"DS4TUI_{folder.upper()}_DIR", str(tmp_path / folder))
    monkeypatch.setenv("DS4TUI_CACHE_DIR", str(one_cache))
    return tmp_path


@pytest.fixture(scope="session")
def real_data_dir() -> Path:
    """The user data folder, which holds the real model."""
    return _REAL_DATA_DIR


@pytest.fixture(scope="session")
def smollm2_path(real_data_dir: Path) -> Path:
    """The real SmolLM2; a test that asks for it fails, with the command to run, without it."""
    return resolve_model("smollm2", real_data_dir)


@pytest.fixture(scope="session")
def dev_model() -> Callable[[str], Path]:
    """Path of a development model, "qwen" or "gemma"; a test that asks for one that is not
    there fails with the command to run."""

    def path_of(name: str) -> Path:
        path = Path(_DEV_MODELS or "") / _DEV_FILES[name]
        assert path.is_file(), f"{path} is missing: run `python tools/dev_models.py {path.parent}`"
        return path

    return path_of
