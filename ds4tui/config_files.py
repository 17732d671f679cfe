"""config.toml and state.toml as files: read, the line of a key found, locked for a change."""

import fcntl
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ds4tui.errors import ConfigError


def parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        return {}
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read: {exc.strerror}.") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path} is not UTF-8 text (byte {exc.start}).") from exc
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"{path} is not valid TOML: {exc}.") from exc
    except RecursionError as exc:
        raise ConfigError(f"{path} is nested too deeply: no setting needs that.") from exc
    except ValueError as exc:  # Python reads no integer of thousands of digits
        raise ConfigError(f"{path} holds a number of thousands of digits.") from exc


def place(path: Path, name: str) -> str:
    return f"{path}, line {_line_of(name, path)}"


def _line_of(name: str, path: Path) -> int:
    """The line on which the statement that first sets `name` begins.

    tomllib keeps no positions, so ever longer beginnings of the file are parsed: one that ends
    inside a value does not parse, the first that holds the name ends where its statement does.
    """
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    begin = 1
    for end in range(1, len(lines) + 1):
        try:
            parsed = tomllib.loads("\n".join(lines[:end]))
        except tomllib.TOMLDecodeError:
            continue
        if name in parsed:
            break
        begin = end + 1
    return begin


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Two apps that change the state at once both keep their change."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
