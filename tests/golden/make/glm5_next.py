"""GLM-5.3-Flash: linear attention, latent attention without rope, a pooled indexer."""

from typing import Any

import gguf
import numpy as np
import transformers

from tests.golden.make.deepseek import MLA, mla_attention, mla_ffn, mla_keys
from tests.golden.make.dsa import indexer
from tests.golden.make.gguf_file import TinyFile, Weights, decay
from tests.golden.make.pieces import Config, ends, streams
from tests.golden.make.recipe import Recipe, make


def glm5_next_model(seed: int) -> Any:
    text = dict(
        {k: v for k, v in MLA.items() if k not in ("qk_rope_head_dim", "first_k_dense_replace")},
        num_hidden_layers=8,
        qk_rope_head_dim=0,
        mlp_layer_types=["dense"] + ["sparse"] * 7,
        linear_head_dim=16,
        linear_num_heads=4,  # llama.cpp wants as many as attention heads
        linear_conv_kernel_dim=4,
        index_n_heads=16,
        index_head_dim=32,
        index_topk=16,
        index_kpool=4,
        rms_norm_eps=1e-6,
    )
    vision = dict(depth=1, hidden_size=32, num_heads=2, image_size=32, patch_size=4)
    vision.update(out_hidden_size=64, intermediate_size=32, projection_intermediate_size=32)
    config = transformers.Glm5NextConfig(text_config=text, vision_config=vision)
    config.text_config._attn_implementation = "eager"
    gains = {"mlp.gate.": 2.0, "compress_ape": 4.0, "_hc.fn": 2.0, "conv1d": 1.5, "f_b_proj": 0.5}
    return make(transformers.Glm5NextForConditionalGeneration, config, Recipe(gains=gains), seed)


def write_glm5_next(config: Config, weights: Weights, out: TinyFile) -> None:
    """One transformers convolution holds q, k and v: three tensors (1, channels, 1, K).
    A_log becomes -exp(A_log). Linear layers are those with 0 key heads. MLA without
    rope, k_b/v_b as in deepseek2. The final streams are averaged, no tensor for it."""
    glm5_next_keys(out, config)
    ends(out, weights, prefix="model.language_model.")
    for layer, kind in enumerate(config.layer_types):
        at = f"model.language_model.layers.{layer}."
        streams(out, weights, layer, at)
        mla_ffn(out, weights, layer, at, config.mlp_layer_types.count("dense"))
        if kind == "linear_attention":
            linear_attention(out, weights, layer, at)
        else:
            mla_attention(out, weights, layer, at, config)
            pooled_indexer(out, weights, layer, at + "self_attn.indexer.")


def glm5_next_keys(out: TinyFile, config: Config) -> None:
    heads = [int(kind != "linear_attention") for kind in config.layer_types]
    mla_keys(out, config, gguf.ExpertGatingFuncType.SIGMOID, kv_heads=heads)
    out.keys(
        attention__layer_norm_epsilon=1e-6,
        attention__indexer__head_count=config.index_n_heads,
        attention__indexer__key_length=config.index_head_dim,
        attention__indexer__top_k=config.index_topk,
        attention__indexer__kpool=config.index_kpool,
        attention__indexer__kpool_select_tail=bool(config.index_kpool_always_select_tail),
        attention__indexer__types=[kind == "full" for kind in config.indexer_types],
        ssm__conv_kernel=config.linear_conv_kernel_dim,
        kda__head_dim=config.linear_head_dim,
        kda__gate_lower_bound=float(config.linear_lower_bound),
        hyper_connection__count=config.hc_mult,
        hyper_connection__sinkhorn_iterations=config.hc_sinkhorn_iters,
        hyper_connection__epsilon=float(config.hc_eps),
        leading_dense_block_count=config.mlp_layer_types.count("dense"),
        swiglu_clamp_exp=[float(config.swiglu_limit)] * config.num_hidden_layers,
        swiglu_clamp_shexp=[float(config.swiglu_limit)] * config.num_hidden_layers,
    )


def pooled_indexer(out: TinyFile, weights: Weights, layer: int, at: str) -> None:
    """Shared layers have none."""
    if not weights.has(at + "wk.weight"):
        return
    indexer(out, weights, layer, at)
    out.block(
        layer,
        indexer_compressor_gate=weights(at + "index_kpool_compress_gate"),
        indexer_compressor_ape=weights(at + "index_kpool_compress_ape"),
    )


def linear_attention(out: TinyFile, weights: Weights, layer: int, at: str) -> None:
    attn = at + "self_attn."
    kernel = weights(attn + "conv1d.weight")
    for part, rows in zip("qkv", np.split(kernel, 3), strict=True):
        out.put(f"blk.{layer}.ssm_conv1d_{part}.weight", rows.reshape(1, len(rows), 1, -1))
        out.put(f"blk.{layer}.attn_{part}.weight", weights(f"{attn}{part}_proj.weight"))
    out.block(
        layer,
        attn_norm=weights(at + "input_layernorm.weight"),
        ffn_norm=weights(at + "post_attention_layernorm.weight"),
        attn_output=weights(attn + "o_proj.weight"),
        ssm_f_a=weights(attn + "forget_gate.f_a_proj.weight"),
        ssm_f_b=weights(attn + "forget_gate.f_b_proj.weight"),
        ssm_g_a=weights(attn + "g_a_proj.weight"),
        ssm_g_b=weights(attn + "g_b_proj.weight"),
        ssm_beta=weights(attn + "b_proj.weight"),
        ssm_a=decay(weights(attn + "forget_gate.A_log")),
        ssm_dt__bias=weights(attn + "forget_gate.dt_bias"),
        ssm_norm=weights(attn + "o_norm.weight"),
    )
