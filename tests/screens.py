"""The screen reader that comes with the package, and screenshots to ask it about."""

import json
from pathlib import Path

from ds4tui.library.screens import MMPROJ, SAMPLE

FOLDER = Path(__file__).parent / "data" / "screen_reader"
WEIGHTS = MMPROJ
QUESTIONS = json.loads((FOLDER / "samples.json").read_text())


def screen(name: str) -> Path:
    """The screenshot called `name`; one of them is in the package, the others are beside."""
    return SAMPLE if name == SAMPLE.name else FOLDER / name
