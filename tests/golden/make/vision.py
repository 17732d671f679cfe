"""Vision models: text families with an encoder, whose weights go to an mmproj file.

The text file is written by the text family's own writer, the encoder by a `*_projector`.
"""

from typing import Any

import numpy as np
import transformers

from tests.golden.make.gemma import gemma3_text_config, temper, write_gemma3
from tests.golden.make.gguf_file import TinyFile, Weights
from tests.golden.make.hybrid import HYBRID, HYBRID_RECIPE, MOE, mrope, write_qwen35
from tests.golden.make.llama import write_llama
from tests.golden.make.pieces import Config
from tests.golden.make.qwen import write_qwen3
from tests.golden.make.recipe import BASE, Recipe, make
from tests.golden.make.tokens import ID

TOWER: dict[str, Any] = dict(hidden_size=32, intermediate_size=48)
SIGLIP = dict(TOWER, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=4)
QWEN_TOWER = dict(
    TOWER,
    num_heads=2,
    patch_size=4,
    temporal_patch_size=2,
    spatial_merge_size=2,
    out_hidden_size=64,
    num_position_embeddings=64,
)
QWEN_TOKENS = dict(
    image_token_id=ID["<image>"],
    video_token_id=ID["<video>"],
    vision_start_token_id=ID["<|vision_start|>"],
    vision_end_token_id=ID["<|vision_end|>"],
)
# more of the pixels, less of the feed-forward, whose GELU is llama.cpp's f16 noise
TOWER_GAINS = {"patch_embed": 2.0, "mlp.linear_fc2": 0.3}


# --- the models ------------------------------------------------------------


def idefics3_model(seed: int) -> Any:
    text = dict(BASE, head_dim=16, model_type="llama", pad_token_id=0)
    text["rope_parameters"] = dict(rope_type="default", rope_theta=10000.0)
    config = transformers.Idefics3Config(
        text_config=text,
        vision_config=SIGLIP,
        scale_factor=2,
        image_token_id=ID["<image>"],
        pad_token_id=0,
    )
    gains = {"q_proj": 1.5, "k_proj": 1.5, "mlp.fc2": 0.3}
    return make(transformers.Idefics3ForConditionalGeneration, config, Recipe(gains=gains), seed)


def qwen3vl_model(seed: int) -> Any:
    rope = dict(rope_type="default", rope_theta=1e4, mrope_section=[6, 5, 5])
    config = transformers.Qwen3VLConfig(
        text_config=dict(BASE, head_dim=32, rope_parameters=dict(rope, mrope_interleaved=True)),
        vision_config=dict(QWEN_TOWER, depth=4, deepstack_visual_indexes=[0, 2]),
        **QWEN_TOKENS,
    )
    return make(
        transformers.Qwen3VLForConditionalGeneration, config, Recipe(gains=TOWER_GAINS), seed
    )


def qwen3vlmoe_model(seed: int) -> Any:
    """Experts of which 2 of 8 see each row; its encoder has more blocks than are tapped."""
    rope = dict(rope_type="default", rope_theta=1e4, mrope_section=[6, 5, 5])
    experts = dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32)
    text = dict(BASE, **experts, head_dim=32)
    config = transformers.Qwen3VLMoeConfig(
        text_config=dict(text, rope_parameters=dict(rope, mrope_interleaved=True)),
        vision_config=dict(QWEN_TOWER, depth=3, deepstack_visual_indexes=[0, 1]),
        **QWEN_TOKENS,
    )
    recipe = Recipe(gains={**TOWER_GAINS, "mlp.gate.": 2.0})
    return make(transformers.Qwen3VLMoeForConditionalGeneration, config, recipe, seed)


def qwen35v_model(seed: int) -> Any:
    config = transformers.Qwen3_5Config(
        text_config=dict(BASE, **HYBRID, rope_parameters=mrope()),
        vision_config=dict(QWEN_TOWER, depth=2),
        **QWEN_TOKENS,
    )
    recipe = Recipe(
        gains={**HYBRID_RECIPE.gains, **TOWER_GAINS},
        zero_centred=("language_model.norm", "layernorm", "q_norm", "k_norm"),
    )
    return make(transformers.Qwen3_5ForConditionalGeneration, config, recipe, seed)


def qwen35moev_model(seed: int) -> Any:
    base = {key: value for key, value in BASE.items() if key != "intermediate_size"}
    config = transformers.Qwen3_5MoeConfig(
        text_config=dict(base, **HYBRID, **MOE, rope_parameters=mrope()),
        vision_config=dict(QWEN_TOWER, depth=2),
        **QWEN_TOKENS,
    )
    recipe = Recipe(
        gains={**HYBRID_RECIPE.gains, **TOWER_GAINS},
        zero_centred=("language_model.norm", "layernorm", "q_norm", "k_norm"),
    )
    return make(transformers.Qwen3_5MoeForConditionalGeneration, config, recipe, seed)


def gemma3v_model(seed: int) -> Any:
    config = transformers.Gemma3Config(
        text_config=gemma3_text_config(window=12),  # less than the image's 16 tokens
        vision_config=SIGLIP,
        mm_tokens_per_image=16,
        image_token_id=ID["<image>"],
        boi_token_index=ID["<start_of_image>"],
        eoi_token_index=ID["<end_of_image>"],
    )
    recipe = Recipe(
        gains={"mm_input_projection": 4.0, "patch_embedding": 3.0, "mlp.fc2": 0.3},
        zero_centred=("language_model", "soft_emb_norm"),
    )
    return temper(make(transformers.Gemma3ForConditionalGeneration, config, recipe, seed))


# --- the text files --------------------------------------------------------


def write_idefics3(config: Config, weights: Weights, out: TinyFile) -> None:
    """An ordinary llama file."""
    write_llama(config.text_config, weights, out, prefix="model.text_model.")


def write_gemma3v(config: Config, weights: Weights, out: TinyFile) -> None:
    write_gemma3(config.text_config, weights, out, prefix="model.language_model.")


def write_qwen3vl(config: Config, weights: Weights, out: TinyFile) -> None:
    write_qwen3(config.text_config, weights, out, prefix="model.language_model.")
    sections = config.text_config.rope_parameters["mrope_section"]
    tapped = config.vision_config.deepstack_visual_indexes
    out.keys(rope__dimension_sections=[*sections, 0], n_deepstack_layers=len(tapped))


def write_qwen35v(config: Config, weights: Weights, out: TinyFile) -> None:
    write_qwen35(config.text_config, weights, out, prefix="model.language_model.")


# --- the mmproj files ------------------------------------------------------


def projector_keys(
    out: TinyFile,
    projector: str,
    config: Config,
    epsilon: float,
    side: int | None = None,
    use_gelu: bool | None = True,
    hidden_size: int | None = None,
    intermediate_size: int | None = None,
) -> None:
    """The keys that every projector needs. `image_size` is the side for which the learned
    positions were made."""
    vision = config.vision_config
    side = side or getattr(vision, "image_size", None)
    out.writer.add_type("mmproj")
    out.keys(
        has_vision_encoder=True,
        projector_type=projector,
        use_gelu=use_gelu,
        vision__image_size=side or int(vision.num_position_embeddings**0.5) * vision.patch_size,
        vision__patch_size=vision.patch_size,
        vision__embedding_length=hidden_size or vision.hidden_size,
        vision__feed_forward_length=intermediate_size or vision.intermediate_size,
        vision__block_count=vision.num_hidden_layers,
        vision__attention__head_count=vision.num_attention_heads,
        vision__attention__layer_norm_epsilon=float(epsilon),
        vision__projection_dim=config.text_config.hidden_size,
        vision__image_mean=[0.5] * 3,
        vision__image_std=[0.5] * 3,
    )


def with_bias(out: TinyFile, weights: Weights, name: str, source: str) -> None:
    out.put(name + ".weight", weights(source + ".weight"))
    out.put(name + ".bias", weights(source + ".bias"))


def siglip(out: TinyFile, weights: Weights, at: str, layers: int) -> None:
    with_bias(out, weights, "v.patch_embd", at + "embeddings.patch_embedding")
    out.put("v.position_embd.weight", weights(at + "embeddings.position_embedding.weight"))
    with_bias(out, weights, "v.post_ln", at + "post_layernorm")
    for i in range(layers):
        layer = f"{at}encoder.layers.{i}."
        for part in "qkv":
            with_bias(out, weights, f"v.blk.{i}.attn_{part}", f"{layer}self_attn.{part}_proj")
        with_bias(out, weights, f"v.blk.{i}.attn_out", layer + "self_attn.out_proj")
        with_bias(out, weights, f"v.blk.{i}.ln1", layer + "layer_norm1")
        with_bias(out, weights, f"v.blk.{i}.ln2", layer + "layer_norm2")
        with_bias(out, weights, f"v.blk.{i}.ffn_up", layer + "mlp.fc1")
        with_bias(out, weights, f"v.blk.{i}.ffn_down", layer + "mlp.fc2")


def idefics3_projector(config: Config, weights: Weights, out: TinyFile) -> None:
    """The connector's matrix is kept as it is."""
    vision = config.vision_config
    projector_keys(out, "idefics3", config, vision.layer_norm_eps)
    out.keys(vision__projector__scale_factor=config.scale_factor)
    out.keys(vision__preproc_image_size=vision.image_size)  # longest edge: a tile, an overview
    siglip(out, weights, "model.vision_model.", vision.num_hidden_layers)
    out.put("mm.model.fc.weight", weights("model.connector.modality_projection.proj.weight"))


def gemma3_projector(config: Config, weights: Weights, out: TinyFile) -> None:
    """The projection is stored as transformers keeps it, (vision, text), and the norm
    before it as 1 + w; the encoder's norms have no shift. Attention pooling is unused."""
    vision = config.vision_config
    projector_keys(out, "gemma3", config, vision.layer_norm_eps)
    side = int(config.mm_tokens_per_image**0.5)
    pooled = vision.image_size // vision.patch_size // side
    out.keys(vision__projector__scale_factor=pooled)  # 4 unless it is said
    siglip(out, weights, "model.vision_tower.", vision.num_hidden_layers)
    at = "model.multi_modal_projector."
    norm = weights(at + "mm_soft_emb_norm.weight") + np.float32(1.0)
    out.put("mm.input_projection.weight", weights(at + "mm_input_projection_weight"))
    out.put("mm.soft_emb_norm.weight", norm)


def qwen_projector(config: Config, weights: Weights, out: TinyFile) -> None:
    """The temporal patch convolution splits into two; merger layers are mm.0 and mm.2 and
    its norm v.post_ln; deepstack mergers are named by the encoder layer they follow."""
    vision, at = config.vision_config, "model.visual."
    tapped = list(getattr(vision, "deepstack_visual_indexes", None) or [])
    projector_keys(out, "qwen3vl_merger", config, config.text_config.rms_norm_eps)
    out.keys(vision__spatial_merge_size=vision.spatial_merge_size)
    out.keys(vision__is_deepstack_layers=[i in tapped for i in range(vision.depth)])
    kernel = weights(at + "patch_embed.proj.weight")
    out.put("v.patch_embd.weight", kernel[:, :, 0])
    out.put("v.patch_embd.weight.1", kernel[:, :, 1])
    out.put("v.patch_embd.bias", weights(at + "patch_embed.proj.bias"))
    out.put("v.position_embd.weight", weights(at + "pos_embed.weight"))
    for i in range(vision.depth):
        qwen_block(out, weights, i, f"{at}blocks.{i}.")
    with_bias(out, weights, "v.post_ln", at + "merger.norm")
    with_bias(out, weights, "mm.0", at + "merger.linear_fc1")
    with_bias(out, weights, "mm.2", at + "merger.linear_fc2")
    for j, i in enumerate(tapped):
        merger = f"{at}deepstack_merger_list.{j}."
        with_bias(out, weights, f"v.deepstack.{i}.norm", merger + "norm")
        with_bias(out, weights, f"v.deepstack.{i}.fc1", merger + "linear_fc1")
        with_bias(out, weights, f"v.deepstack.{i}.fc2", merger + "linear_fc2")


def qwen_block(out: TinyFile, weights: Weights, i: int, at: str) -> None:
    with_bias(out, weights, f"v.blk.{i}.attn_qkv", at + "attn.qkv")
    with_bias(out, weights, f"v.blk.{i}.attn_out", at + "attn.proj")
    with_bias(out, weights, f"v.blk.{i}.ln1", at + "norm1")
    with_bias(out, weights, f"v.blk.{i}.ln2", at + "norm2")
    with_bias(out, weights, f"v.blk.{i}.ffn_up", at + "mlp.linear_fc1")
    with_bias(out, weights, f"v.blk.{i}.ffn_down", at + "mlp.linear_fc2")
