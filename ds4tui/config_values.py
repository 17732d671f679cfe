"""One setting's value: its size in bytes, its text as TOML, and what it must be, in words.

A setting is a dataclass field that `setting` made: its type and metadata say what fits it. Which
settings there are is not known here. Imports nothing that a quick command must not.
"""

import re
from dataclasses import Field, field
from pathlib import Path
from typing import Any

from ds4tui.errors import ConfigError

# Characters of a wrong value that are worth showing.
SHOWN = 80

# From here up a bound is there for the machine's sake, and not worth a person's reading.
LIMITLESS = 2**31


def setting(
    default: Any,
    help: str,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    is_size: bool = False,
) -> Any:
    """A field of Settings with what is known of it: `low` and `high` are inclusive; `is_size` is a
    text as `size_bytes` reads it, or empty."""
    about = {"help": help, "low": low, "high": high, "choices": choices, "is_size": is_size}
    return field(default=default, metadata=about)


_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BARE_MIN = 10**6  # bytes that need no unit
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*([KMGT]?)(I?)B?")


def size_bytes(text: str) -> int | None:
    """Of `20GB`, `1.5 TB`, `512MiB`, `1000000`; None if it is no size, as a small number without a
    unit: who writes 20 means 20GB, and bytes would cost all that is stored."""
    found = _SIZE.fullmatch(text.strip().upper())
    if found is None:
        return None
    number, unit, is_binary = found.groups()
    if text.strip()[-1].isdigit() and 0 < float(number) < _BARE_MIN:
        return None
    factor = 1024 ** "KMGT".find(unit) * 1024 if unit and is_binary else _UNITS[unit]
    return int(float(number) * factor)


def _kind(f: Field[Any]) -> Any:
    return f.type  # a type, and no text of one: nothing here puts off annotations


def toml_value(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def from_text(f: Field[Any], text: str) -> Any:
    """A flag's or variable's text as TOML would have it."""
    number = {int: int, int | None: int, float | None: float}.get(_kind(f))
    if number is not None:
        try:
            return number(text)
        except ValueError:
            raise _wrong(f, text) from None
    return [text] if _kind(f) == tuple[str, ...] else text


def checked_value(f: Field[Any], value: Any) -> Any:
    """A TOML value as the setting's own type, or ConfigError saying what it must be."""
    kind = _kind(f)
    if kind == float | None and type(value) is int and abs(value) <= LIMITLESS:
        value = float(value)
    if f.metadata["choices"] and type(value) is int:
        value = str(value)  # requantise = 8 needs no quotes
    if kind == tuple[str, ...]:
        right = isinstance(value, list) and all(type(v) is str and v for v in value)
    else:
        plain = {int | None: int, float | None: float, Path: str}.get(kind, kind)
        right = type(value) is plain and _in_range(f, value)
    if right and f.metadata["is_size"] and value:
        right = size_bytes(value) is not None
    if not right:
        raise _wrong(f, value)
    if kind is Path:
        return _folder_path(f.name, value)
    return tuple(value) if isinstance(value, list) else value


def _folder_path(name: str, text: str) -> Path:
    """Raises ConfigError for what can never be a folder. One that is not there yet can."""
    if "\0" in text:
        raise ConfigError(f"{name} cannot be {_shortened(text)}: no name holds a NUL.")
    try:
        path = Path(text).expanduser()
        there = next((p for p in (path, *path.parents) if p.exists()), path)
        is_folder = not there.exists() or there.is_dir()
    except (OSError, RuntimeError) as exc:  # too long, ~nobody
        raise ConfigError(f"{name} cannot be {_shortened(text)}: {exc}.") from exc
    if not is_folder:
        raise ConfigError(f"{name} must be a folder, and {there} is a file.")
    return path


def _in_range(f: Field[Any], value: Any) -> bool:
    low, high, choices = (f.metadata[k] for k in ("low", "high", "choices"))
    if choices and value not in choices:
        return False
    return low is None or low <= value <= high  # NaN fails both comparisons


def _wrong(f: Field[Any], value: Any) -> ConfigError:
    return ConfigError(f"{f.name} must be {expected(f)}, not {_shortened(value)}.")


def _shortened(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python writes no integer of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def expected(f: Field[Any]) -> str:
    """What a setting must be, in words."""
    if f.metadata["choices"]:
        return "one of " + ", ".join(f.metadata["choices"])
    if f.metadata["is_size"]:
        return "a size as 20GB, with its unit"
    kind = _kind(f)
    words = {float | None: "a number", str: "a text", Path: "a folder"}.get(kind, "a whole number")
    if kind == tuple[str, ...]:
        return "a list of texts that are not empty"
    low, high = f.metadata["low"], f.metadata["high"]
    if low is None:
        return words
    return f"{words} from {low} " + (f"to {high}" if high < LIMITLESS else "up")
