import threading
from dataclasses import replace
from pathlib import Path

import pytest

from ds4tui.config import Settings
from ds4tui.engine.requests import SamplingParams
from ds4tui.errors import GGUFError, ModelNotFound
from ds4tui.opening import MEMORY_EVERY_S, chunk_sizes, now_and_then, open_assistant
from ds4tui.selftest.tiny_model import write_tiny_model
from tests.fakes import EventLog
from tests.golden.files import projector_path


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


def test_an_image_encoder_is_no_model(tmp_path: Path) -> None:
    settings = replace(Settings(), data_dir=tmp_path)
    with pytest.raises(GGUFError, match=r"image encoder .* no model") as told:
        open_assistant(str(projector_path("idefics3")), settings, lambda words: None)
    assert "--mmproj" in told.value.hint


def test_chunk_sizes_are_a_fixed_set_that_gets_smaller() -> None:
    assert chunk_sizes(512) == tuple(range(512, 0, -32))
    assert chunk_sizes(100) == (100, 96, 64, 32)
    assert chunk_sizes(32) == (32,)


def test_the_memory_is_asked_for_a_few_times_a_second_however_fast_tokens_come() -> None:
    reads = iter(range(100))
    times_s = iter([step * MEMORY_EVERY_S / 10 for step in range(31)])
    recent = now_and_then(lambda: next(reads), lambda: next(times_s))
    seen = [recent() for _ in range(31)]
    assert seen[0] == 0 and seen[-1] in (2, 3) and seen == sorted(seen)


def test_a_folder_that_cannot_hold_states_is_told_and_the_model_works(tmp_path: Path) -> None:
    (tmp_path / "kv").write_text("a file is where the folder should be")
    write_tiny_model(tmp_path / "tiny.gguf")
    settings = replace(Settings(), data_dir=tmp_path, kv_disk="on")
    assistant = open_assistant(str(tmp_path / "tiny.gguf"), settings, lambda words: None)
    try:
        told = assistant.stats.disk
        assert told is not None and not told.is_writer
        assert told.folder == str(tmp_path / "kv") and "cannot hold KV records" in told.why_not
    finally:
        assistant.close()


@pytest.mark.real_model
def test_memory_figures_on_a_cpu_are_those_of_the_process(
    tmp_path: Path, smollm2_path: Path
) -> None:
    """Weights and rows are not MLX's there: its own figures would be next to nothing."""
    settings = replace(Settings(), data_dir=tmp_path)
    assistant = open_assistant(str(smollm2_path), settings, lambda words: None)
    try:
        log = EventLog()
        sampling = SamplingParams(temperature=0.0, max_tokens=2)
        assert assistant.complete("Once upon a time", sampling, log).wait(60)
        stats = assistant.stats
        assert stats.compute_path.startswith("CPU")
        assert stats.weights_bytes <= stats.memory_active_bytes <= stats.memory_peak_bytes
    finally:
        assistant.close()
