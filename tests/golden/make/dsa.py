"""DeepSeek V3.2 and GLM-5: latent attention over the tokens that an indexer chooses."""

from typing import Any

import gguf
import transformers

from tests.golden.make.deepseek import (
    MLA,
    MLA_RECIPE,
    leading_dense_layers,
    mla_attention,
    mla_ffn,
    mla_keys,
)
from tests.golden.make.gguf_file import TinyFile, Weights
from tests.golden.make.pieces import Config, ends
from tests.golden.make.recipe import make

INDEXER: dict[str, Any] = dict(
    index_topk=12,  # well under the prompt, so that most tokens are dropped
    index_n_heads=16,  # few heads leave exact ties at 0 after the ReLU
    index_head_dim=64,  # the Hadamard rotation needs a power of two, 64 or more
)


def deepseek32_model(seed: int) -> Any:
    config = transformers.DeepseekV32Config(
        **MLA,
        **INDEXER,
        n_group=1,
        topk_group=1,
        norm_topk_prob=True,
        routed_scaling_factor=2.5,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0),
    )
    return make(transformers.DeepseekV32ForCausalLM, config, MLA_RECIPE, seed)


def glm_dsa_model(seed: int) -> Any:
    config = transformers.GlmMoeDsaConfig(
        **MLA,
        **INDEXER,
        indexer_types=["full", "full", "shared", "shared"],
        n_group=1,
        topk_group=1,
        norm_topk_prob=True,
        routed_scaling_factor=2.5,
        rms_norm_eps=1e-6,  # transformers' inner norms use 1e-6 whatever this says
        rope_parameters=dict(rope_type="default", rope_theta=10000.0),
    )
    return make(transformers.GlmMoeDsaForCausalLM, config, MLA_RECIPE, seed)


def write_dsa(config: Config, weights: Weights, out: TinyFile) -> None:
    """Both keep the indexer's rows as they are. Its rope pairs halves in deepseek32 and
    neighbours in glm-dsa. Shared layers of glm-dsa have no indexer of their own."""
    mla_keys(out, config, gguf.ExpertGatingFuncType.SIGMOID)
    lead = leading_dense_layers(weights)
    out.keys(
        leading_dense_block_count=lead,
        attention__indexer__head_count=config.index_n_heads,
        attention__indexer__key_length=config.index_head_dim,
        attention__indexer__top_k=config.index_topk,
    )
    if out.architecture == "glm-dsa":
        out.key("attention.indexer.types", [t == "full" for t in config.indexer_types])
    ends(out, weights)
    for layer in range(config.num_hidden_layers):
        at = f"model.layers.{layer}."
        mla_attention(out, weights, layer, at, config)
        mla_ffn(out, weights, layer, at, lead)
        if weights.has(at + "self_attn.indexer.wk.weight"):
            indexer(out, weights, layer, at + "self_attn.indexer.")


def indexer(out: TinyFile, weights: Weights, layer: int, at: str) -> None:
    out.block(
        layer,
        indexer__attn_k=weights(at + "wk.weight"),
        indexer__attn_q_b=weights(at + "wq_b.weight"),
        indexer__proj=weights(at + "weights_proj.weight"),
        indexer__k_norm=weights(at + "k_norm.weight"),
        indexer__k_norm__bias=weights(at + "k_norm.bias"),
    )
