"""Qwen2 (biases), Qwen3 (norms on q and k), Qwen3-MoE."""

from typing import Any

import transformers

from tests.golden.make.gguf_file import TinyFile, Weights
from tests.golden.make.pieces import Config, common, dense, ends, experts
from tests.golden.make.recipe import BASE, Recipe, make


def qwen2_model(seed: int) -> Any:
    config = transformers.Qwen2Config(**BASE)
    return make(
        transformers.Qwen2ForCausalLM,
        config,
        Recipe(gains={"q_proj.weight": 1.5, "k_proj.weight": 1.5}),
        seed,
    )


def write_qwen2(config: Config, weights: Weights, out: TinyFile, prefix: str = "model.") -> None:
    """Plain names; q, k and v carry biases; rope pairs the two halves (no permutation)."""
    common(out, config)
    ends(out, weights, prefix=prefix)
    for layer in range(config.num_hidden_layers):
        at = f"{prefix}layers.{layer}."
        out.block(
            layer,
            attn_norm=weights(at + "input_layernorm.weight"),
            attn_output=weights(at + "self_attn.o_proj.weight"),
            ffn_norm=weights(at + "post_attention_layernorm.weight"),
        )
        for part in "qkv":
            out.put(f"blk.{layer}.attn_{part}.weight", weights(f"{at}self_attn.{part}_proj.weight"))
            out.put(f"blk.{layer}.attn_{part}.bias", weights(f"{at}self_attn.{part}_proj.bias"))
        dense(out, weights, layer, at)


def qwen3_model(seed: int) -> Any:
    # head_dim * heads differs from hidden_size
    config = transformers.Qwen3Config(**BASE, head_dim=32)
    return make(transformers.Qwen3ForCausalLM, config, Recipe(), seed)


def qwen3moe_model(seed: int) -> Any:
    # llama.cpp always renormalises the chosen weights; transformers' default does not
    config = transformers.Qwen3MoeConfig(
        **BASE,
        head_dim=32,
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        norm_topk_prob=True,
    )
    return make(transformers.Qwen3MoeForCausalLM, config, Recipe(gains={"mlp.gate.": 2.0}), seed)


def write_qwen3(config: Config, weights: Weights, out: TinyFile, prefix: str = "model.") -> None:
    """Per-head norms on q and k; dense or mixture of experts by the config."""
    common(out, config)
    moe = hasattr(config, "num_experts")
    if moe:
        out.keys(
            expert_count=config.num_experts,
            expert_used_count=config.num_experts_per_tok,
            expert_feed_forward_length=config.moe_intermediate_size,
        )
    ends(out, weights, prefix=prefix)
    for layer in range(config.num_hidden_layers):
        at = f"{prefix}layers.{layer}."
        out.block(
            layer,
            attn_norm=weights(at + "input_layernorm.weight"),
            attn_q=weights(at + "self_attn.q_proj.weight"),
            attn_k=weights(at + "self_attn.k_proj.weight"),
            attn_v=weights(at + "self_attn.v_proj.weight"),
            attn_q_norm=weights(at + "self_attn.q_norm.weight"),
            attn_k_norm=weights(at + "self_attn.k_norm.weight"),
            attn_output=weights(at + "self_attn.o_proj.weight"),
            ffn_norm=weights(at + "post_attention_layernorm.weight"),
        )
        (experts if moe else dense)(out, weights, layer, at)
