"""Gemma 3: sandwich norms, local and global layers, scaled tied embedding."""

from typing import Any

import numpy as np
import transformers

from tests.golden.make.gguf_file import TinyFile, Weights
from tests.golden.make.pieces import Config, common, dense, ends
from tests.golden.make.recipe import BASE, Recipe, make


def gemma3_text_config(window: int = 8) -> dict[str, Any]:
    return dict(
        BASE,
        num_hidden_layers=7,  # the sixth is global
        head_dim=32,
        query_pre_attn_scalar=32,  # llama.cpp scales by head_dim unless there are 62 layers
        sliding_window=window,
        layer_types=[*["sliding_attention"] * 5, "full_attention", "sliding_attention"],
        rope_parameters=dict(
            full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1e6),
            sliding_attention=dict(rope_type="default", rope_theta=1e4),
        ),
        tie_word_embeddings=True,
    )


GEMMA3_RECIPE = Recipe(zero_centred=("norm",))


def gemma3_model(seed: int) -> Any:
    config = transformers.Gemma3TextConfig(**gemma3_text_config())
    model = make(transformers.Gemma3ForCausalLM, config, GEMMA3_RECIPE, seed)
    return temper(model)


def temper(model: Any) -> Any:
    """Gemma's tied embedding is multiplied by sqrt(hidden) on the way in: drawn at 1 it
    gives logits of tens, so make it small. Its feed-forward carries the f16 noise of the
    GELU: turn it down against attention, which carries the other tokens."""
    model.get_input_embeddings().weight.data.mul_(0.3)
    for name, parameter in model.named_parameters():
        if name.endswith("post_feedforward_layernorm.weight"):
            parameter.data.sub_(0.7)  # a scale of 0.3
    return model


def write_gemma3(config: Config, weights: Weights, out: TinyFile, prefix: str = "model.") -> None:
    """Every RMSNorm computes (1 + w): the file holds 1 + w. Tied output. A layer is
    global when layer % 6 == 5 (no key says so). Embeddings are scaled by sqrt(hidden)."""
    common(out, config)
    full = config.rope_parameters["full_attention"]
    local = config.rope_parameters["sliding_attention"]
    out.keys(
        attention__sliding_window=config.sliding_window,
        rope__freq_base_swa=float(local["rope_theta"]),
    )
    if full["rope_type"] == "linear":  # global layers only
        out.keys(rope__scaling__type="linear", rope__scaling__factor=float(full["factor"]))
    ends(out, weights, shift=1.0, prefix=prefix)
    one = np.float32(1.0)
    for layer in range(config.num_hidden_layers):
        at = f"{prefix}layers.{layer}."
        out.block(
            layer,
            attn_norm=weights(at + "input_layernorm.weight") + one,
            attn_q=weights(at + "self_attn.q_proj.weight"),
            attn_k=weights(at + "self_attn.k_proj.weight"),
            attn_v=weights(at + "self_attn.v_proj.weight"),
            attn_q_norm=weights(at + "self_attn.q_norm.weight") + one,
            attn_k_norm=weights(at + "self_attn.k_norm.weight") + one,
            attn_output=weights(at + "self_attn.o_proj.weight"),
            post_attention_norm=weights(at + "post_attention_layernorm.weight") + one,
            ffn_norm=weights(at + "pre_feedforward_layernorm.weight") + one,
            post_ffw_norm=weights(at + "post_feedforward_layernorm.weight") + one,
        )
        dense(out, weights, layer, at)
