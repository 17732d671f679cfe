"""tools/start.py: what it says to machines that cannot run ds4tui, and when it installs."""

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parent.parent / "tools" / "start.py"

LINUX: dict[str, Any] = {
    "version": (3, 12, 4),
    "implementation": "CPython",
    "free_threaded": False,
    "platform": "linux",
    "machine": "x86_64",
    "is_64_bit": True,
    "libc": ("glibc", "2.36"),
    "translated": False,
    "macos": "",
}
MAC = {**LINUX, "platform": "darwin", "machine": "arm64", "libc": ("", ""), "macos": "14.0"}


@pytest.fixture
def start() -> ModuleType:
    spec = importlib.util.spec_from_file_location("start", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_is_written_so_that_old_pythons_can_read_it() -> None:
    tree = ast.parse(SCRIPT.read_text())
    too_new = (
        ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.Starred, ast.AsyncFunctionDef,
        ast.Nonlocal, ast.YieldFrom, ast.Match, ast.MatMult,
    )  # fmt: skip
    for node in ast.walk(tree):
        assert not isinstance(node, too_new), ast.unparse(node)
        if isinstance(node, ast.FunctionDef):
            arguments = node.args
            assert node.returns is None and not arguments.kwonlyargs and not arguments.posonlyargs
            assert all(argument.annotation is None for argument in arguments.args)
        if isinstance(node, ast.Raise):
            assert node.cause is None
        if isinstance(node, ast.ClassDef):
            assert not node.keywords
        if isinstance(node, ast.Call):
            # Python 2 takes nothing behind **, and one * at most.
            assert not any(keyword.arg is None for keyword in node.keywords[:-1])


def test_here_nothing_is_in_the_way(start: ModuleType) -> None:
    assert start.refusal(start.Machine()) is None
    for minor in (11, 12, 13):
        assert start.refusal(start.Machine(**{**LINUX, "version": (3, minor, 0)})) is None
    assert start.refusal(start.Machine(**MAC)) is None
    assert start.refusal(start.Machine(**{**MAC, "macos": "26.1"})) is None
    assert start.refusal(start.Machine(**{**LINUX, "machine": "aarch64"})) is None


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        ({**LINUX, "version": (2, 7, 18)}, ["Python 2.7.18 is too old", "3.11, 3.12 or", "uv run"]),
        ({**LINUX, "version": (3, 10, 13)}, ["Python 3.10.13 is too old", "uv run ds4tui"]),
        ({**MAC, "version": (3, 9, 6)}, ["Python 3.9.6 is too old", "uv run ds4tui"]),
        ({**LINUX, "version": (3, 14, 0)}, ["Python 3.14.0 is too new", "uv run ds4tui"]),
        ({**LINUX, "version": (4, 0, 0)}, ["Python 4.0.0 is too new"]),
        ({**LINUX, "implementation": "PyPy"}, ["needs CPython", "PyPy"]),
        ({**LINUX, "free_threaded": True}, ["free-threaded"]),
        ({**MAC, "translated": True, "machine": "x86_64"}, ["Rosetta", "ARM Python"]),
        ({**MAC, "machine": "x86_64"}, ["Apple silicon"]),
        ({**MAC, "macos": "13.6.1"}, ["macOS 14 or newer", "macOS 13.6.1"]),
        ({**LINUX, "platform": "win32"}, ["not on win32", "WSL"]),
        ({**LINUX, "platform": "freebsd14"}, ["not on freebsd14"]),
        ({**LINUX, "machine": "riscv64"}, ["64-bit x86 or ARM", "riscv64"]),
        ({**LINUX, "is_64_bit": False}, ["in 32 bits"]),
        ({**LINUX, "libc": ("", "")}, ["musl"]),
        ({**LINUX, "libc": ("glibc", "2.31")}, ["glibc 2.35", "2.31"]),
    ],
)
def test_what_is_in_the_way_is_one_sentence(
    start: ModuleType, machine: dict[str, Any], words: list[str]
) -> None:
    sentence = start.refusal(start.Machine(**machine))
    assert all(word in sentence for word in words), sentence
    assert "\n" not in sentence


def test_another_python_on_the_path_is_taken(start: ModuleType) -> None:
    assert start.other_python(lambda name: None) is None
    # A shim that answers with another version, or not at all, is passed over.
    assert start.other_python(lambda name: "/bin/false") is None
    here = f"python3.{sys.version_info[1]}"
    assert start.other_python(lambda n: sys.executable if n == here else None) == sys.executable


class World:
    """A project and a venv in tmp_path; commands are recorded, not run."""

    def __init__(self, start: ModuleType, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.venv = folder / ".venv"
        self.commands: list[list[str]] = []
        self.exit_code = 0
        (folder / "pyproject.toml").write_text("[project]")
        patch.setattr(start, "ROOT", str(folder))
        patch.setattr(start, "VENV", str(self.venv))
        patch.setattr(start.subprocess, "call", self.call)
        patch.setattr(start, "said", self.said)
        self.modules = {"ensurepip", "venv", "pip"}
        self.runs = False  # whether the venv's Python runs

    def call(self, command: list[str], cwd: str | None = None) -> int:
        self.commands.append(command)
        if "venv" in command:
            (self.venv / "bin").mkdir(parents=True, exist_ok=True)
            self.runs = True
        return self.exit_code

    def said(self, *command: str) -> str:
        in_venv = command[0].startswith(str(self.venv))
        if in_venv and not self.runs:
            return ""
        if "version_info" in command[-1]:
            return str(tuple(sys.version_info[:3]))
        wanted = command[-1].removeprefix("import ").split(";")[0]
        if wanted in ("ensurepip", "venv") or (wanted == "pip" and in_venv):
            return "1" if wanted in self.modules else ""
        if "--version" in command:
            return "pip 20.0 from x" if "pip" in self.modules else ""
        return "1"

    @property
    def installed(self) -> list[str]:
        return [command[-1] for command in self.commands if "install" in command]


@pytest.fixture
def world(start: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(start.shutil, "which", lambda name: None)
    return World(start, tmp_path, monkeypatch)


def test_the_second_start_installs_nothing(start: ModuleType, world: World) -> None:
    start.set_up("")
    assert world.installed == [start.ROOT]
    world.commands.clear()
    start.set_up("")
    assert world.commands == []


def test_the_test_tools_are_added_and_then_serve_both(start: ModuleType, world: World) -> None:
    start.set_up("")
    start.set_up("test")
    start.set_up("")
    start.set_up("test")
    assert world.installed == [start.ROOT, start.ROOT + "[test]"]
    assert sum("venv" in command for command in world.commands) == 1


@pytest.mark.parametrize("change", ["pyproject", "stamp", "half a stamp", "another python"])
def test_what_changed_is_installed_again(start: ModuleType, world: World, change: str) -> None:
    start.set_up("")
    stamp = world.venv / start.STAMP
    if change == "pyproject":
        Path(start.ROOT, "pyproject.toml").write_text("[project]\n")
    elif change == "stamp":
        stamp.unlink()
    elif change == "half a stamp":
        stamp.write_text('{"pyproj')
    else:
        stamp.write_text(json.dumps({**json.loads(stamp.read_text()), "python": [3, 11, 0]}))
    start.set_up("")
    assert len(world.installed) == 2


def test_a_broken_venv_is_made_anew(start: ModuleType, world: World) -> None:
    start.set_up("")
    world.runs = False
    start.set_up("")
    assert [("venv" in command) for command in world.commands] == [True, False, True, False]
    assert "--clear" in world.commands[2]


def test_an_installation_that_fails_leaves_no_stamp(start: ModuleType, world: World) -> None:
    start.set_up("")
    Path(start.ROOT, "pyproject.toml").write_text("[project]\n")
    world.exit_code = 1
    with pytest.raises(start.Stop, match="installation failed"):
        start.set_up("")
    assert not (world.venv / start.STAMP).exists()


def test_without_the_venv_module_the_package_to_install_is_named(
    start: ModuleType, world: World
) -> None:
    world.modules = {"venv", "pip"}
    with pytest.raises(start.Stop, match="apt install python3-venv"):
        start.set_up("")


def test_uv_stands_in_for_a_missing_pip(
    start: ModuleType, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.modules = {"venv"}
    monkeypatch.setattr(start.shutil, "which", lambda name: "/bin/uv" if name == "uv" else None)
    start.set_up("")
    assert "--without-pip" in world.commands[0]
    assert world.commands[1][:3] == ["uv", "pip", "install"]


def test_the_script_itself_says_it_and_exits_1(tmp_path: Path) -> None:
    code = (
        f"import runpy, sys; sys.version_info = (3, 10, 0, 'final', 0); sys.argv = ['x']\n"
        f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PATH": str(tmp_path)}
    )
    assert ran.returncode == 1 and ran.stdout == ""
    assert ran.stderr.startswith("Python 3.10.0 is too old") and ran.stderr.count("\n") == 1
