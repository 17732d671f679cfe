"""Restore-exact, seen in the logits: what a model says after a state was moved, rewound or rebuilt
is bit for bit what it said the first time, on every set of twins.

The tiny Gemma 3 has a window far shorter than its slack; sequences here are so long that its
rows have moved several times.
"""

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from ds4tui.engine.capacity import window_capacity
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.models.decoder import DecoderModel
from ds4tui.engine.models.registry import FAMILIES, load_model
from ds4tui.engine.models.rows import Rows
from ds4tui.engine.state import ModelState
from ds4tui.kernels.choice import ComputePath
from tests.golden.files import golden_path
from tests.parity.ours import Settings

IDS = np.random.default_rng(3).integers(0, 256, 2600)
CHUNK = 512
DECODED = 4


@pytest.fixture(scope="module", params=["auto", "openblas", "reference", "gpu"])
def model(request: pytest.FixtureRequest) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch, GGUFFile.open(golden_path("gemma3")) as gguf:
        config = FAMILIES["gemma3"].config(gguf)
        window = next(s.window for s in config.blocks if s.window)
        assert window_capacity(window) < 1000, "the rows of these sequences move"
        if request.param == "gpu":  # a GPU's attention, run by the CPU in float32
            path = ComputePath("gpu", "dense", mx.float32, "fused", False)
            yield DecoderModel(config, gguf, path, len(IDS))
            return
        patch.setenv("DS4TUI_KERNELS", request.param)
        yield load_model(gguf, Settings())


def fed(model: Any, state: ModelState, end: int, chunk: int = CHUNK) -> ModelState:
    """IDS up to `end` behind what the state holds of them."""
    while state.length < end:
        stop = min(state.length + chunk, end)
        model.forward(Rows.of_ids(IDS[state.length : stop], state.length, "none"), state)
    return state


def decoded(model: Any, state: ModelState, count: int = DECODED) -> list[bytes]:
    """The logits behind each of the next tokens."""
    found = []
    for position in range(state.length, state.length + count):
        rows = Rows.of_ids(IDS[position : position + 1], position, "last")
        found.append(np.asarray(model.forward(rows, state)).tobytes())
    return found


@pytest.mark.parametrize("at", [30, 700, 1300])
def test_a_rebuilt_state_says_the_same_to_the_bit(model: Any, at: int) -> None:
    state = fed(model, model.new_state(), at)
    snapshot, segment = state.snapshot(), state.copy_rows(0, at)
    first = decoded(model, state)
    fed(model, state, at + 1200)
    fresh = model.new_state()
    fresh.rebuild(0, [(segment, 0, at)], snapshot)
    assert decoded(model, fresh) == first
    state.rebuild(at // 2, [(segment, at // 2, at)], snapshot)
    assert decoded(model, state) == first
    again = model.new_state()
    again.rebuild(0, [(fresh, 0, at + DECODED)], fresh.snapshot())
    assert decoded(model, again) == decoded(model, fresh)


def test_a_rewind_within_the_slack_says_the_same_to_the_bit(model: Any) -> None:
    at = 1200
    state = fed(model, model.new_state(), at)
    first = decoded(model, state)
    taken = 0
    for back in (2, 40, 300, 480):  # rows move in between
        fed(model, state, at + back, chunk=back)
        if state.can_rewind(at):
            state.rewind(at)
            taken += 1
        else:
            with pytest.raises(ValueError):
                state.rewind(at)
            state = fed(model, model.new_state(), at)
        assert decoded(model, state) == first
    assert taken >= 2


def test_other_chunks_say_nearly_the_same(model: Any) -> None:
    """Recompute-equal, with chunks longer than the buffers of a window."""
    wanted = np.frombuffer(decoded(model, fed(model, model.new_state(), 1600), 1)[0], np.float32)
    for chunk in (37, 1600):
        state = fed(model, model.new_state(), 1600, chunk)
        (ours,) = decoded(model, state, 1)
        np.testing.assert_allclose(np.frombuffer(ours, np.float32), wanted, atol=1e-4)
