"""Programs of a system that a test puts on PATH in the place of the real ones."""

import stat
from pathlib import Path

import pytest


def only_these(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH."""
    programs = folder / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    return programs


def make(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def give(folder: Path, name: str, arguments: str, data: bytes) -> None:
    """A program that writes `data` if it is called with `arguments`, else fails as xclip does.
    Called more than once it knows all of them."""
    held = folder / f"{name}.{len(list(folder.iterdir()))}.data"
    held.write_bytes(data)
    path = folder / name
    before = path.read_text().removesuffix("exit 1\n") if path.exists() else "#!/bin/sh\n"
    path.write_text(f"{before}[ \"$*\" = '{arguments}' ] && exec /bin/cat {held}\nexit 1\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
