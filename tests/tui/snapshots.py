"""What a screen looks like, as text that a person can read in a diff.

A snapshot is the screen's cells, line by line, and below them how they are styled: a letter for
each style, then each line as letters with the number of cells. No SVG: its ids, fonts and layout
are Textual's and move with each of its versions.

    python -m pytest tests/tui/test_snapshots.py                       compare
    SNAPSHOTS=update python -m pytest tests/tui/test_snapshots.py    write them anew
"""

import difflib
import os
from collections.abc import Iterable
from pathlib import Path

from rich.style import Style
from textual.strip import Strip

FOLDER = Path(__file__).parent / "snapshots"
VARIABLE = "SNAPSHOTS"
RULE = "─── styles"


def rendered(strips: Iterable[Strip]) -> str:
    """The text of the snapshot of a screen."""
    lines, legend = [], dict[str, str]()
    styled = []
    for number, strip in enumerate(strips):
        lines.append(strip.text.rstrip())
        runs = " ".join(f"{legend.setdefault(s, _letter(len(legend)))}{n}" for s, n in _runs(strip))
        styled.append(f"{number} {runs}")
    styles = [f"{letter} {style or 'plain'}" for style, letter in legend.items()]
    return "\n".join([*lines, RULE, *styles, RULE, *styled]) + "\n"


def _letter(number: int) -> str:
    """a, b, .., z, za, zb, .."""
    return "z" * (number // 25) + chr(ord("a") + number % 25)


def _runs(strip: Strip) -> list[tuple[str, int]]:
    """(style, cells) along a line."""
    runs: list[tuple[str, int]] = []
    for segment in strip:
        style = _named(segment.style)
        if runs and runs[-1][0] == style:
            runs[-1] = style, runs[-1][1] + segment.cell_length
        else:
            runs.append((style, segment.cell_length))
    return runs


def _named(style: Style | None) -> str:
    if style is None:
        return ""
    marks = [
        name
        for name in ("bold", "dim", "italic", "underline", "reverse", "strike")
        if getattr(style, name)
    ]
    colours = [
        f"{sign}{colour.triplet.hex if colour.triplet else colour.name}"
        for sign, colour in (("", style.color), ("on ", style.bgcolor))
        if colour is not None and not colour.is_default
    ]
    return " ".join([*marks, *colours])


def is_stored(name: str, found: str) -> bool:
    """Whether `found` is what is stored as `name`; nothing is while they are written anew."""
    path = FOLDER / f"{name}.txt"
    is_update = os.environ.get(VARIABLE) == "update"
    return not is_update and path.exists() and path.read_text(encoding="utf-8") == found


def compare(name: str, found: str) -> None:
    """Raises AssertionError with a diff where `found` is not what is stored as `name`."""
    path = FOLDER / f"{name}.txt"
    if os.environ.get(VARIABLE) == "update":
        path.parent.mkdir(exist_ok=True)
        path.write_text(found, encoding="utf-8")
        return
    stored = path.read_text(encoding="utf-8") if path.exists() else ""
    if found == stored:
        return
    diff = "\n".join(
        difflib.unified_diff(
            stored.splitlines(), found.splitlines(), f"stored {path.name}", "found", "", "", 1, ""
        )
    )
    raise AssertionError(
        f"{name} looks otherwise. If it is meant to, {VARIABLE}=update python -m pytest "
        f"tests/tui/test_snapshots.py writes it anew.\n{diff}"
    )
