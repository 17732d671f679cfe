"""What every family must do besides the goldens: memory told, files refused, GPU forms."""

import logging
import math
import re
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.holding import LOOKED_UP, required_bytes
from ds4tui.engine.models.registry import FAMILIES, Model, load_model
from ds4tui.engine.models.rows import Rows
from ds4tui.errors import GGUFError
from ds4tui.kernels import choice
from ds4tui.kernels.choice import ComputePath
from tests.engine.changed_gguf import changed
from tests.golden.files import families, golden, golden_path
from tests.parity.ours import Settings, walk

NAMES = sorted(set(FAMILIES) & set(families()))


@pytest.fixture(params=["auto", "reference"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("DS4TUI_KERNELS", request.param)
    return request.param


def load(name: str) -> Model:
    with GGUFFile.open(golden_path(name)) as gguf:
        return load_model(gguf, Settings())


def tensor_bytes(name: str) -> int:
    with GGUFFile.open(golden_path(name)) as gguf:
        return sum(t.nbytes for t in gguf.tensors.values() if t.name != LOOKED_UP)


@pytest.mark.parametrize("name", NAMES)
def test_predicted_kv_bytes_are_never_exceeded_nor_far_off(name: str, kernels: str) -> None:
    model = load(name)
    state = model.new_state()
    for start in range(0, 480, 60):
        model.forward(Rows.of_ids([65] * 60, start, "none"), state)
        assert 0 < state.nbytes <= model.kv_bytes(state.length)
    at_once = model.new_state()
    model.forward(Rows.of_ids([65] * 480, 0, "none"), at_once)
    assert model.kv_bytes(480) == at_once.nbytes + max(layer.nbytes for layer in at_once.layers)


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_those_of_the_file_and_all_are_used(
    name: str, kernels: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        model = load(name)
    assert "not used" not in caplog.text
    assert model.architecture == name
    assert model.weights_bytes == tensor_bytes(name)
    with GGUFFile.open(golden_path(name)) as gguf:
        assert required_bytes(gguf, choice.current().path()) >= tensor_bytes(name)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
@pytest.mark.parametrize("name", NAMES)
def test_quantised_matrices_are_held_as_they_are(
    name: str, kind: str, kernels: str, tmp_path: Path
) -> None:
    """The path of a GPU (float16 rows and KV, MLX's quantised products), run by the CPU, and
    this machine's own path give the same logits but for float16's rounding."""
    gguf = changed(name, tmp_path / "q.gguf", matrices=GGMLQuantizationType[kind])
    ids, config = golden(name)["ids"], FAMILIES[name].config(gguf)
    own = walk(load_model(gguf, Settings()), ids)
    gpu = ComputePath("gpu", "quantised", mx.float16, "fused", False)
    half = FAMILIES[name].load(config, gguf, gpu, 9)
    state = half.new_state()
    ours = np.asarray(half.forward(Rows.of_ids(ids, 0, "all"), state))
    gaps = np.abs(ours - own).max(axis=1)
    if name in INDEXED_ROWS:  # rounding may change what an index chooses, as soon as it must
        gaps = gaps[: gguf.key(".attention.indexer.top_k", int)]
    # A row may get another expert, which those after it remember where there is a matrix to.
    share, much = (0.75 if name in (*HYBRIDS, *INDEXED_ROWS) else 0.9), 0.01
    if name == "glm5-next":  # its eight blocks of streams make much of little, wherever it is
        share, much = 0.25, 0.05
    assert np.quantile(gaps, share) <= much * np.abs(own).max()
    assert f"{kind[1]}-bit groups of 32" in half.compute_path
    assert state.nbytes <= half.kv_bytes(len(ids))
    assert half.weights_bytes < tensor_bytes(name) / 2


INDEXED_ROWS = ("deepseek32", "deepseek4", "glm-dsa")
BLOCK = "1.attn_norm.weight 1.attn_q.weight 1.attn_output.weight 1.ffn_norm.weight "
EXPERTS = (
    " 1.ffn_gate_inp.weight 1.ffn_gate_exps.weight 1.ffn_up_exps.weight 1.ffn_down_exps.weight"
)
HYBRID = (
    "1.attn_norm.weight 1.post_attention_norm.weight 1.attn_qkv.weight 1.attn_gate.weight "
    "1.ssm_conv1d.weight 1.ssm_dt.bias 1.ssm_a 1.ssm_norm.weight 1.ssm_out.weight "
    "3.attn_norm.weight 3.attn_q.weight 3.attn_k_norm.weight 3.attn_output.weight "
)
SHARED = (
    " 1.ffn_gate_shexp.weight 1.ffn_up_shexp.weight 1.ffn_down_shexp.weight "
    "1.ffn_gate_inp_shexp.weight"
)
STREAMS = (
    "1.hc_attn_norm.weight 1.hc_attn_down.weight 1.hc_attn_up.weight 1.hc_attn_inject.weight "
    "1.hc_ffn_inject.weight 1.ple_key.weight 1.ple_value.weight 1.ple_norm_conv.weight "
    "1.ple_conv1d.weight 1.ssm_alpha.weight 3.attn_q_norm.weight 3.indexer.q_proj.weight "
    "3.indexer.k_proj.weight 3.indexer.q_norm.weight 3.indexer.k_norm.weight"
)
KDA = (
    "0.ffn_gate.weight 1.hc_attn_fn.weight 1.hc_ffn_base.weight 1.hc_ffn_scale.weight "
    "1.attn_norm.weight 1.ffn_norm.weight 1.attn_k.weight 1.ssm_conv1d_v.weight 1.ssm_f_a.weight "
    "1.ssm_f_b.weight 1.ssm_g_a.weight 1.ssm_beta.weight 1.ssm_a 1.ssm_dt.bias 1.ssm_norm.weight "
    "1.attn_output.weight 1.ffn_up_shexp.weight 1.exp_probs_b.bias 3.attn_kv_a_mqa.weight "
    "3.attn_kv_a_norm.weight 3.attn_k_b.weight 3.attn_v_b.weight 3.attn_q_b.weight "
    "3.indexer.attn_k.weight 3.indexer.attn_q_b.weight 3.indexer.proj.weight "
    "3.indexer.k_norm.bias 3.indexer_compressor_gate.weight 3.indexer_compressor_ape.weight"
)
LATENT = (
    "0.ffn_gate.weight 1.attn_norm.weight 1.attn_q_a.weight 1.attn_q_a_norm.weight "
    "1.attn_q_b.weight 1.attn_kv_a_mqa.weight 1.attn_kv_a_norm.weight 1.attn_k_b.weight "
    "1.attn_v_b.weight 1.attn_output.weight 1.ffn_norm.weight 1.ffn_up_shexp.weight"
)
INDEXED = (
    " 1.indexer.attn_k.weight 1.indexer.attn_q_b.weight 1.indexer.proj.weight "
    "1.indexer.k_norm.weight 1.indexer.k_norm.bias"
)
POOLED = (
    "1.hc_attn_fn.weight 1.hc_ffn_base.weight 1.attn_norm.weight 1.attn_sinks.weight "
    "1.attn_q_a.weight 1.attn_q_b.weight 1.attn_kv.weight 1.attn_kv_a_norm.weight "
    "1.attn_output_a.weight 1.attn_output_b.weight 1.ffn_up_shexp.weight 1.exp_probs_b.bias "
    "0.ffn_gate_tid2eid.weight 2.attn_compressor_kv.weight 2.attn_compressor_gate.weight "
    "2.attn_compressor_ape.weight 2.attn_compressor_norm.weight 2.indexer_compressor_kv.weight "
    "2.indexer_compressor_norm.weight 2.indexer.attn_q_b.weight 2.indexer.proj.weight "
    "3.attn_compressor_ape.weight"
)
TENSORS = {
    "llama": BLOCK + "1.ffn_up.weight",
    "qwen2": BLOCK + "1.ffn_up.weight",
    "qwen2vl": BLOCK + "1.ffn_up.weight",
    "qwen3": BLOCK + "1.attn_q_norm.weight 1.attn_k_norm.weight",
    "qwen3vl": BLOCK + "1.attn_q_norm.weight 1.attn_k_norm.weight",
    "qwen3moe": BLOCK + "1.attn_q_norm.weight" + EXPERTS,
    "qwen3vlmoe": BLOCK + "1.attn_q_norm.weight" + EXPERTS,
    "gemma3": BLOCK + "1.attn_k_norm.weight 1.post_attention_norm.weight 1.post_ffw_norm.weight",
    "qwen3next": HYBRID + EXPERTS + SHARED,
    "qwen35": HYBRID + "1.ssm_alpha.weight 1.ssm_beta.weight 1.ffn_up.weight",
    "qwen35moe": HYBRID + "1.ssm_alpha.weight 1.ssm_beta.weight" + EXPERTS + SHARED,
    "qwen4exp": STREAMS + EXPERTS + SHARED,
    "glm5-next": KDA + EXPERTS,
    "deepseek2": LATENT + EXPERTS,
    "deepseek4": POOLED + EXPERTS,
    "deepseek32": LATENT + EXPERTS + INDEXED,
    "glm-dsa": LATENT + EXPERTS + INDEXED,
}


@pytest.mark.parametrize(("name", "tensor"), [(n, t) for n in NAMES for t in TENSORS[n].split()])
def test_a_missing_tensor_is_named(name: str, tensor: str, tmp_path: Path) -> None:
    gguf = changed(name, tmp_path / "bad.gguf", tensors={f"blk.{tensor}": None})
    with pytest.raises(GGUFError, match=re.escape(f"blk.{tensor}")):
        load_model(gguf, Settings())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("more", [-1, 1, 10**8, 2**32 - 1])
def test_a_count_of_blocks_that_are_not_there_is_refused_with_both_numbers(
    name: str, more: int, tmp_path: Path
) -> None:
    """Before anything is made for each of them: 2^32 of whatever would not fit."""
    with GGUFFile.open(golden_path(name)) as gguf:
        held = gguf.key(".block_count", int)
    told = min(held + more, 2**32 - 1)
    gguf = changed(name, tmp_path / "bad.gguf", {"block_count": told})
    with pytest.raises(GGUFError, match=f"block_count is {told:,}.* of {held:,} blocks"):
        FAMILIES[name].config(gguf)


HYBRIDS = ["qwen3next", "qwen35", "qwen35moe", "qwen4exp"]
SSM_KEYS = ["conv_kernel", "inner_size", "state_size", "time_step_rank", "group_count"]
KEYS = ["block_count", "context_length", "attention.head_count", "embedding_length"]


@pytest.mark.parametrize(
    ("name", "key"),
    [
        *((n, key) for n in NAMES for key in KEYS),
        ("qwen3moe", "expert_count"),
        ("qwen3moe", "expert_used_count"),
        ("qwen3moe", "expert_feed_forward_length"),
        *((n, f"ssm.{key}") for n in HYBRIDS for key in SSM_KEYS),
        ("qwen35moe", "expert_shared_feed_forward_length"),
    ],
)
def test_a_missing_key_is_named(name: str, key: str, tmp_path: Path) -> None:
    gguf = changed(name, tmp_path / "bad.gguf", {key: None})
    with pytest.raises(GGUFError, match=f"{name}.{key}"):
        load_model(gguf, Settings())


YARN = {"rope.scaling.type": "yarn", "rope.scaling.original_context_length": 16}


@pytest.mark.parametrize(
    ("name", "keys", "word"),
    [
        ("qwen2", {"rope.scaling.type": "longrope"}, "longrope"),
        ("qwen2", {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}, "original_context"),
        ("qwen3", YARN | {"rope.scaling.yarn_beta_fast": 8.0}, "yarn_beta_fast other than 32"),
        ("qwen3", {"attention.key_length": 31}, "rotary"),
        ("qwen3moe", {"expert_used_count": 9}, "9 of 8 experts"),
        ("qwen3moe", {"expert_count": 0}, "expert_count"),
        ("gemma3", {"final_logit_softcapping": 30.0}, "caps its logits"),
        ("gemma3", {"attention.sliding_window_pattern": [True, False]}, "2 layers"),
        ("gemma3", {"attention.sliding_window_pattern": 0}, "pattern is 0"),
        ("qwen35", {"attention.recurrent_layers": [True, False]}, "2 blocks in attention.recurr"),
        ("qwen35", {"attention.recurrent_layers": None, "full_attention_interval": 0}, "is 0"),
        ("qwen35", {"ssm.time_step_rank": 3}, "64 values in 3 heads over 2 key heads"),
        ("qwen35", {"ssm.conv_kernel": 0}, "conv_kernel is 0"),
        ("qwen35", {"attention.value_length": 16}, "32 and 16 do not fit one matrix of gates"),
        ("qwen35", {"nextn_predict_layers": 4}, "4 of 4 blocks are of next-token heads"),
        ("qwen3next", {"expert_used_count": 9}, "9 of 8 experts"),
        ("qwen35", {"rope.dimension_sections": [3, 3]}, "does not hold sections"),
        ("qwen35moe", {"rope.dimension_sections": None}, "does not hold sections"),
        ("qwen2vl", {"rope.dimension_sections": [4, 2, 3, 0]}, "not of 8 pairs"),
        ("qwen2vl", {"rope.dimension_sections": [9, -3, 2, 0]}, "not of 8 pairs"),
        ("qwen3vl", {"rope.dimension_sections": [4.0, 2.0, 2.0]}, "does not hold sections"),
    ],
)
def test_what_is_not_read_is_refused_by_name(
    name: str, keys: dict[str, Any], word: str, tmp_path: Path
) -> None:
    gguf = changed(name, tmp_path / "bad.gguf", keys)
    with pytest.raises(GGUFError, match=word) as refusal:
        load_model(gguf, Settings())
    assert refusal.value.hint


# -- gemma3's keys -----------------------------------------------------------------------------


def gemma_blocks(
    tmp_path: Path, keys: dict[str, Any], tensors: dict[str, Any] | None = None
) -> tuple[Any, ...]:
    gguf = changed("gemma3", tmp_path / "g.gguf", keys, tensors)
    return FAMILIES["gemma3"].config(gguf).blocks


@pytest.mark.parametrize(
    ("pattern", "wide"),
    [
        (None, [5]),
        (3, [2, 5]),
        ([True, False, True, True, False, True, True], [1, 4]),
    ],
)
def test_which_gemma_layers_see_all_rows(tmp_path: Path, pattern: Any, wide: list[int]) -> None:
    blocks = gemma_blocks(tmp_path, {"attention.sliding_window_pattern": pattern})
    assert [i for i, shape in enumerate(blocks) if shape.window is None] == wide
    assert [i for i, shape in enumerate(blocks) if shape.turn == 0] == wide


def test_a_gemma_without_a_window_has_wide_layers_only(tmp_path: Path) -> None:
    blocks = gemma_blocks(tmp_path, {"attention.sliding_window": None})
    assert {(shape.window, shape.turn) for shape in blocks} == {(None, 0)}


def test_scores_of_gemma_27b_are_scaled_by_the_share_of_a_head(tmp_path: Path) -> None:
    def scales(blocks: int, **keys: Any) -> set[float]:
        last = {f"blk.{blocks - 1}.attn_norm.weight": np.ones(64, np.float32)}
        return {s.scale for s in gemma_blocks(tmp_path, {"block_count": blocks} | keys, last)}

    assert scales(61) == {1 / math.sqrt(32)}
    assert scales(62) == {1 / math.sqrt(16)}
    assert scales(62, **{"attention.scale": 0.5}) == {0.5}


def test_gemmas_given_embeddings_are_not_scaled(kernels: str) -> None:
    """Those of ids are; an image's come as they are."""
    model, ids = load("gemma3"), golden("gemma3")["ids"].astype(np.int64)
    with GGUFFile.open(golden_path("gemma3")) as gguf:
        table = gguf.dequantised("token_embd.weight")
    given = Rows(None, mx.array(table[ids] * 8), np.arange(len(ids), dtype=np.int32), (), "all")
    ours = np.asarray(model.forward(given, model.new_state()))
    np.testing.assert_allclose(ours, golden("gemma3")["logits"], atol=1e-4)
