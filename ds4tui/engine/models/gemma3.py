"""Gemma 3, the text model: most layers see a window of the last rows, some see all.

Norms before and after attention and feed-forward, and on each head of q and k; their weights
are in the file with the 1 added that the model adds. Embeddings are multiplied by √width and
tied. Layers with a window turn with a base of their own and never with scaled frequencies.
"""

import math
from dataclasses import replace

import numpy as np

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.layers import LayerLoader
from ds4tui.engine.models.decoder import DecoderConfig, attention, gated
from ds4tui.engine.models.keys import (
    block_count,
    block_shape,
    count,
    impossible,
    not_read,
    positive,
    rotary_values,
)
from ds4tui.engine.models.rotation import Rotation
from ds4tui.kernels.block import BlockShape, BlockWeights

GLOBAL_EVERY = 6  # layers 5, 11, .. see all rows, unless the file says otherwise
LOCAL_BASE = 10_000.0
BLOCKS_27B = 62  # the one size whose scores are scaled by the width of a head's share

GLOBAL, LOCAL = 0, 1  # of `rotations`


def gemma3(gguf: GGUFFile) -> DecoderConfig:
    """Raises GGUFError for missing or impossible keys and for variants that are not read."""
    if gguf.key(".final_logit_softcapping", float, 0.0):
        raise not_read(gguf, "a gemma3 that caps its logits is not read.")
    width, inner = count(gguf, ".embedding_length"), count(gguf, ".feed_forward_length")
    rotary, blocks = rotary_values(gguf), _blocks(gguf)

    def read_block(loader: LayerLoader, i: int) -> BlockWeights:
        at = f"blk.{i}."
        return BlockWeights(
            attn_norm=loader.vector(at + "attn_norm.weight", width),
            attention=attention(loader, at, width, blocks[i], rotary, head_norms=True),
            attn_post_norm=loader.vector(at + "post_attention_norm.weight", width),
            ffn_norm=loader.vector(at + "ffn_norm.weight", width),
            feed_forward=gated(loader, at, width, inner, "gelu"),
            ffn_post_norm=loader.vector(at + "post_ffw_norm.weight", width),
        )

    local_base = positive(gguf, ".rope.freq_base_swa", LOCAL_BASE)
    return DecoderConfig(
        architecture="gemma3",
        width=width,
        vocab_size=gguf.tensor("token_embd.weight").shape[0],
        context_tokens=count(gguf, ".context_length"),
        blocks=blocks,
        rotations=(
            Rotation.of(gguf, blocks[0].key_size),
            Rotation.plain(local_base, rotary),
        ),
        read_block=read_block,
        embedding_scale=math.sqrt(width),
    )


def _blocks(gguf: GGUFFile) -> tuple[BlockShape, ...]:
    shape = block_shape(gguf)
    blocks = block_count(gguf)
    if blocks == BLOCKS_27B:
        share = count(gguf, ".embedding_length") // shape.heads
        shape = replace(shape, scale=gguf.key(".attention.scale", float, 1 / math.sqrt(share)))
    window = gguf.key(".attention.sliding_window", int, 0)
    if window < 1:
        return (replace(shape, turn=GLOBAL),) * blocks
    local = replace(shape, window=window, turn=LOCAL)
    return tuple(local if is_local else shape for is_local in _local_layers(gguf, blocks))


def _local_layers(gguf: GGUFFile, blocks: int) -> list[bool]:
    """Which layers have a window: every one but each sixth, or as a key has it, which holds
    another period or a value a layer."""
    name = ".attention.sliding_window_pattern"
    pattern = gguf.metadata.get(f"{gguf.architecture}{name}", GLOBAL_EVERY)
    if isinstance(pattern, np.ndarray):
        if len(pattern) != blocks:
            raise impossible(gguf, f"{len(pattern)} layers in {name[1:]}, not {blocks}.")
        return [bool(value) for value in pattern]
    period = count(gguf, name, GLOBAL_EVERY)
    return [(i + 1) % period != 0 for i in range(blocks)]
