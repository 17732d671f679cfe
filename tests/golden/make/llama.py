"""The llama family: plain, tied, and with llama3 rope scaling."""

import math
from typing import Any

import numpy as np
import transformers

from tests.golden.make.gguf_file import TinyFile, Weights
from tests.golden.make.pieces import Config, common, dense, ends, head_size
from tests.golden.make.recipe import BASE, Recipe, make


def llama_model(seed: int, tied: bool = False, llama3: bool = False) -> Any:
    rope = dict(rope_type="default", rope_theta=10000.0)
    if llama3:  # head 16 has 8 frequencies: some kept, some blended, some divided
        rope = dict(
            rope_type="llama3",
            rope_theta=10000.0,
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=128,
        )
    config = transformers.LlamaConfig(
        **{**BASE, "tie_word_embeddings": tied}, head_dim=16, rope_parameters=rope
    )
    return make(
        transformers.LlamaForCausalLM, config, Recipe(gains={"q_proj": 1.5, "k_proj": 1.5}), seed
    )


def interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """The converter's llama permutation: in each head, row j of the first half and
    row j of the second become rows 2j and 2j+1, for a rope over neighbours."""
    half = rows.shape[0] // heads // 2
    order = np.arange(rows.shape[0]).reshape(heads, 2, half).swapaxes(1, 2).reshape(-1)
    return rows[order]


def write_llama(config: Config, weights: Weights, out: TinyFile, prefix: str = "model.") -> None:
    common(out, config, vocab=True)
    out.keys(rope__dimension_count=head_size(config))
    ends(out, weights, prefix=prefix)
    if config.rope_parameters["rope_type"] == "llama3":
        out.put("rope_freqs.weight", llama3_factors(config))  # each frequency is divided by it
    for layer in range(config.num_hidden_layers):
        at = f"{prefix}layers.{layer}."
        out.block(
            layer,
            attn_norm=weights(at + "input_layernorm.weight"),
            attn_q=interleave(weights(at + "self_attn.q_proj.weight"), config.num_attention_heads),
            attn_k=interleave(weights(at + "self_attn.k_proj.weight"), config.num_key_value_heads),
            attn_v=weights(at + "self_attn.v_proj.weight"),
            attn_output=weights(at + "self_attn.o_proj.weight"),
            ffn_norm=weights(at + "post_attention_layernorm.weight"),
        )
        dense(out, weights, layer, at)


def llama3_factors(config: Config) -> np.ndarray:
    """Long waves are slowed by `factor`, short ones kept, those between blended."""
    rope, size = config.rope_parameters, head_size(config)
    out = []
    for j in range(0, size, 2):
        wave = 2 * math.pi * rope["rope_theta"] ** (j / size)
        turns = rope["original_max_position_embeddings"] / wave
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        keep = min(1.0, max(0.0, (turns - low) / (high - low)))
        out.append(1.0 / (keep + (1.0 - keep) / rope["factor"]))
    return np.array(out, np.float32)
