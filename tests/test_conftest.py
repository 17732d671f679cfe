"""Tests share what takes long to make: a compilation of the kernels takes ten seconds."""

import os
from pathlib import Path

import pytest

from ds4tui.kernels.cpu.native.build import cache_folder

_seen: set[Path] = set()


@pytest.mark.parametrize("time", [1, 2])
def test_all_tests_and_their_processes_compile_into_one_folder(time: int, one_cache: Path) -> None:
    _seen.add(cache_folder())
    assert _seen == {one_cache / "kernels"}
    assert os.environ["DS4TUI_CACHE_DIR"] == str(one_cache)
