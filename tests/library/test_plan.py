"""`models show --plan` for models of full size, of which only headers are made.

The published bytes are those of models in float16 whose convolutions keep their rows in 2 bytes a
number; ours keep them in 4.
"""

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from gguf import GGMLQuantizationType as T
from gguf import GGUFValueType as V

from ds4tui.cli import main
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.models.registry import family_of
from ds4tui.engine.plan import StateBytes, plan_bytes, state_bytes
from ds4tui.kernels import choice
from ds4tui.kernels.choice import ComputePath
from tests.engine.gguf_samples import array_key, gguf_bytes, key, tensor, text_key, u32

MIB, GIB = 2**20, 2**30
HEADS = 32 * 64  # a row of embeddings in the headers below
VOCABULARY = 32_000


def attending(blocks: int, kv_heads: int, size: int, **more: Any) -> dict[str, Any]:
    keys = {
        "block_count": blocks,
        "context_length": 131_072,
        "embedding_length": HEADS,
        "feed_forward_length": 4096,
        "attention.head_count": 32 if 32 % kv_heads == 0 else kv_heads * 4,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": size,
        "attention.value_length": size,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.dimension_count": min(size, 64),
    }
    return keys | more


def delta(blocks: int, kv_heads: int, value_heads: int) -> dict[str, Any]:
    ssm = {
        "ssm.group_count": 16,
        "ssm.time_step_rank": value_heads,
        "ssm.inner_size": value_heads * 128,
        "ssm.state_size": 128,
        "ssm.conv_kernel": 4,
        "rope.dimension_sections": [11, 11, 10, 0],
    }
    return attending(blocks, kv_heads, 256) | ssm | EXPERTS


EXPERTS = {
    "expert_count": 128,
    "expert_used_count": 8,
    "expert_feed_forward_length": 768,
    "expert_shared_feed_forward_length": 512,
}


def tail(value_heads: int) -> int:
    """Half of what a delta block keeps of its convolution: as far as we are above others."""
    return 3 * (2 * 16 + value_heads) * 128 * 2


def gemma(blocks: int, kv_heads: int, window: int) -> dict[str, Any]:
    return attending(blocks, kv_heads, 256) | {"attention.sliding_window": window}


def latents(blocks: int, context: int = 131_072) -> dict[str, Any]:
    index = {"head_count": 64, "key_length": 128, "top_k": 2048}
    return attending(blocks, 1, 192) | {
        "context_length": context,
        "attention.q_lora_rank": 1536,
        "attention.kv_lora_rank": 512,
        "attention.key_length_mla": 192,
        "attention.value_length_mla": 128,
        **{f"attention.indexer.{name}": value for name, value in index.items()},
        **EXPERTS,
    }


def pooled() -> dict[str, Any]:
    """DeepSeek V4 Flash."""
    return attending(43, 1, 512) | {
        "attention.head_count": 64,
        "attention.sliding_window": 128,
        "attention.compress_ratios": [0, 0, *([4, 128] * 20), 4],
        "attention.compress_rope_freq_base": 160_000.0,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.indexer.key_length": 128,
        "rope.dimension_count": 64,
        "hyper_connection.count": 4,
        "hyper_connection.sinkhorn_iterations": 20,
        "hyper_connection.epsilon": 1e-6,
        **EXPERTS,
    }


# Architecture, keys, bytes of a token, MiB of a snapshot, bytes of slack, of convolutions.
PUBLISHED: dict[str, tuple[str, dict[str, Any], int, float, int, int]] = {
    "SmolLM2-135M": ("llama", attending(30, 3, 64), 23_040, 0, 0, 0),
    "SmolLM2-360M": ("llama", attending(32, 5, 64), 40_960, 0, 0, 0),
    "SmolLM2-1.7B": ("llama", attending(24, 32, 64), 196_608, 0, 0, 0),
    "Llama-3.1-8B": ("llama", attending(32, 8, 128), 131_072, 0, 0, 0),
    "Qwen2.5-0.5B": ("qwen2", attending(24, 2, 64), 12_288, 0, 0, 0),
    "Qwen2.5-7B": ("qwen2", attending(28, 4, 128), 57_344, 0, 0, 0),
    "Qwen3-0.6B": ("qwen3", attending(28, 8, 128), 114_688, 0, 0, 0),
    "Qwen3-30B-A3B": ("qwen3moe", attending(48, 4, 128) | EXPERTS, 98_304, 0, 0, 0),
    "Qwen3-8B": ("qwen3", attending(36, 8, 128), 147_456, 0, 0, 0),
    "Gemma-3-270M": ("gemma3", gemma(18, 1, 512), 3_072, 7.5, 15_360, 0),
    "Gemma-3-4B": ("gemma3", gemma(34, 4, 1024), 20_480, 115.9, 118_784, 0),
    "Qwen3-Next-80B-A3B": ("qwen3next", delta(48, 2, 32), 24_576, 73.7, 0, 36 * tail(32)),
    "Qwen3.5-9B": ("qwen35", delta(32, 4, 32), 32_768, 49.1, 0, 24 * tail(32)),
    "Qwen3.8-27B": ("qwen35", delta(64, 4, 48), 65_536, 146.8, 0, 48 * tail(48)),
    "Qwen3.6-35B-A3B": ("qwen35moe", delta(40, 2, 32), 20_480, 61.4, 0, 30 * tail(32)),
    "Qwen3.5-122B": ("qwen35moe", delta(48, 2, 64), 24_576, 146.5, 0, 36 * tail(64)),
    "DeepSeek-V3": ("deepseek2", latents(61), 61 * 576 * 2, 0, 0, 0),
    "DeepSeek-V3.2": ("deepseek32", latents(61), 85_888, 0, 0, 0),
    # Of a snapshot where pools end, of the window 5.33 and of the pool before 0.41.
    "DeepSeek-V4-Flash": ("deepseek4", pooled(), 6_880, 5.74, 340_992, 0),
    "GLM-5": ("glm-dsa", latents(78), 109_824, 0, 0, 0),
    "GLM-5.2": ("glm-dsa", latents(78, 1_048_576), 95_232, 0, 0, 0),
}


def write_header(path: Path, architecture: str, keys: Mapping[str, Any]) -> Path:
    """A file with the keys, an embedding, a norm a block and the experts of one block: a hole for
    the data."""
    made = [_key(f"{architecture}.{name}", value) for name, value in keys.items()]
    embedding = VOCABULARY * HEADS // 32 * 34
    tensors = [tensor("token_embd.weight", [HEADS, VOCABULARY], T.Q8_0)]
    experts = 0
    if "expert_count" in keys:
        lengths = [HEADS, 768, keys["expert_count"]]
        experts = HEADS * 768 * keys["expert_count"] // 32 * 34
        tensors.append(tensor("blk.0.ffn_gate_exps.weight", lengths, T.Q8_0, embedding))
    norms = range(keys["block_count"])
    ends = [embedding + experts + i * 4 * HEADS for i in norms]
    tensors += [tensor(f"blk.{i}.attn_norm.weight", [HEADS], T.F32, ends[i]) for i in norms]
    named = text_key("general.architecture", architecture)
    header = gguf_bytes([named, *made], tensors, data=b"\0", architecture=b"")
    path.write_bytes(header)
    os.truncate(path, len(header) - 1 + ends[-1] + 4 * HEADS)
    return path


def _key(name: str, value: Any) -> bytes:
    if isinstance(value, list):
        return array_key(name, V.INT32, len(value), struct.pack(f"<{len(value)}i", *value))
    if isinstance(value, float):
        return key(name, V.FLOAT32, struct.pack("<f", value))
    return key(name, V.UINT32, u32(value))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ComputePath:
    path = ComputePath("gpu", "quantised", mx.float16, "fused", False)
    monkeypatch.setattr(choice.TwinChoice, "path", lambda self, *_: path)
    return path


@pytest.mark.parametrize("model", PUBLISHED)
def test_bytes_are_those_published(model: str, tmp_path: Path, gpu: ComputePath) -> None:
    architecture, keys, token, snapshot_mib, slack, convolutions = PUBLISHED[model]
    with GGUFFile.open(write_header(tmp_path / "m.gguf", architecture, keys)) as gguf:
        state = plan_bytes(gguf, 64 * GIB).state
    assert (state.token, state.slack) == (token, slack)
    # Published to a tenth of a MiB.
    assert (state.snapshot - convolutions) / MIB == pytest.approx(snapshot_mib, abs=0.06)


def test_a_context_is_the_longest_that_fits(tmp_path: Path, gpu: ComputePath) -> None:
    path = write_header(tmp_path / "m.gguf", "llama", attending(32, 8, 128))
    with GGUFFile.open(path) as gguf:
        config = family_of(gguf).config(gguf)
        plan = plan_bytes(gguf, GIB)
        tokens = plan.longest_tokens
        assert 512 < tokens < plan.own_tokens
        assert plan.loading_bytes + config.kv_bytes(tokens, gpu) <= GIB
        assert plan.loading_bytes + config.kv_bytes(tokens + 1, gpu) > GIB
        assert plan_bytes(gguf, 10**6).longest_tokens == 0


def test_experts_are_counted_apart(tmp_path: Path, gpu: ComputePath) -> None:
    keys = attending(48, 4, 128) | EXPERTS
    with GGUFFile.open(write_header(tmp_path / "m.gguf", "qwen3moe", keys)) as gguf:
        plan = plan_bytes(gguf, 64 * GIB)
    # Q8_0 in MLX's own form: a byte a weight, and a scale and an offset for each 32.
    assert plan.experts_bytes == 128 * 768 * HEADS * (32 + 2 + 2) // 32
    assert plan.weights_bytes > plan.experts_bytes


def test_a_config_that_only_knows_its_whole_state_is_planned(gpu: ComputePath) -> None:
    class Whole:
        context_tokens, is_hybrid = 100, False

        def kv_bytes(self, tokens: int, path: ComputePath) -> int:
            return 7 * tokens + 1000

        def run_by(self, path: ComputePath) -> str:
            return ""

    assert state_bytes(Whole(), gpu) == StateBytes(token=7, snapshot=1000)


def test_the_command_prints_words_or_json(
    tmp_path: Path, gpu: ComputePath, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write_header(tmp_path / "m.gguf", "gemma3", gemma(18, 1, 512)))
    assert main(["models", "show", path, "--plan", "--memory", "8GiB"]) == 0
    words = capsys.readouterr().out
    assert "a token   3,072 bytes" in words and "slack     15,360 bytes" in words
    assert main(["models", "show", path, "--plan", "--memory", "8GiB", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["state"]["token"] == 3072 and found["memory_bytes"] == 8 * GIB
    assert found["longest_tokens"] == found["own_tokens"] == 131_072


def test_a_size_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write_header(tmp_path / "m.gguf", "llama", attending(2, 2, 64)))
    assert main(["models", "show", path, "--plan", "--memory", "16"]) != 0
    assert "'16' is no size of memory" in capsys.readouterr().err
