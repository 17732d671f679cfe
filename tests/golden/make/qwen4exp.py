"""Qwen3.8-Flash-Next: Qwen3.5 with low-rank streams, an indexer and n-gram tables."""

from dataclasses import replace
from typing import Any

import numpy as np
import transformers

from tests.golden.make.gguf_file import TinyFile, Weights
from tests.golden.make.hybrid import (
    HYBRID,
    HYBRID_RECIPE,
    MOE,
    gated_delta,
    hybrid_attention,
    hybrid_ffn,
    hybrid_keys,
    mrope,
)
from tests.golden.make.pieces import Config
from tests.golden.make.recipe import BASE, make


def qwen4exp_model(seed: int) -> Any:
    base = {k: v for k, v in BASE.items() if k != "intermediate_size"}
    config = transformers.Qwen4ExpTextConfig(
        **base,
        **HYBRID,
        **MOE,
        rope_parameters=mrope(),
        hc_count=4,
        hc_lowrank=24,
        ple_layer_ids=[2],  # counted from 1
        ple_embed_dim=64,
        ngram_size=3,
        heads_per_ngram=2,
        ngram_vocab_size_base=50,
        make_ngram_vocab_size_divisible_by=8,
        split_ngram_parts=2,
        indexer_n_heads=8,
        indexer_kv_heads=1,
        indexer_head_dim=32,
        indexer_budget=16,
        indexer_compress_ratio=4,
        output_gate_type="sigmoid",  # llama.cpp knows no other
    )
    recipe = replace(HYBRID_RECIPE, zero_centred=("norm",))  # the gated norm is put right below
    model = make(transformers.Qwen4ExpForCausalLM, config, recipe, seed)
    for name, parameter in model.named_parameters():
        if name.endswith("linear_attn.norm.weight"):
            parameter.data.add_(1.0)
    return model


def write_qwen4exp(config: Config, weights: Weights, out: TinyFile) -> None:
    """As qwen35moe, with hyper-connections in place of every layer norm and of the final
    one; all their norms hold 1 + w. The indexer's fused q/k projection splits. The n-gram
    table is one tensor; its hash constants are uint64 keys. Layer ids count from 0."""
    qwen4exp_keys(out, config)
    out.put("token_embd.weight", weights("model.embed_tokens.weight"))
    out.put("output.weight", weights("lm_head.weight"))
    mixer(out, weights, "model.hyper_connection_mixer.", "output_hc")
    for layer, kind in enumerate(config.layer_types):
        at = f"model.layers.{layer}."
        mixer(out, weights, at + "attn_hyper_connection.", f"blk.{layer}.hc_attn")
        mixer(out, weights, at + "mlp_hyper_connection.", f"blk.{layer}.hc_ffn")
        hybrid_ffn(out, weights, layer, at, config)
        if kind == "linear_attention":
            gated_delta(out, weights, layer, at, config)
        else:
            hybrid_attention(out, weights, layer, at)
            indexer(out, weights, layer, at + "self_attn.indexer.", config)
        if layer + 1 in config.ple_layer_ids:
            ple(out, weights, layer, at + "ple.")


def qwen4exp_keys(out: TinyFile, config: Config) -> None:
    hybrid_keys(out, config)
    full = [kind != "linear_attention" for kind in config.layer_types]
    out.keys(
        hyper_connection__count=config.hc_count,
        hyper_connection__low_rank=config.hc_lowrank,
        attention__indexer__head_count=config.indexer_n_heads,
        attention__indexer__key_length=config.indexer_head_dim,
        attention__indexer__top_k=config.indexer_budget,
        attention__compress_ratios=[config.indexer_compress_ratio * int(f) for f in full],
        ple__layers=[i - 1 for i in config.ple_layer_ids],
        ple__ngram_size=config.ngram_size,
        ple__heads_per_ngram=config.heads_per_ngram,
        ple__conv_kernel=config.ple_conv_kernel_size,
        ple__eos_token_id=config.eos_token_id,
    )


def indexer(out: TinyFile, weights: Weights, layer: int, at: str, config: Config) -> None:
    one = np.float32(1.0)
    rows = config.indexer_n_heads * config.indexer_head_dim
    both = weights(at + "index_qk_proj.weight")
    out.block(
        layer,
        indexer__q_proj=both[:rows],
        indexer__k_proj=both[rows:],
        indexer__q_norm=weights(at + "q_layernorm.weight") + one,
        indexer__k_norm=weights(at + "k_layernorm.weight") + one,
    )


def mixer(out: TinyFile, weights: Weights, at: str, name: str) -> None:
    """One hyper-connection; the final one has no inject."""
    out.put(name + "_norm.weight", weights(at + "hc_norm.weight") + np.float32(1.0))
    out.put(name + "_down.weight", weights(at + "input_mix_weight_down.weight"))
    out.put(name + "_up.weight", weights(at + "input_mix_weight_up.weight"))
    if weights.has(at + "block_inject_weight.weight"):
        out.put(name + "_inject.weight", weights(at + "block_inject_weight.weight"))


def ple(out: TinyFile, weights: Weights, layer: int, at: str) -> None:
    one, table = np.float32(1.0), weights(at + "ple_embedding.ngram_embedding.weight")
    out.put("per_layer_token_embd.weight", table)
    out.keys(embedding_length_per_layer_input=table.shape[1])
    out.uint64_key("ple.layer_multipliers", weights(at + "ple_embedding.layer_multipliers"))
    out.uint64_key("ple.head_offsets", weights(at + "ple_embedding.ngram_heads_offsets"))
    out.uint64_key("ple.head_vocab_sizes", weights(at + "ple_embedding.ngram_heads_vocab_sizes"))
    out.block(
        layer,
        ple_key=weights(at + "key_proj.weight"),
        ple_value=weights(at + "value_proj.weight"),
        ple_norm_key=weights(at + "norm_key.weight") + one,
        ple_norm_query=weights(at + "norm_query.weight") + one,
        ple_norm_conv=weights(at + "norm_conv.weight") + one,
        ple_conv1d=weights(at + "conv1d.weight").squeeze(1),
    )
