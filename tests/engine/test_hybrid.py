"""The layouts in which files hold hybrids, and what they hold that is not run."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.models.decoder import DecoderModel
from ds4tui.engine.models.registry import FAMILIES, load_model
from ds4tui.engine.models.rows import Rows
from ds4tui.kernels import choice
from tests.engine.changed_gguf import changed
from tests.golden.files import golden, golden_path
from tests.parity.ours import Settings, load, walk

KEY_HEADS, SIZE, SHARE = 2, 16, 2  # of the tiny hybrids: two value heads a key head


@pytest.fixture(params=["auto", "openblas", "reference"], autouse=True)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS4TUI_KERNELS", request.param)


def tensors_of(name: str, *parts: str) -> dict[str, np.ndarray]:
    with GGUFFile.open(golden_path(name)) as gguf:
        return {t: gguf.dequantised(t) for t in gguf.tensors if any(p in t for p in parts)}


def check(gguf: GGUFFile, name: str) -> None:
    ours = walk(load_model(gguf, Settings()), golden(name)["ids"])
    np.testing.assert_allclose(ours, golden(name)["logits"], atol=1e-4)


def fused(qkv: np.ndarray, z: np.ndarray) -> np.ndarray:
    """As older files have it: for each key head its query, key, values and z."""
    keys, values = KEY_HEADS * SIZE, KEY_HEADS * SHARE * SIZE
    parts = np.split(qkv, [keys, 2 * keys])
    assert len(parts[2]) == len(z) == values
    by_head = [part.reshape(KEY_HEADS, -1, qkv.shape[1]) for part in (*parts, z)]
    return np.concatenate(by_head, axis=1).reshape(-1, qkv.shape[1])


def test_older_files_have_one_matrix_of_all_inputs(tmp_path: Path) -> None:
    held = tensors_of("qwen3next", "attn_qkv", "attn_gate")
    tensors: dict[str, np.ndarray | None] = dict.fromkeys(held)
    for i in range(3):
        at = f"blk.{i}."
        both = held[at + "attn_qkv.weight"], held[at + "attn_gate.weight"]
        tensors[at + "ssm_in.weight"] = fused(*both)
    check(changed("qwen3next", tmp_path / "old.gguf", tensors=tensors), "qwen3next")


def test_rates_may_be_one_matrix_or_two(tmp_path: Path) -> None:
    held = tensors_of("qwen3next", "ssm_ba")
    tensors: dict[str, np.ndarray | None] = dict.fromkeys(held)
    for name, rates in held.items():
        parts = rates.reshape(KEY_HEADS, 2, SHARE, -1)
        for i, part in enumerate(("ssm_beta", "ssm_alpha")):
            own = parts[:, i].reshape(KEY_HEADS * SHARE, -1)
            tensors[name.replace("ssm_ba", part)] = own
    check(changed("qwen3next", tmp_path / "split.gguf", tensors=tensors), "qwen3next")


def test_the_gate_of_the_shared_expert_may_be_a_vector(tmp_path: Path) -> None:
    held = tensors_of("qwen35moe", "ffn_gate_inp_shexp")
    vectors = {name: gate.reshape(-1) for name, gate in held.items()}
    check(changed("qwen35moe", tmp_path / "v.gguf", tensors={**vectors}), "qwen35moe")


def test_blocks_of_next_token_heads_are_left_out_with_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    more = {
        name.replace("blk.3.", "blk.4."): values
        for name, values in tensors_of("qwen35", "blk.3.").items()
    }
    more["blk.4.nextn.eh_proj.weight"] = np.ones((64, 128), np.float32)
    keys: dict[str, Any] = {"block_count": 5, "nextn_predict_layers": 1}
    for listed in ([True, True, True, False], [True, True, True, False, False], None):
        keys["attention.recurrent_layers"] = listed
        gguf = changed("qwen35", tmp_path / "mtp.gguf", keys, {**more})
        caplog.clear()
        with caplog.at_level(logging.INFO):
            model = load_model(gguf, Settings())
        assert sorted(model.unused_tensors) == sorted(more)
        assert "the last 1 blocks guess tokens and are left out" in caplog.text
        assert "not used" not in caplog.text
        check(gguf, "qwen35")


def test_a_strange_tensor_is_still_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gguf = changed("qwen35", tmp_path / "s.gguf", tensors={"blk.3.odd": np.ones(3, np.float32)})
    load_model(gguf, Settings())
    assert "1 tensors not used: blk.3.odd" in caplog.text


@pytest.mark.parametrize("name", ["qwen3next", "qwen35", "qwen35moe"])
def test_the_reference_runs_over_whatever_holds_the_matrices(name: str) -> None:
    """Where the twins of hybrids are disabled and the matrices are in C++'s or NumPy's hands."""
    with GGUFFile.open(golden_path(name)) as gguf:
        config = FAMILIES[name].config(gguf)
        path = choice.current().path()
        for rule in ("reference", "fused", "chunks"):
            changed_path = replace(path, hybrid_blocks=False, rule=rule)
            model = DecoderModel(config, gguf, changed_path, 512)
            ours = walk(model, golden(name)["ids"], "chunked")
            np.testing.assert_allclose(ours, golden(name)["logits"], atol=1e-4)


def test_rows_that_turn_in_three_directions_are_turned_by_their_sections() -> None:
    """Where the three are equal they are one: text. Sections 3, 3, 2 deal the pairs out in turn."""
    model, ids = load(golden_path("qwen35")), golden("qwen35")["ids"].astype(np.int64)
    line = np.arange(len(ids), dtype=np.int32)
    text = Rows(ids, None, np.tile(line, (3, 1)), (), "all")
    ours = np.asarray(model.forward(text, model.new_state()))
    np.testing.assert_allclose(ours, golden("qwen35")["logits"], atol=1e-4)
    for axis in range(3):
        positions = text.positions.copy()
        positions[axis] = positions[axis] // 2
        rows = Rows(ids, None, positions, (), "all")
        moved = np.asarray(model.forward(rows, model.new_state()))
        assert np.abs(moved - ours).max() > 0.01


def test_a_family_without_sections_takes_one_row_of_positions() -> None:
    model = load(golden_path("qwen3next"))
    rows = Rows(np.arange(4), None, np.zeros((3, 4), np.int32), (), "all")
    with pytest.raises(ValueError, match="positions"):
        model.forward(rows, model.new_state())
