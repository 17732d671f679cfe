"""`ds4tui doctor`: its report, its JSON and its exit code."""

import builtins
import importlib.metadata
import io
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ds4tui import doctor as doctors
from ds4tui.cli import main
from ds4tui.config import Settings
from ds4tui.doctor import doctor, examined, machine
from ds4tui.doctor.findings import Finding, Section, is_usable, one_line, section_lines, verdict
from ds4tui.kernels import choice
from ds4tui.kernels.choice import TwinReport
from ds4tui.library.resolve import models_dir

TITLES = [
    "ds4tui", "device", "memory", "MLX", "BLAS", "C++ compiler", "twins", "folders", "terminal",
    "models",
]  # fmt: skip


def test_the_report_has_all_sections_and_says_that_all_is_well(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines[:-1] if not line.startswith(" ")] == TITLES
    assert lines[-1] == "nothing is wrong"
    text = "\n".join(lines)
    for part in ("mlx 0", "smollm2 is not on this machine yet", "-> Run: ds4tui pull smollm2",
                 "decoder step: C++ is in use (agrees with the reference)", "available",
                 "conversations: ", "multiplies with"):  # fmt: skip
        assert part in text


def test_json_is_one_object_with_facts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert whole["usable"] is True
    sections = {section["title"]: section["findings"] for section in whole["sections"]}
    assert list(sections) == TITLES
    assert sections["memory"][0]["facts"]["available_bytes"] > 0
    verdicts = {f["facts"].get("operation"): f["facts"].get("is_fault") for f in sections["twins"]}
    assert verdicts["decoder step"] is False
    assert {found["level"] for findings in sections.values() for found in findings} <= {
        "ok", "note", "warn", "BAD",
    }  # fmt: skip


def test_a_broken_model_is_a_warning_and_a_broken_choice_stops_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = models_dir(tmp_path / "data")
    folder.mkdir(parents=True)
    (folder / "bad.gguf").write_bytes(b"not a model at all")
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "  warn  bad (ds4tui): " in out and "the rest can be used" in out
    assert main(["doctor", "-m", "bad"]) == 1
    out = capsys.readouterr().out
    assert "  BAD   bad (ds4tui), chosen: " in out and "that stops use" in out


def test_the_home_folder_is_not_spelled_out_for_people(
    own_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DS4TUI_STATE_DIR", str(own_home / "state"))
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "state: ~/state" in out and str(own_home) not in out
    assert main(["doctor", "--json"]) == 0
    assert str(own_home) in capsys.readouterr().out, "a program needs the path"


def test_a_check_that_fails_is_told_and_the_others_are_made() -> None:
    def fails() -> list[Finding]:
        raise ZeroDivisionError("oh")

    section = examined("odd", fails)
    assert section.findings[0].level == "warn" and "ZeroDivisionError('oh')" in str(section)


def test_a_missing_package_stops_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name in ("gguf", "xllamacpp"):
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    found = {f.text: f for f in machine.versions()}
    assert found["gguf is not installed"].level == "BAD"
    assert found["gguf is not installed"].advice.endswith("-m pip install gguf")
    optional = next(f for text, f in found.items() if text.startswith("xllamacpp is not"))
    assert optional.level == "note"
    assert doctor(Settings(data_dir=tmp_path), io.StringIO()) == 1


def test_mlx_that_cannot_be_imported_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def no_mlx(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("mlx"):
            raise ImportError("libmlx.so: GLIBC_2.35 not found")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", no_mlx)
    for check in (machine.device, machine.mlx):
        (found,) = check()
        assert found.level == "BAD" and "GLIBC_2.35" in found.text and found.advice


def test_a_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = SimpleNamespace(gpu="gpu", cpu="cpu")
    about = {"device_name": "Apple M9", "memory_size": 2**35, "odd": object()}
    core = SimpleNamespace(
        DeviceType=kinds, default_device=lambda: SimpleNamespace(type="gpu"),
        device_info=lambda: about,
    )  # fmt: skip
    monkeypatch.setattr(machine, "_mlx_core", lambda: core)
    (found,) = machine.device()
    assert found.text.startswith("GPU: Apple M9; beside it ")
    assert found.facts["device"] == "gpu" and found.facts["memory_size"] == 2**35
    assert "odd" not in found.facts
    json.dumps(dict(found.facts))


def test_a_twin_that_is_wrong_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = TwinReport("decoder step", "C++", False, "1 rows: differs by 3", True)
    monkeypatch.setattr(choice, "report", lambda: (wrong,))
    found = list(machine.twins())[-1]
    assert found.level == "warn" and "differs by 3" in found.text and "selftest" in found.advice


def test_little_memory_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_memory_bytes", lambda: 5 * 10**8)
    (found,) = machine.memory()
    assert found.level == "note" and "0.50 GB of " in found.text


def test_a_folder_that_cannot_be_written_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    levels = {found.facts["what"]: found.level for found in machine.folders(Settings())}
    assert levels.pop("settings") == "ok", "those are only read"
    assert set(levels.values()) == {"warn"}


def test_a_gpu_of_nvidia_that_is_not_used_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    monkeypatch.setattr(sys, "platform", "linux")
    found = list(machine.mlx())[-1]
    assert found.level == "note" and "mlx-cuda-13" in found.advice


def test_levels_decide_the_verdict() -> None:
    def of(*levels: Any) -> list[Section]:
        return [Section("x", tuple(Finding(level, "y") for level in levels))]

    assert verdict(of("ok", "note")) == "nothing is wrong" and is_usable(of("note", "warn"))
    assert "see warn" in verdict(of("ok", "warn"))
    assert "see BAD" in verdict(of("warn", "BAD")) and not is_usable(of("BAD"))


def test_what_comes_out_of_files_steers_nothing() -> None:
    lines = list(section_lines(Section("x", (Finding("ok", "a\x1b[31m\nb", "c\x07"),))))
    assert lines == ["x", "  ok    a?[31m b", "        -> c?"]
    assert one_line("\u202e") == "?"


def test_sections_are_shown_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()

    def two(settings: Settings) -> Any:
        yield Section("first", ())
        assert out.getvalue() == "first\n"
        yield Section("second", ())

    monkeypatch.setattr(doctors, "sections", two)
    assert doctor(Settings(), out) == 0
