"""Our engine on a file: logits of a prompt, evaluated in one go, in chunks or token by token."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.models.registry import Model, load_model
from ds4tui.engine.models.rows import Rows
from ds4tui.engine.paging import LoadWish

CHUNK = 16


Settings = LoadWish


def load(path: Path) -> Model:
    with GGUFFile.open(path) as gguf:
        return load_model(gguf, Settings())


# Row counts of the forward passes for a prompt of n tokens.
SCHEDULES: dict[str, Callable[[int], list[int]]] = {
    "whole": lambda n: [n],
    "chunked": lambda n: [CHUNK] * (n // CHUNK) + [n % CHUNK] * (n % CHUNK > 0),
    "stepped": lambda n: [1] * n,
}


def walk(model: Model, ids: Sequence[int] | np.ndarray, schedule: str = "whole") -> np.ndarray:
    """float32 [T, vocab]: the logits at every position of `ids`."""
    state, parts, start = model.new_state(), [], 0
    for count in SCHEDULES[schedule](len(ids)):
        rows = Rows.of_ids(ids[start : start + count], start, "all")
        parts.append(np.array(model.forward(rows, state)))
        start += count
    return np.concatenate(parts)


def last_logits(model: Model, ids: Sequence[int] | np.ndarray) -> np.ndarray:
    """float32 [vocab] after `ids`, in one pass over a new state."""
    logits = model.forward(Rows.of_ids(ids, 0, "last"), model.new_state())
    row: np.ndarray = np.array(logits)[0]
    return row
