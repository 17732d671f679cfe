"""Keys and tensors that several families share."""

from typing import Any

import numpy as np

from tests.golden.make.gguf_file import TinyFile, Weights

Config = Any  # a transformers configuration


def common(
    out: TinyFile,
    config: Config,
    head_dim: bool = True,
    kv_heads: Any = None,
    vocab: bool = False,
    ffn: bool = True,
) -> None:
    """The keys that every text family has. `vocab`: the converter writes the vocabulary's
    size for a few families only, the rest leave it to the token list."""
    rope = getattr(config, "rope_parameters", None) or {}
    rope = rope.get("full_attention", rope.get("main", rope))
    out.keys(
        block_count=config.num_hidden_layers,
        context_length=config.max_position_embeddings,
        embedding_length=config.hidden_size,
        feed_forward_length=getattr(config, "intermediate_size", None) if ffn else None,
        vocab_size=config.vocab_size if vocab else None,
        attention__head_count=config.num_attention_heads,
        attention__head_count_kv=kv_heads or config.num_key_value_heads,
        attention__layer_norm_rms_epsilon=float(config.rms_norm_eps),
        rope__freq_base=float(rope["rope_theta"]) if rope else None,
    )
    if head_dim and getattr(config, "head_dim", None):
        out.keys(attention__key_length=config.head_dim, attention__value_length=config.head_dim)


def yarn_keys(out: TinyFile, rope: dict[str, Any]) -> None:
    out.keys(
        rope__scaling__type="yarn",
        rope__scaling__factor=float(rope["factor"]),
        rope__scaling__original_context_length=rope["original_max_position_embeddings"],
        rope__scaling__yarn_beta_fast=float(rope["beta_fast"]),
        rope__scaling__yarn_beta_slow=float(rope["beta_slow"]),
    )


def streams(out: TinyFile, weights: Weights, layer: int, at: str) -> None:
    """Hyper-connections around attention and feed-forward."""
    for part in ("fn", "base", "scale"):
        out.put(f"blk.{layer}.hc_attn_{part}.weight", weights(f"{at}attn_hc.{part}"))
        out.put(f"blk.{layer}.hc_ffn_{part}.weight", weights(f"{at}ffn_hc.{part}"))


def head_size(config: Config) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def ends(out: TinyFile, weights: Weights, shift: float = 0.0, prefix: str = "model.") -> None:
    """Embedding, final norm, and the output matrix unless it is tied."""
    out.put("token_embd.weight", weights(prefix + "embed_tokens.weight"))
    out.put("output_norm.weight", weights(prefix + "norm.weight") + np.float32(shift))
    head = "lm_head.weight"
    if not np.array_equal(weights(head), weights(prefix + "embed_tokens.weight")):
        out.put("output.weight", weights(head))


def dense(out: TinyFile, weights: Weights, layer: int, at: str) -> None:
    out.block(
        layer,
        ffn_gate=weights(at + "mlp.gate_proj.weight"),
        ffn_up=weights(at + "mlp.up_proj.weight"),
        ffn_down=weights(at + "mlp.down_proj.weight"),
    )


def experts(out: TinyFile, weights: Weights, layer: int, at: str) -> None:
    """transformers keeps gate and up in one tensor (E, 2F, H); GGUF splits them."""
    both = weights(at + "mlp.experts.gate_up_proj")
    half = both.shape[1] // 2
    out.block(
        layer,
        ffn_gate_inp=weights(at + "mlp.gate.weight"),
        ffn_gate_exps=both[:, :half],
        ffn_up_exps=both[:, half:],
        ffn_down_exps=weights(at + "mlp.experts.down_proj"),
    )


def shared_expert(out: TinyFile, weights: Weights, layer: int, at: str, name: str) -> None:
    out.block(
        layer,
        ffn_gate_shexp=weights(f"{at}mlp.{name}.gate_proj.weight"),
        ffn_up_shexp=weights(f"{at}mlp.{name}.up_proj.weight"),
        ffn_down_shexp=weights(f"{at}mlp.{name}.down_proj.weight"),
    )
