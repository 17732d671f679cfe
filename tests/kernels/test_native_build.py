"""Compiling at first use: once, safely, and named when it cannot be done."""

import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ds4tui.kernels.cpu.native import build, library
from ds4tui.kernels.cpu.native.build import Unavailable
from ds4tui.kernels.cpu.native.variants import VARIANTS, Variant, runnable

TINY = Variant("tiny", (), frozenset(), ())


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source that compiles at once, in a cache folder of its own; the source folder."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "step.cpp").write_text('extern "C" int answer() { return 42; }\n')
    monkeypatch.setattr(build, "SOURCE", source)
    monkeypatch.setenv("DS4TUI_CACHE_DIR", str(tmp_path / "cache"))
    return source


def files() -> list[str]:
    return sorted(os.listdir(build.cache_folder()))


def test_it_is_compiled_once_and_said(tiny: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        first = build.built(TINY)
        assert "compiling CPU kernels for tiny, once" in caplog.text
        caplog.clear()
        assert build.built(TINY) == first
    assert caplog.text == ""
    assert files() == [first.name]


def test_a_library_is_of_its_source_flags_compiler_and_cpu(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [build.built(TINY), build.built(replace(TINY, flags=("-g",)))]
    (tiny / "more.h").write_text("")
    paths.append(build.built(TINY))
    monkeypatch.setattr(build, "cpu_features", lambda: frozenset({"another"}))
    paths.append(build.built(TINY))
    compiler = build.find_compiler()
    monkeypatch.setattr(build, "find_compiler", lambda: replace(compiler, version="other"))
    paths.append(build.built(TINY))
    assert len(set(paths)) == 5 and all(path.exists() for path in paths)


def test_two_processes_at_once_end_with_one_library(tiny: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from ds4tui.kernels.cpu.native import build\n"
        "from ds4tui.kernels.cpu.native.variants import Variant\n"
        "build.SOURCE = Path(sys.argv[1])\n"
        "print(build.built(Variant('tiny', (), frozenset(), ())))\n"
    )
    command = [sys.executable, "-c", program, str(tiny)]
    root = str(Path(build.__file__).parents[4])
    environment = {**os.environ, "PYTHONPATH": root}
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(3)
    ]
    answers = {process.communicate(timeout=120)[0].strip() for process in started}
    assert len(answers) == 1
    assert files() == [Path(answers.pop()).name]


def test_no_compiler_is_named(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Unavailable, match=r"no C\+\+ compiler found \(g\+\+, clang\+\+, c\+\+\)"):
        build.built(TINY)


def test_the_compiler_can_be_chosen(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(Unavailable, match="no-such-compiler"):
        build.built(TINY)


def script(path: Path, text: str) -> Path:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def test_a_compiler_that_fails_is_quoted(tiny: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tiny / "step.cpp").write_text("int main( {")
    with pytest.raises(Unavailable, match=r"failed: .*step\.cpp:1.*error"):
        build.built(TINY)
    assert files() == [], "nothing half made is left"


def test_a_compiler_that_hangs_is_given_up(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = script(tmp_path / "slow", '[ "$1" = --version ] && exit 0\nexec sleep 60\n')
    monkeypatch.setenv("CXX", str(slow))
    monkeypatch.setattr(build, "COMPILE_S", 0.2)
    with pytest.raises(Unavailable, match="slow did not end within"):
        build.built(TINY)


def test_one_that_cannot_start_gives_way_to_the_next(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """macOS has a g++ that only says that the tools are not installed."""
    broken, real = script(tmp_path / "g++", "exit 1\n"), build.find_compiler()
    script(tmp_path / "clang++", f'exec {real.path} "$@"\n')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert build.find_compiler().path == str(broken.with_name("clang++"))


def test_a_folder_that_cannot_be_written_is_named(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DS4TUI_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(Unavailable, match="cannot be written to"):
        build.built(TINY)


def test_a_library_that_cannot_be_loaded_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torn.so").write_bytes(b"\x7fELF torn")
    monkeypatch.setattr(library, "built", lambda variant: tmp_path / "torn.so")
    with pytest.raises(Unavailable, match="cannot be loaded"):
        library.Kernels(TINY)


def test_a_cpu_without_any_of_the_sets_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "runnable", list)
    with pytest.raises(Unavailable, match="neither AVX-512, AVX2 nor NEON"):
        library.best()


def test_what_a_cpu_can_run_follows_from_its_features(monkeypatch: pytest.MonkeyPatch) -> None:
    from ds4tui.kernels.cpu.native import variants

    def names(machine: str, *features: str) -> list[str]:
        monkeypatch.setattr(variants.platform, "machine", lambda: machine)
        monkeypatch.setattr(variants, "cpu_features", lambda: frozenset(features))
        return [variant.name for variant in runnable()]

    everything = frozenset[str]().union(*(variant.needs for variant in VARIANTS))
    assert names("x86_64", *everything) == ["AVX-512", "AVX2"]
    assert names("x86_64", *everything - {"avx512bw"}) == ["AVX2"]
    assert names("x86_64", "sse2") == []
    assert names("arm64") == names("aarch64", "asimd") == ["NEON"]
