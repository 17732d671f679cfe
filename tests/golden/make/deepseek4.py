"""DeepSeek V4: four streams, pooled keys, a window, hashed experts."""

from typing import Any

import numpy as np
import transformers

from tests.golden.make.gguf_file import TinyFile, Weights
from tests.golden.make.pieces import (
    Config,
    common,
    ends,
    experts,
    shared_expert,
    streams,
    yarn_keys,
)
from tests.golden.make.recipe import Recipe, make
from tests.golden.make.tokens import BOS, EOS, VOCAB


def deepseek4_model(seed: int) -> Any:
    sliding, csa = "sliding_attention", "compressed_sparse_attention"
    hca = "heavily_compressed_attention"
    config = transformers.DeepseekV4Config(
        vocab_size=VOCAB,
        hidden_size=64,
        moe_intermediate_size=32,
        num_hidden_layers=5,
        num_attention_heads=4,
        head_dim=32,
        q_lora_rank=48,
        n_routed_experts=8,
        num_experts_per_tok=2,
        max_position_embeddings=1024,
        qk_rope_head_dim=16,
        layer_types=[sliding, sliding, csa, hca, csa],
        compress_rates={csa: 4, hca: 128},  # llama.cpp knows no others
        mlp_layer_types=["hash_moe", "moe", "moe", "moe", "moe"],
        sliding_window=16,
        o_groups=2,
        o_lora_rank=24,
        index_n_heads=16,
        index_head_dim=64,
        index_topk=8,
        hc_mult=4,
        rope_parameters=dict(
            rope_type="yarn",
            factor=4.0,
            original_max_position_embeddings=64,
            beta_fast=32.0,
            beta_slow=1.0,
        ),
        bos_token_id=BOS,
        eos_token_id=EOS,
    )
    gains = {"mlp.gate.": 2.0, "q_b_proj": 1.5, "position_bias": 4.0, "_hc.fn": 2.0}
    return make(transformers.DeepseekV4ForCausalLM, config, Recipe(gains=gains), seed)


def write_deepseek4(config: Config, weights: Weights, out: TinyFile) -> None:
    """No rows move. Names follow DeepSeek's own checkpoint; o_a stays two-dimensional
    (groups * rank, heads * size / groups); the hash table is int32."""
    deepseek4_keys(out, config)
    ends(out, weights)
    for part in ("fn", "base", "scale"):
        out.put(f"output_hc_{part}.weight", weights(f"model.hc_head.hc_{part}"))
    for layer in range(config.num_hidden_layers):
        at = f"model.layers.{layer}."
        streams(out, weights, layer, at)
        attention(out, weights, layer, at)
        pools(out, weights, layer, at + "self_attn.compressor.")
        feed_forward(out, weights, layer, at)


def deepseek4_keys(out: TinyFile, config: Config) -> None:
    common(out, config, ffn=False)
    attention_keys(out, config)
    out.keys(
        hyper_connection__count=config.hc_mult,
        hyper_connection__sinkhorn_iterations=config.hc_sinkhorn_iters,
        hyper_connection__epsilon=float(config.hc_eps),
        embedding_length_out=config.hc_mult * config.hidden_size,
        hash_layer_count=config.mlp_layer_types.count("hash_moe"),
        expert_count=config.n_routed_experts,
        expert_used_count=config.num_experts_per_tok,
        expert_shared_count=config.n_shared_experts,
        expert_feed_forward_length=config.moe_intermediate_size,
        expert_weights_scale=float(config.routed_scaling_factor),
        expert_weights_norm=bool(config.norm_topk_prob),
        expert_gating_func=4,  # sqrt(softplus); not in gguf 0.19's enum
        swiglu_clamp_exp=[float(config.swiglu_limit)] * config.num_hidden_layers,
        swiglu_clamp_shexp=[float(config.swiglu_limit)] * config.num_hidden_layers,
    )


def attention_keys(out: TinyFile, config: Config) -> None:
    rope = config.rope_parameters["compress"]
    ratios = {"sliding_attention": 0, **config.compress_rates}
    out.keys(
        rope__dimension_count=config.qk_rope_head_dim,
        attention__q_lora_rank=config.q_lora_rank,
        attention__sliding_window=config.sliding_window,
        attention__output_group_count=config.o_groups,
        attention__output_lora_rank=config.o_lora_rank,
        attention__compress_rope_freq_base=float(rope["rope_theta"]),
        attention__compress_ratios=[ratios[kind] for kind in config.layer_types],
        attention__indexer__head_count=config.index_n_heads,
        attention__indexer__key_length=config.index_head_dim,
        attention__indexer__top_k=config.index_topk,
    )
    yarn_keys(out, rope)


def attention(out: TinyFile, weights: Weights, layer: int, at: str) -> None:
    attn = at + "self_attn."
    out.block(
        layer,
        attn_norm=weights(at + "input_layernorm.weight"),
        attn_sinks=weights(attn + "sinks"),
        attn_q_a=weights(attn + "q_a_proj.weight"),
        attn_q_a_norm=weights(attn + "q_a_norm.weight"),
        attn_q_b=weights(attn + "q_b_proj.weight"),
        attn_kv=weights(attn + "kv_proj.weight"),
        attn_kv_a_norm=weights(attn + "kv_norm.weight"),
        attn_output_a=weights(attn + "o_a_proj.weight"),
        attn_output_b=weights(attn + "o_b_proj.weight"),
    )


def pools(out: TinyFile, weights: Weights, layer: int, at: str) -> None:
    """The compressor that most layers have, and the indexer of some."""
    if weights.has(at + "kv_proj.weight"):
        compressor(out, weights, layer, at, "attn_compressor")
    if weights.has(at + "indexer.kv_proj.weight"):
        compressor(out, weights, layer, at + "indexer.", "indexer_compressor")
        out.block(
            layer,
            indexer__attn_q_b=weights(at + "indexer.q_b_proj.weight"),
            indexer__proj=weights(at + "indexer.scorer.weights_proj.weight"),
        )


def feed_forward(out: TinyFile, weights: Weights, layer: int, at: str) -> None:
    """Experts by a table of token ids in the first layers, by scores in the others."""
    out.block(layer, ffn_norm=weights(at + "post_attention_layernorm.weight"))
    experts(out, weights, layer, at)
    shared_expert(out, weights, layer, at, "shared_experts")
    if weights.has(at + "mlp.gate.tid2eid"):
        out.block(layer, ffn_gate_tid2eid=weights(at + "mlp.gate.tid2eid").astype(np.int32))
    else:
        out.block(layer, exp_probs_b__bias=weights(at + "mlp.gate.e_score_correction_bias"))


def compressor(out: TinyFile, weights: Weights, layer: int, at: str, name: str) -> None:
    for part, tensor in (
        ("kv", "kv_proj.weight"),
        ("gate", "gate_proj.weight"),
        ("ape", "position_bias"),
        ("norm", "kv_norm.weight"),
    ):
        out.put(f"blk.{layer}.{name}_{part}.weight", weights(at + tensor))
