import threading
from dataclasses import replace
from pathlib import Path

import pytest

from ds4tui.config import Settings
from ds4tui.errors import GGUFError, ModelNotFound
from ds4tui.opening import chunk_sizes, open_assistant


def test_a_wrong_file_is_told_before_any_thread_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading.Thread, "start", None)
    settings = replace(Settings(), data_dir=tmp_path)
    path = tmp_path / "x.gguf"
    path.write_bytes(b"this is no model at all")
    with pytest.raises(GGUFError):
        open_assistant(str(path), settings, print)
    with pytest.raises(ModelNotFound):
        open_assistant("smollm2", settings, print)


def test_chunk_sizes_are_a_fixed_set_that_gets_smaller() -> None:
    assert chunk_sizes(512) == tuple(range(512, 0, -32))
    assert chunk_sizes(100) == (100, 96, 64, 32)
    assert chunk_sizes(32) == (32,)
