import os
import platform
import sys
from pathlib import Path

import pytest

from ds4tui.doctor.compiler import compiler, install_advice
from ds4tui.kernels import choice
from ds4tui.kernels.cpu.native import build, variants


def test_compiler_flags_and_cached_kernels_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, kernels = compiler()
    assert first.level == "ok" and Path(first.facts["path"]).is_file() and first.facts["version"]
    variant = variants.runnable()[0]
    assert kernels.facts["variant"] == variant.name and variant.name in kernels.text
    assert set(variant.flags) <= set(kernels.facts["flags"]) and "-O3" in kernels.facts["flags"]
    assert not any(flag.startswith("-W") for flag in kernels.facts["flags"])
    monkeypatch.setenv("DS4TUI_CACHE_DIR", str(tmp_path))
    _, fresh = compiler()
    assert fresh.facts["cached"] is False and "not compiled yet" in fresh.text
    place = build.library_path(variant, build.find_compiler())
    place.parent.mkdir(exist_ok=True)
    place.touch()
    _, cached = compiler()
    assert cached.facts["cached"] is True and f"compiled, in {place.parent}" in cached.text


def test_without_a_compiler_the_command_that_brings_one_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (found,) = compiler()
    assert found.level == "note" and "no C++ compiler found (g++" in found.text
    assert found.advice == install_advice() != ""


def test_on_a_gpu_none_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "current", lambda: choice.TwinChoice({}, "gpu"))
    (there,) = compiler()
    assert there.level == "ok" and "not needed on a GPU" in there.text
    monkeypatch.setenv("PATH", str(tmp_path))
    (missing,) = compiler()
    assert missing.level == "ok" and missing.advice == ""


def test_a_cpu_without_our_instructions_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "runnable", list)
    _, found = compiler()
    assert found.level == "note" and "AVX2" in found.text and "slower path" in found.text


@pytest.mark.parametrize(
    ("release", "command"),
    [
        ({"ID": "ubuntu", "ID_LIKE": "debian"}, "sudo apt install g++"),
        ({"ID": "linuxmint", "ID_LIKE": "ubuntu debian"}, "sudo apt install g++"),
        ({"ID": "rocky", "ID_LIKE": "rhel centos fedora"}, "sudo dnf install gcc-c++"),
        ({"ID": "odd"}, "Install g++ or clang++."),
    ],
)
def test_the_system_decides_what_is_advised(
    release: dict[str, str], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: release)
    assert command in install_advice()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert install_advice() == "Run: xcode-select --install"
    monkeypatch.setitem(os.environ, "CXX", "nothing")
    assert "CXX" in install_advice()


def test_a_cache_that_cannot_be_written_to_is_told_with_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DS4TUI_CACHE_DIR", str(tmp_path / "file" / "below"))
    monkeypatch.setattr(choice, "_choices", {})
    finding = list(compiler())[-1]
    assert finding.level == "warn" and "cannot be kept" in finding.text
    assert "DS4TUI_CACHE_DIR" in finding.advice
