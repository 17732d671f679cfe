"""Qwen2-VL and Qwen2.5-VL, without learned positions; most blocks of the later one's encoder
attend within windows."""

from typing import Any

import transformers

from tests.golden.make.gguf_file import TinyFile, Weights
from tests.golden.make.pieces import Config
from tests.golden.make.qwen import write_qwen2
from tests.golden.make.recipe import BASE, Recipe, make
from tests.golden.make.vision import QWEN_TOKENS, projector_keys, with_bias

PATCH, WINDOW = 14, 112  # pixels, of Qwen2.5: llama.cpp has no windows of another size
TEXT = dict(
    BASE, rope_parameters=dict(rope_type="default", rope_theta=1e4, mrope_section=[4, 2, 2])
)
GAINS = {
    "q_proj.weight": 1.5,
    "k_proj.weight": 1.5,
    "patch_embed": 4.0,
    "mlp.fc2": 0.3,
}
SIDE = 560  # what the converter says of towers without learned positions


def qwen2vl_model(seed: int) -> Any:
    """The feed-forward's width is no multiple of what the converter writes."""
    config = transformers.Qwen2VLConfig(
        text_config=TEXT,
        vision_config=dict(
            depth=2, embed_dim=32, hidden_size=64, mlp_ratio=3, num_heads=2, patch_size=4
        ),
        **QWEN_TOKENS,
    )
    return make(transformers.Qwen2VLForConditionalGeneration, config, Recipe(gains=GAINS), seed)


def qwen25vl_model(seed: int) -> Any:
    """Blocks 1 and 3 see the whole picture, 0 and 2 their windows."""
    config = transformers.Qwen2_5_VLConfig(
        text_config=TEXT,
        vision_config=dict(
            depth=4,
            hidden_size=32,
            intermediate_size=48,
            num_heads=2,
            patch_size=PATCH,
            out_hidden_size=64,
            window_size=WINDOW,
            fullatt_block_indexes=[1, 3],
        ),
        **QWEN_TOKENS,
    )
    return make(transformers.Qwen2_5_VLForConditionalGeneration, config, Recipe(gains=GAINS), seed)


def write_qwen2vl(config: Config, weights: Weights, out: TinyFile) -> None:
    write_qwen2(config.text_config, weights, out, prefix="model.language_model.")
    sections = config.text_config.rope_parameters["mrope_section"]
    out.keys(rope__dimension_sections=[*sections, 0])


# --- the mmproj files ------------------------------------------------------


def qwen2vl_projector(config: Config, weights: Weights, out: TinyFile) -> None:
    """No key says its quick GELU, and the feed-forward's width is given as the text model's, as
    the converter does."""
    vision = config.vision_config
    shapes = dict(hidden_size=vision.embed_dim, intermediate_size=vision.hidden_size)
    projector_keys(out, "qwen2vl_merger", config, 1e-6, SIDE, use_gelu=None, **shapes)
    tower(out, weights, vision)
    for i in range(vision.depth):
        with_bias(out, weights, f"v.blk.{i}.ffn_up", f"model.visual.blocks.{i}.mlp.fc1")
        with_bias(out, weights, f"v.blk.{i}.ffn_down", f"model.visual.blocks.{i}.mlp.fc2")


def qwen25vl_projector(config: Config, weights: Weights, out: TinyFile) -> None:
    vision = config.vision_config
    projector_keys(out, "qwen2.5vl_merger", config, 1e-6, SIDE, use_gelu=None)
    out.keys(use_silu=True, vision__n_wa_pattern=vision.fullatt_block_indexes[0] + 1)
    tower(out, weights, vision)
    for i in range(vision.depth):
        for part in ("gate", "up", "down"):
            source = f"model.visual.blocks.{i}.mlp.{part}_proj"
            with_bias(out, weights, f"v.blk.{i}.ffn_{part}", source)


def tower(out: TinyFile, weights: Weights, vision: Config) -> None:
    """All but the feed-forwards. q, k and v are split; norms have a bias where the class has."""
    at = "model.visual."
    kernel = weights(at + "patch_embed.proj.weight")
    out.put("v.patch_embd.weight", kernel[:, :, 0])
    out.put("v.patch_embd.weight.1", kernel[:, :, 1])
    for i in range(vision.depth):
        block = f"{at}blocks.{i}."
        for kind in ("weight", "bias"):
            joined = weights(f"{block}attn.qkv.{kind}")
            for part, values in zip("qkv", joined.reshape(3, -1, *joined.shape[1:]), strict=True):
                out.put(f"v.blk.{i}.attn_{part}.{kind}", values)
        with_bias(out, weights, f"v.blk.{i}.attn_out", block + "attn.proj")
        norm(out, weights, f"v.blk.{i}.ln1", block + "norm1")
        norm(out, weights, f"v.blk.{i}.ln2", block + "norm2")
    norm(out, weights, "v.post_ln", at + "merger.ln_q")
    with_bias(out, weights, "mm.0", at + "merger.mlp.0")
    with_bias(out, weights, "mm.2", at + "merger.mlp.2")


def norm(out: TinyFile, weights: Weights, name: str, source: str) -> None:
    if weights.has(source + ".bias"):
        with_bias(out, weights, name, source)
    else:
        out.put(name + ".weight", weights(source + ".weight"))
