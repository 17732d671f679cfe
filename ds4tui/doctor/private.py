"""Texts made fit to be shown to others: no home folder, no user name."""

import getpass
import os
import re
import tempfile
from functools import cache
from pathlib import Path

from ds4tui.library import places

NAME_CHARS_MIN = 3  # a shorter name is a part of too many words
COMMON_NAMES = frozenset(("root", "user", "users", "home", "admin", "python", "ds4tui"))


def shortened(text: str) -> str:
    """`text` with ~ for the home folder, however it is reached."""
    for home in _homes():
        text = re.sub(rf"{re.escape(home)}(?=/|\W|$)", "~", text)
    return text


def anonymous(text: str) -> str:
    """Also without the user's name in other paths, and without the folder of temporary files,
    whose name tells the user's number on macOS."""
    text, name = shortened(text), _user_name()
    for folder in _both(tempfile.gettempdir()):
        text = re.sub(rf"{re.escape(folder)}(?=/)", "TEMP", text)
    if len(name) >= NAME_CHARS_MIN and name.lower() not in COMMON_NAMES:
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", "USER", text)
    return text


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
