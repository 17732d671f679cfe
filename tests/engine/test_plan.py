"""What is planned from a header is what a loaded model's state then takes."""

import numpy as np
import pytest

from ds4tui.config import Settings
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.models.registry import load_model
from ds4tui.engine.models.rows import Rows
from ds4tui.engine.plan import plan_bytes
from tests.golden.files import golden_path

ROWS = 64  # more than the tiny windows


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen35moe", "qwen4exp"])
def test_a_snapshot_takes_what_was_planned(family: str) -> None:
    with GGUFFile.open(golden_path(family)) as gguf:
        planned = plan_bytes(gguf, 10**9).state
        model = load_model(gguf, Settings())
    state = model.new_state()
    ids = np.arange(ROWS, dtype=np.int64) % model.vocab_size
    model.forward(Rows(ids, None, np.arange(ROWS, dtype=np.int32)), state)
    taken = state.snapshot()
    assert (0 if taken is None else taken.nbytes) == planned.snapshot
