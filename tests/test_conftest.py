"""Tests share what takes long to make: a compilation of the kernels takes ten seconds."""

import os
from pathlib import Path

import pytest

from ds4tui.config import load_settings
from ds4tui.kernels.cpu.native.build import cache_folder

_seen: set[Path] = set()


@pytest.mark.parametrize("time", [1, 2])
def test_all_tests_and_their_processes_compile_into_one_folder(time: int, one_cache: Path) -> None:
    _seen.add(cache_folder())
    assert _seen == {one_cache / "kernels"}
    assert os.environ["DS4TUI_CACHE_DIR"] == str(one_cache)


def test_what_tests_keep_on_disk_lies_in_folders_of_their_own(tmp_path: Path) -> None:
    settings = load_settings()
    for path in (settings.kv_dir, settings.replies_path, settings.database_path):
        assert path.is_relative_to(tmp_path)
