"""Texts made fit to be shown to others: no home folder, no user name."""

import getpass
import os
import re
import sys
import tempfile
from functools import cache
from pathlib import Path

from ds4tui.library import places

NAME_CHARS_MIN = 3  # a shorter name is a part of too many words
_BEGINS = r"(?<![\w.-])"  # a path begins here: /var/tmp is not the /tmp of var
_USUAL = frozenset(("/usr/bin", "/usr/local", "/usr/local/bin", "/opt/homebrew"))
COMMON_NAMES = frozenset(("root", "user", "users", "home", "admin", "python", "ds4tui"))


def shortened(text: str) -> str:
    """`text` with ~ for the home folder, however it is reached."""
    for home in _homes():
        text = re.sub(rf"{_BEGINS}{re.escape(home)}(?=/|\W|$)", "~", text)
    return text


def anonymous(text: str) -> str:
    """Also without the user's name in other paths, without the folders that the environment
    names and this Python's own, and without the folder of temporary files, whose name tells the
    user's number on macOS."""
    for folder, shown in _told_folders():
        text = re.sub(rf"{_BEGINS}{re.escape(folder)}(?=/|\W|$)", shown, text)
    text, name = shortened(text), _user_name()
    for folder in _temporary_folders():
        text = re.sub(rf"{_BEGINS}{re.escape(folder)}(?=/)", "TEMP", text)
    if len(name) >= NAME_CHARS_MIN and name.lower() not in COMMON_NAMES:
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", "USER", text)
    return text


def _told_folders() -> list[tuple[str, str]]:
    """Folders that the person chose, with what is shown for each; the longest first."""
    found: dict[str, str] = {}
    for name, value in os.environ.items():
        if name.startswith("DS4TUI_") and name.endswith("_DIR") and os.path.isabs(value):
            found |= dict.fromkeys(_both(value), name)
    compiler = os.path.dirname(os.environ.get("CXX", ""))
    if os.path.isabs(compiler):
        found |= dict.fromkeys(_both(compiler), "CXX")
    found |= dict.fromkeys(_both(sys.prefix), "PYTHON")
    usual = {f for f in found if f in _USUAL or f.startswith("/opt/homebrew/") or f.count("/") < 2}
    return sorted(((f, s) for f, s in found.items() if f not in usual), key=lambda p: -len(p[0]))


def _temporary_folders() -> set[str]:
    try:
        return _both(tempfile.gettempdir())
    except FileNotFoundError:  # none can be written to
        return set()


def _homes() -> list[str]:
    """The longest first: one may lie in another."""
    found = {path for home in (places.home(), Path.home()) for path in _both(str(home))}
    return sorted((path for path in found if path.count("/") > 1 or path == "/root"), key=len)[::-1]


def _both(folder: str) -> set[str]:
    return {folder.rstrip("/"), os.path.realpath(folder)} - {""}


@cache
def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a number without a name, as in containers
        return ""
