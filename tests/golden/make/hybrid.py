"""Qwen3-Next and Qwen3.5: three gated delta layers, then one of gated attention."""

from typing import Any

import numpy as np
import transformers

from tests.golden.make.gguf_file import TinyFile, Weights, decay
from tests.golden.make.pieces import Config, common, dense, ends, experts, head_size, shared_expert
from tests.golden.make.recipe import BASE, Recipe, make

HYBRID: dict[str, Any] = dict(
    head_dim=32,
    linear_key_head_dim=16,
    linear_value_head_dim=16,  # llama.cpp takes one state size for both
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_conv_kernel_dim=4,
)
MOE: dict[str, Any] = dict(
    num_experts=8,
    num_experts_per_tok=2,
    moe_intermediate_size=32,
    shared_expert_intermediate_size=32,
)
# the gated norm inside the linear layer is the one norm that is not (1 + w)
HYBRID_RECIPE = Recipe(
    gains={"mlp.gate.": 2.0, "conv1d": 1.5},
    zero_centred=("layernorm", "model.norm", "language_model.norm", "q_norm", "k_norm"),
)


def mrope() -> dict[str, Any]:
    return dict(
        rope_type="default",
        rope_theta=10000.0,
        partial_rotary_factor=0.5,
        mrope_section=[3, 3, 2],  # must be how 8 pairs deal out to t, h, w in turn
        mrope_interleaved=True,
    )


def qwen3next_model(seed: int) -> Any:
    config = transformers.Qwen3NextConfig(
        **BASE,
        **HYBRID,
        **MOE,
        norm_topk_prob=True,
        rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5),
    )
    return make(transformers.Qwen3NextForCausalLM, config, HYBRID_RECIPE, seed)


def qwen35_model(seed: int) -> Any:
    config = transformers.Qwen3_5TextConfig(**BASE, **HYBRID, rope_parameters=mrope())
    return make(transformers.Qwen3_5ForCausalLM, config, HYBRID_RECIPE, seed)


def qwen35moe_model(seed: int) -> Any:
    base = {k: v for k, v in BASE.items() if k != "intermediate_size"}
    config = transformers.Qwen3_5MoeTextConfig(**base, **HYBRID, **MOE, rope_parameters=mrope())
    return make(transformers.Qwen3_5MoeForCausalLM, config, HYBRID_RECIPE, seed)


def tile(array: np.ndarray, axis: int, config: Config, size: int) -> np.ndarray:
    """Value heads from grouped (all that share key head 0, then 1, ..) to tiled order
    (the first of every key head, then the second, ..). `size` is rows a head."""
    groups = config.linear_num_key_heads
    each = config.linear_num_value_heads // groups
    order = np.arange(array.shape[axis]).reshape(groups, each, size).swapaxes(0, 1).reshape(-1)
    return np.take(array, order, axis)


def hybrid_keys(out: TinyFile, config: Config) -> None:
    common(out, config)
    rope = config.rope_parameters
    out.keys(
        ssm__conv_kernel=config.linear_conv_kernel_dim,
        ssm__state_size=config.linear_key_head_dim,
        ssm__group_count=config.linear_num_key_heads,
        ssm__time_step_rank=config.linear_num_value_heads,
        ssm__inner_size=config.linear_value_head_dim * config.linear_num_value_heads,
        full_attention_interval=getattr(config, "full_attention_interval", None) or 4,
        rope__dimension_count=int(head_size(config) * rope["partial_rotary_factor"]),
    )
    out.key("attention.recurrent_layers", [t == "linear_attention" for t in config.layer_types])
    if "mrope_section" in rope:
        out.key("rope.dimension_sections", [*rope["mrope_section"], 0][:4])
    if hasattr(config, "num_experts"):
        out.keys(
            expert_count=config.num_experts,
            expert_used_count=config.num_experts_per_tok,
            expert_feed_forward_length=config.moe_intermediate_size,
            expert_shared_feed_forward_length=config.shared_expert_intermediate_size,
        )


def hybrid_ffn(out: TinyFile, weights: Weights, layer: int, at: str, config: Config) -> None:
    if not hasattr(config, "num_experts"):
        return dense(out, weights, layer, at)
    experts(out, weights, layer, at)
    shared_expert(out, weights, layer, at, "shared_expert")
    # (1, hidden) from this converter; (hidden,) loads too
    out.block(layer, ffn_gate_inp_shexp=weights(at + "mlp.shared_expert_gate.weight"))


def hybrid_attention(out: TinyFile, weights: Weights, layer: int, at: str) -> None:
    """q_proj keeps the transformers order: for each head its query, then its gate."""
    one = np.float32(1.0)
    out.block(
        layer,
        attn_q=weights(at + "self_attn.q_proj.weight"),
        attn_k=weights(at + "self_attn.k_proj.weight"),
        attn_v=weights(at + "self_attn.v_proj.weight"),
        attn_q_norm=weights(at + "self_attn.q_norm.weight") + one,
        attn_k_norm=weights(at + "self_attn.k_norm.weight") + one,
        attn_output=weights(at + "self_attn.o_proj.weight"),
    )


def write_qwen3next(config: Config, weights: Weights, out: TinyFile) -> None:
    """The fused projection is grouped by key head (q, k, v.., z..): split into
    [q; k; v] and z. `ssm_ba` stays grouped by key head (b.., a..). Value heads stay
    grouped. A_log becomes -exp(A_log). Norms hold 1 + w, except the gated one."""
    one = np.float32(1.0)
    hybrid_keys(out, config)
    ends(out, weights, shift=1.0)
    for layer, kind in enumerate(config.layer_types):
        at = f"model.layers.{layer}."
        out.block(
            layer,
            attn_norm=weights(at + "input_layernorm.weight") + one,
            post_attention_norm=weights(at + "post_attention_layernorm.weight") + one,
        )
        hybrid_ffn(out, weights, layer, at, config)
        if kind == "full_attention":
            hybrid_attention(out, weights, layer, at)
            continue
        k, heads = config.linear_key_head_dim, config.linear_num_key_heads
        v = config.linear_value_head_dim * config.linear_num_value_heads // heads
        fused = weights(at + "linear_attn.in_proj_qkvz.weight").reshape(heads, 2 * k + 2 * v, -1)
        cuts = np.split(fused, [k, 2 * k, 2 * k + v], axis=1)
        q, key, value, z = (part.reshape(-1, config.hidden_size) for part in cuts)
        out.block(
            layer,
            attn_qkv=np.concatenate([q, key, value]),
            attn_gate=z,
            ssm_ba=weights(at + "linear_attn.in_proj_ba.weight"),
            ssm_conv1d=weights(at + "linear_attn.conv1d.weight").squeeze(1),
            ssm_dt__bias=weights(at + "linear_attn.dt_bias"),
            ssm_a=decay(weights(at + "linear_attn.A_log")),
            ssm_norm=weights(at + "linear_attn.norm.weight"),
            ssm_out=weights(at + "linear_attn.out_proj.weight"),
        )


def write_qwen35(config: Config, weights: Weights, out: TinyFile, prefix: str = "model.") -> None:
    """As qwen3next, but the projections come apart and every value head is moved from
    grouped to tiled order: rows of v, z, a, b, A_log, dt_bias and the convolution,
    COLUMNS of out_proj. So value head p reads key head p % key_heads."""
    one = np.float32(1.0)
    hybrid_keys(out, config)
    ends(out, weights, shift=1.0, prefix=prefix)
    for layer, kind in enumerate(config.layer_types):
        at = f"{prefix}layers.{layer}."
        out.block(
            layer,
            attn_norm=weights(at + "input_layernorm.weight") + one,
            post_attention_norm=weights(at + "post_attention_layernorm.weight") + one,
        )
        hybrid_ffn(out, weights, layer, at, config)
        if kind == "full_attention":
            hybrid_attention(out, weights, layer, at)
        else:
            gated_delta(out, weights, layer, at, config)


def gated_delta(out: TinyFile, weights: Weights, layer: int, at: str, config: Config) -> None:
    at += "linear_attn."
    size = config.linear_value_head_dim
    qk = 2 * config.linear_key_head_dim * config.linear_num_key_heads
    qkv, conv = weights(at + "in_proj_qkv.weight"), weights(at + "conv1d.weight").squeeze(1)
    out.block(
        layer,
        attn_qkv=np.concatenate([qkv[:qk], tile(qkv[qk:], 0, config, size)]),
        attn_gate=tile(weights(at + "in_proj_z.weight"), 0, config, size),
        ssm_alpha=tile(weights(at + "in_proj_a.weight"), 0, config, 1),
        ssm_beta=tile(weights(at + "in_proj_b.weight"), 0, config, 1),
        ssm_conv1d=np.concatenate([conv[:qk], tile(conv[qk:], 0, config, size)]),
        ssm_dt__bias=tile(weights(at + "dt_bias"), 0, config, 1),
        ssm_a=tile(decay(weights(at + "A_log")), 0, config, 1),
        ssm_norm=weights(at + "norm.weight"),
        ssm_out=tile(weights(at + "out_proj.weight"), 1, config, size),
    )
