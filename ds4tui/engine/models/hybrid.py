"""Hybrids: most blocks mix by a gated delta rule, some by attention whose output is gated.

What the files hold otherwise than the models mean it:
- norms have the 1 added that the model adds, but for the one inside the delta blocks
- `attn_q` has for each head its query, then its gate
- `ssm_a` is -exp(A_log)
- the inputs of a delta block are one matrix or two, those of its rates too (`_inputs`, `_rates`)
"""

import logging
from dataclasses import replace

import numpy as np

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.layers import LayerLoader, Order
from ds4tui.engine.models.decoder import DecoderConfig
from ds4tui.engine.models.feed_forwards import ReadFeedForward
from ds4tui.engine.models.keys import block_count, block_shape, count, impossible, rotary_values
from ds4tui.engine.models.rotation import Rotation
from ds4tui.kernels.block import AttentionWeights, BlockShape, BlockWeights
from ds4tui.kernels.choice import AnyWeights
from ds4tui.kernels.delta import DeltaBlockWeights, DeltaShape, DeltaWeights
from ds4tui.kernels.linear import Linear
from ds4tui.kernels.rope import neighbours

log = logging.getLogger(__name__)

FULL_ATTENTION_INTERVAL = 4  # blocks 3, 7, .. attend, unless the file says otherwise


def hybrid(
    gguf: GGUFFile, feed_forward: ReadFeedForward, tiled: bool, sections: bool = False
) -> DecoderConfig:
    """`tiled`: the order of value heads (kernels/delta.py). `sections`: pairs of a head turn in
    time, height or width. Raises GGUFError for missing or impossible keys."""
    width, rotary = count(gguf, ".embedding_length"), rotary_values(gguf)
    attending, delta = attending_shape(gguf), delta_shape(gguf, tiled)
    rotation = Rotation.of(gguf, attending.key_size)
    blocks = tuple(delta if recurrent else attending for recurrent in recurrent_blocks(gguf))

    def read_block(loader: LayerLoader, i: int) -> AnyWeights:
        at = f"blk.{i}."
        norms = (
            loader.vector(at + "attn_norm.weight", width),
            loader.vector(at + "post_attention_norm.weight", width),
        )
        if isinstance(blocks[i], DeltaShape):
            mixing = delta_weights(loader, at, width, delta)
            return DeltaBlockWeights(norms[0], mixing, norms[1], feed_forward(loader, at))
        attention = gated_attention(loader, at, width, attending, rotary)
        return BlockWeights(norms[0], attention, norms[1], feed_forward(loader, at))

    return DecoderConfig(
        architecture=gguf.architecture,
        width=width,
        vocab_size=gguf.tensor("token_embd.weight").shape[0],
        context_tokens=count(gguf, ".context_length"),
        blocks=blocks,
        rotations=(rotation.interleaved(gguf) if sections else rotation,),
        read_block=read_block,
        blocks_left_out=next_token_blocks(gguf),
    )


# -- shapes ------------------------------------------------------------------------------------


def attending_shape(gguf: GGUFFile) -> BlockShape:
    shape = block_shape(gguf)
    if shape.key_size != shape.value_size:
        sizes = f"{shape.key_size} and {shape.value_size}"
        raise impossible(gguf, f"keys and values of {sizes} do not fit one matrix of gates.")
    return replace(shape, gated=True)


def delta_shape(gguf: GGUFFile, tiled: bool) -> DeltaShape:
    key_heads, value_heads = count(gguf, ".ssm.group_count"), count(gguf, ".ssm.time_step_rank")
    values = count(gguf, ".ssm.inner_size")
    if value_heads % key_heads or values % value_heads:
        what = f"{values} values in {value_heads} heads over {key_heads} key heads"
        raise impossible(gguf, f"{what} do not come out even.")
    return DeltaShape(
        key_heads=key_heads,
        value_heads=value_heads,
        key_size=count(gguf, ".ssm.state_size"),
        value_size=values // value_heads,
        kernel=count(gguf, ".ssm.conv_kernel"),
        norm_epsilon=block_shape(gguf).norm_epsilon,
        tiled=tiled,
    )


def recurrent_blocks(gguf: GGUFFile) -> list[bool]:
    """Which blocks mix by the delta rule: as a key lists them, else all but each so many-th."""
    all_blocks, left_out = block_count(gguf), next_token_blocks(gguf)
    blocks = all_blocks - left_out
    listed = gguf.metadata.get(f"{gguf.architecture}.attention.recurrent_layers")
    if listed is None:
        interval = count(gguf, ".full_attention_interval", FULL_ATTENTION_INTERVAL)
        return [(i + 1) % interval != 0 for i in range(blocks)]
    if not isinstance(listed, np.ndarray) or len(listed) not in (blocks, all_blocks):
        number = len(listed) if isinstance(listed, np.ndarray) else 1
        what = f"{number} blocks in attention.recurrent_layers, not {blocks}."
        raise impossible(gguf, what)
    return [bool(value) for value in listed[:blocks]]


def next_token_blocks(gguf: GGUFFile) -> int:
    """Blocks behind the last, which guess further tokens: they are not run."""
    number, blocks = gguf.key(".nextn_predict_layers", int, 0), block_count(gguf)
    if not 0 <= number < blocks:
        raise impossible(gguf, f"{number} of {blocks} blocks are of next-token heads.")
    if number:
        log.info("%s: the last %d blocks guess tokens and are left out", gguf.path.name, number)
    return number


# -- tensors -----------------------------------------------------------------------------------


def gated_attention(
    loader: LayerLoader, at: str, width: int, shape: BlockShape, rotary: int
) -> AttentionWeights:
    head, rows = neighbours(1, shape.key_size, rotary), shape.heads * shape.key_size
    heads = np.arange(shape.heads)[:, None] * (2 * shape.key_size)
    gates = heads + shape.key_size + np.arange(shape.key_size)
    q_order = np.concatenate([(heads + head).reshape(-1), gates.reshape(-1)])
    k_order = neighbours(shape.kv_heads, shape.key_size, rotary)
    kv_rows = shape.kv_heads * shape.key_size
    return AttentionWeights(
        q=loader.matrix(at + "attn_q", 2 * rows, width, q_order),
        k=loader.matrix(at + "attn_k", kv_rows, width, k_order),
        v=loader.matrix(at + "attn_v", kv_rows, width),
        output=loader.matrix(at + "attn_output", width, rows),
        q_norm=loader.vector(at + "attn_q_norm.weight", shape.key_size, head),
        k_norm=loader.vector(at + "attn_k_norm.weight", shape.key_size, head),
    )


def delta_weights(loader: LayerLoader, at: str, width: int, shape: DeltaShape) -> DeltaWeights:
    return DeltaWeights(
        inputs=_inputs(loader, at, width, shape),
        rates=_rates(loader, at, width, shape),
        convolution=loader.table(at + "ssm_conv1d.weight", shape.channels, shape.kernel),
        decay=loader.vector(at + "ssm_a", shape.value_heads),
        decay_bias=loader.vector(at + "ssm_dt.bias", shape.value_heads),
        norm=loader.vector(at + "ssm_norm.weight", shape.value_size),
        output=loader.matrix(at + "ssm_out", width, shape.values),
    )


def _inputs(loader: LayerLoader, at: str, width: int, shape: DeltaShape) -> tuple[Linear, ...]:
    """[q|k|v|z]: `attn_qkv` and `attn_gate`, or in older files `ssm_in`, which has for each key
    head its query, its key, and the values and z of its value heads."""
    if not loader.has(at + "ssm_in.weight"):
        return (
            loader.matrix(at + "attn_qkv", shape.channels, width),
            loader.matrix(at + "attn_gate", shape.values, width),
        )
    values = shape.values // shape.key_heads
    order = _parts_of_key_heads(shape, [shape.key_size, shape.key_size, values, values])
    return (loader.matrix(at + "ssm_in", shape.channels + shape.values, width, order),)


def _rates(loader: LayerLoader, at: str, width: int, shape: DeltaShape) -> tuple[Linear, ...]:
    """[b|a]: `ssm_beta` and `ssm_alpha`, or `ssm_ba`, which has for each key head both of its
    value heads."""
    heads = shape.value_heads
    if not loader.has(at + "ssm_ba.weight"):
        names = ("ssm_beta", "ssm_alpha")
        return tuple(loader.exact_matrix(at + name, heads, width) for name in names)
    order = _parts_of_key_heads(shape, [heads // shape.key_heads] * 2)
    return (loader.exact_matrix(at + "ssm_ba", 2 * heads, width, order),)


def _parts_of_key_heads(shape: DeltaShape, sizes: list[int]) -> Order:
    """The order that brings the parts of each key head together: all first ones, all second .."""
    rows = np.arange(shape.key_heads * sum(sizes)).reshape(shape.key_heads, -1)
    parts = np.split(rows, np.cumsum(sizes)[:-1], axis=1)
    return np.concatenate([part.reshape(-1) for part in parts])
