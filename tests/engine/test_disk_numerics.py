"""Rows that people have on disk go on with rows that are computed now: they must be alike.

`numerics.json` tells what each family's states held when NUMERICS_VERSION was last looked at.
To write it anew: python -m tests.engine.test_disk_numerics
"""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from ds4tui.config import load_settings
from ds4tui.engine.disk_identity import NUMERICS_VERSION
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.models.registry import load_model
from ds4tui.engine.models.rows import Rows
from tests.golden.files import golden, golden_path

HELD = Path(__file__).with_name("numerics.json")
FAMILIES = (
    "deepseek2",
    "deepseek32",
    "deepseek4",
    "gemma3",
    "glm-dsa",
    "llama",
    "qwen2",
    "qwen3",
    "qwen35",
    "qwen35moe",
    "qwen3moe",
    "qwen3next",
    "qwen4exp",
)
TOKENS = 24
SAMPLED = 8
# Sums in another order are of no account; activations on a GPU are float16.
TOLERANCE, HALF_TOLERANCE = 1e-3, 3e-2

WHAT_TO_DO = (
    "{family}: layer {layer} holds other numbers than rows that people have on disk. If that is "
    "wanted, raise NUMERICS_VERSION in ds4tui/engine/disk_identity.py, so that those rows are not "
    "used any more, and run `python -m tests.engine.test_disk_numerics`."
)


def held_by(family: str) -> list[list[float]]:
    """Of each layer: of each array mean, mean size, and some numbers of the last row."""
    with GGUFFile.open(golden_path(family)) as gguf:
        model = load_model(gguf, load_settings({}))
    state = model.new_state()
    model.forward(Rows.of_ids(golden(family)["ids"][:TOKENS].tolist(), 0, "last"), state)
    return [_of_layer(layer) for layer in state.layers]


def _of_layer(layer: Any) -> list[float]:
    rows = layer.rows(0, layer.length)
    if rows is None:
        return [n for array in layer.bounded().arrays for n in _sizes(_float32(array))]
    found: list[float] = []
    for array, axis in zip(rows.arrays, rows.axes, strict=True):
        ordered = np.moveaxis(_float32(array), axis, 0)
        found += [*_sizes(ordered), *ordered[-1:].ravel()[:SAMPLED].tolist()]
    return found


def _sizes(array: np.ndarray) -> list[float]:
    """Nothing of rows that there are none of, as of a pool that is not whole."""
    return [float(array.mean()), float(np.abs(array).mean())] if array.size else []


def _float32(array: Any) -> np.ndarray:
    if isinstance(array, mx.array):
        array = array.astype(mx.float32)
    return np.array(array, np.float32)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_on_disk_go_on_with_rows_of_now(family: str) -> None:
    on_gpu = mx.default_device().type == mx.DeviceType.gpu
    tolerance = HALF_TOLERANCE if on_gpu else TOLERANCE
    held, now = json.loads(HELD.read_text())["layers"][family], held_by(family)
    assert len(held) == len(now)
    for layer, (before, after) in enumerate(zip(held, now, strict=True)):
        told = WHAT_TO_DO.format(family=family, layer=layer)
        assert len(before) == len(after), told
        np.testing.assert_allclose(after, before, rtol=tolerance, atol=tolerance, err_msg=told)


def test_the_numbers_are_those_of_this_version() -> None:
    assert json.loads(HELD.read_text())["version"] == NUMERICS_VERSION, (
        "NUMERICS_VERSION was raised: run `python -m tests.engine.test_disk_numerics`"
    )


def _write() -> None:
    layers = {
        family: [[round(n, 5) for n in layer] for layer in held_by(family)] for family in FAMILIES
    }
    text = json.dumps({"version": NUMERICS_VERSION, "layers": layers}, separators=(",", ":"))
    HELD.write_text(text.replace("]],", "]],\n").replace("{", "{\n") + "\n")


if __name__ == "__main__":
    _write()
