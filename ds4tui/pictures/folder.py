"""Where this machine keeps its screenshots, and the newest pictures there."""

import os
import platform
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ds4tui.pictures.paths import SUFFIXES

ASK_S = 2.0
NEWEST = 50
# Folders of that many files are looked through; a download folder may have more.
ENTRIES_MAX = 20_000
# As programs of Linux and Windows call the folder below that of pictures.
_NAMES = ("Screenshots", "screenshots", "Screenshot")
_XDG_LINE = re.compile(r'^\s*XDG_PICTURES_DIR\s*=\s*"(.*)"\s*$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Listed:
    """A picture file; `changed_s` in seconds since 1970."""

    path: Path
    changed_s: float
    bytes: int


def screenshots_folder(
    environment: Mapping[str, str] = os.environ, system: str | None = None
) -> Path:
    """Where screenshots go; it need not exist. May take ASK_S: call it off the loop."""
    home = Path(environment.get("HOME") or Path.home())
    if (system or platform.system()) == "Darwin":
        return _macos_folder(home, environment) or home / "Desktop"
    pictures = _xdg_pictures(home, environment)
    below = (pictures / name for name in _NAMES)
    return next((folder for folder in below if folder.is_dir()), pictures)


def newest(folder: Path, most: int = NEWEST) -> tuple[Listed, ...]:
    """The newest pictures in `folder`, the newest one first. Raises OSError if it is none."""
    found: list[Listed] = []
    with os.scandir(folder) as entries:
        for count, entry in enumerate(entries):
            if count >= ENTRIES_MAX:
                break
            if Path(entry.name).suffix.lower() in SUFFIXES and not entry.name.startswith("."):
                found += _listed(entry)
    return tuple(sorted(found, key=lambda each: each.changed_s, reverse=True)[:most])


def newest_screenshots() -> tuple[Path, tuple[Listed, ...]]:
    """The folder of this machine's screenshots, and the newest pictures there, if any."""
    folder = screenshots_folder()
    try:
        return folder, newest(folder)
    except OSError:
        return folder, ()


def _listed(entry: os.DirEntry[str]) -> list[Listed]:
    try:
        stat = entry.stat()
        is_file = entry.is_file()
    except OSError:  # gone meanwhile, or a link to nowhere
        return []
    return [Listed(Path(entry.path), stat.st_mtime, stat.st_size)] if is_file else []


def _macos_folder(home: Path, environment: Mapping[str, str]) -> Path | None:
    try:
        asked = subprocess.run(
            ("defaults", "read", "com.apple.screencapture", "location"),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ASK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = os.fsdecode(asked.stdout).strip()
    if asked.returncode or not said:
        return None
    return home / said[2:] if said.startswith("~/") else Path(said)


def _xdg_pictures(home: Path, environment: Mapping[str, str]) -> Path:
    """By the variable, the file of xdg-user-dirs, or the name that it has at first."""
    told = environment.get("XDG_PICTURES_DIR", "")
    if not told:
        config = Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "user-dirs.dirs"
        try:
            line = _XDG_LINE.search(config.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            line = None
        told = line[1] if line else ""
    told = told.replace("$HOME", str(home))
    return Path(told) if told.startswith("/") else home / "Pictures"
