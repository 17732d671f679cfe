"""DeepSeek V2, V2 Lite and V3: latent attention and routed experts."""

from typing import Any

import gguf
import transformers

from tests.golden.make.gguf_file import TinyFile, Weights
from tests.golden.make.pieces import Config, common, dense, ends, experts, shared_expert, yarn_keys
from tests.golden.make.recipe import BASE, Recipe, make

MLA: dict[str, Any] = dict(
    BASE,
    num_key_value_heads=4,
    kv_lora_rank=32,
    q_lora_rank=48,
    qk_rope_head_dim=16,
    qk_nope_head_dim=32,
    v_head_dim=24,
    n_routed_experts=8,
    num_experts_per_tok=2,
    moe_intermediate_size=32,
    n_shared_experts=1,
    first_k_dense_replace=1,
)
MLA_RECIPE = Recipe(gains={"mlp.gate.": 2.0, "q_b_proj": 1.5, "kv_b_proj": 1.5})


def deepseek2_model(seed: int) -> Any:
    """DeepSeek V2: softmax scores, no renormalisation, routed scale."""
    config = transformers.DeepseekV2Config(
        **MLA,
        topk_method="greedy",
        norm_topk_prob=False,
        routed_scaling_factor=1.5,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0),
    )
    return make(transformers.DeepseekV2ForCausalLM, config, MLA_RECIPE, seed)


def deepseek2_lite_model(seed: int) -> Any:
    """DeepSeek V2 Lite: queries without a low rank. llama.cpp knows it by 27 layers."""
    small = dict(MLA, q_lora_rank=None, num_hidden_layers=27)
    small.update(hidden_size=32, intermediate_size=48, moe_intermediate_size=16)
    config = transformers.DeepseekV2Config(
        **small,
        topk_method="greedy",
        norm_topk_prob=False,
        routed_scaling_factor=1.0,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0),
    )
    return make(transformers.DeepseekV2ForCausalLM, config, MLA_RECIPE, seed)


def deepseek2_v3_model(seed: int, yarn: bool = False) -> Any:
    """DeepSeek V3: sigmoid scores with a choosing bias, groups, optionally yarn."""
    rope = dict(rope_type="default", rope_theta=10000.0)
    if yarn:
        rope = dict(
            rope_type="yarn",
            rope_theta=10000.0,
            factor=8.0,
            original_max_position_embeddings=64,
            beta_fast=32.0,
            beta_slow=1.0,
            mscale=1.0,
            mscale_all_dim=1.0,
        )
    config = transformers.DeepseekV3Config(
        **MLA,
        n_group=4,
        topk_group=2,
        norm_topk_prob=True,
        routed_scaling_factor=2.5,
        rope_interleave=True,
        rope_parameters=rope,
    )
    return make(transformers.DeepseekV3ForCausalLM, config, MLA_RECIPE, seed)


def mla_keys(out: TinyFile, config: Config, gating: int, kv_heads: Any = 1) -> None:
    """The latent is one key head (`kv_heads`: a number, or a list with one a layer)."""
    common(out, config, head_dim=False, kv_heads=kv_heads, vocab=True)
    out.keys(
        attention__q_lora_rank=config.q_lora_rank,
        attention__kv_lora_rank=config.kv_lora_rank,
        attention__key_length=config.kv_lora_rank + config.qk_rope_head_dim,
        attention__value_length=config.kv_lora_rank,
        attention__key_length_mla=config.qk_nope_head_dim + config.qk_rope_head_dim,
        attention__value_length_mla=config.v_head_dim,
        rope__dimension_count=config.qk_rope_head_dim,
        expert_count=config.n_routed_experts,
        expert_used_count=config.num_experts_per_tok,
        expert_shared_count=config.n_shared_experts,
        expert_feed_forward_length=config.moe_intermediate_size,
        expert_weights_scale=float(config.routed_scaling_factor),
        expert_gating_func=int(gating),
    )
    if getattr(config, "norm_topk_prob", False):
        out.keys(expert_weights_norm=True)
    if getattr(config, "n_group", None):
        out.keys(expert_group_count=config.n_group, expert_group_used_count=config.topk_group)
    rope = getattr(config, "rope_parameters", None) or dict(rope_type="default")
    if rope["rope_type"] == "yarn":
        yarn_keys(out, rope)
        # stored as a tenth of mscale_all_dim
        out.key("rope.scaling.yarn_log_multiplier", 0.1 * float(rope["mscale_all_dim"]))


def leading_dense_layers(weights: Weights) -> int:
    return sum("mlp.gate_proj" in name for name in weights.all)


def mla_attention(out: TinyFile, weights: Weights, layer: int, at: str, config: Config) -> None:
    """kv_b (heads * (nope + v), latent) splits into k_b, TRANSPOSED to (heads, latent,
    nope), and v_b (heads, v, latent). The rope parts stay interleaved, unpermuted."""
    nope, rows = config.qk_nope_head_dim, config.qk_nope_head_dim + config.v_head_dim
    both = weights(at + "self_attn.kv_b_proj.weight")
    both = both.reshape(config.num_attention_heads, rows, config.kv_lora_rank)
    out.block(
        layer,
        attn_norm=weights(at + "input_layernorm.weight"),
        attn_kv_a_mqa=weights(at + "self_attn.kv_a_proj_with_mqa.weight"),
        attn_kv_a_norm=weights(at + "self_attn.kv_a_layernorm.weight"),
        attn_k_b=both[:, :nope].swapaxes(1, 2),
        attn_v_b=both[:, nope:],
        attn_output=weights(at + "self_attn.o_proj.weight"),
        ffn_norm=weights(at + "post_attention_layernorm.weight"),
    )
    if config.q_lora_rank is None:
        return out.block(layer, attn_q=weights(at + "self_attn.q_proj.weight"))
    out.block(
        layer,
        attn_q_a=weights(at + "self_attn.q_a_proj.weight"),
        attn_q_a_norm=weights(at + "self_attn.q_a_layernorm.weight"),
        attn_q_b=weights(at + "self_attn.q_b_proj.weight"),
    )


def mla_ffn(out: TinyFile, weights: Weights, layer: int, at: str, leading_dense: int) -> None:
    if layer < leading_dense:
        return dense(out, weights, layer, at)
    experts(out, weights, layer, at)
    shared_expert(out, weights, layer, at, "shared_experts")
    bias = at + "mlp.gate.e_score_correction_bias"
    if weights.has(bias):  # chooses the experts, does not weigh them
        out.block(layer, exp_probs_b__bias=weights(bias))


def write_deepseek2(config: Config, weights: Weights, out: TinyFile) -> None:
    """Dense layers come first. V2 chooses experts by softmax, V3 by sigmoid."""
    kinds = gguf.ExpertGatingFuncType
    mla_keys(out, config, kinds.SOFTMAX if config.model_type == "deepseek_v2" else kinds.SIGMOID)
    lead = leading_dense_layers(weights)
    out.keys(leading_dense_block_count=lead)
    ends(out, weights)
    for layer in range(config.num_hidden_layers):
        at = f"model.layers.{layer}."
        mla_attention(out, weights, layer, at, config)
        mla_ffn(out, weights, layer, at, lead)
