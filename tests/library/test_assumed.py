"""How headers are read as if a model were opened: with the kernels that this machine will have."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ds4tui.kernels.cpu.native import build
from ds4tui.kernels.cpu.native.build import Unavailable
from ds4tui.kernels.cpu.native.variants import runnable
from ds4tui.library import headers


@pytest.fixture(autouse=True)
def a_cpu_that_compiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A small source and an empty cache folder, whatever this machine is."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("DS4TUI_KERNELS", raising=False)
    source = tmp_path / "source"
    source.mkdir()
    (source / "step.cpp").write_text('extern "C" int answer() { return 42; }\n')
    monkeypatch.setattr(build, "SOURCE", source)
    monkeypatch.setenv("DS4TUI_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "_failed", set())
    headers._compiler.cache_clear()
    yield
    headers._compiler.cache_clear()


def test_kernels_that_will_be_compiled_count(tmp_path: Path) -> None:
    assert headers.assumed_path().matrices == "blocks"
    assert not (tmp_path / "cache").exists()  # nothing is compiled for that


def test_after_a_compilation_that_failed_they_do_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "source" / "step.cpp").write_text("no C++\n")
    assert headers.assumed_path().matrices == "blocks"  # it cannot be known yet
    with pytest.raises(Unavailable):
        build.built(runnable()[0])
    assert headers.assumed_path().matrices == "host"


def test_where_nothing_can_be_written_only_what_is_there_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    build.built(runnable()[0])
    assert headers._compiler() is not None  # access is asked of it, too
    monkeypatch.setattr(build.os, "access", lambda *_: False)
    assert headers.assumed_path().matrices == "blocks"
    monkeypatch.setenv("DS4TUI_CACHE_DIR", str(tmp_path / "other"))
    assert headers.assumed_path().matrices == "host"


def test_a_file_in_the_place_of_the_cache_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DS4TUI_CACHE_DIR", str(tmp_path / "file"))
    assert headers.assumed_path().matrices == "host"


def test_without_a_compiler_they_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert headers.assumed_path().matrices == "host"
