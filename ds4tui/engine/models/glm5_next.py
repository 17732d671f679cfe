"""GLM-5.3-Flash: streams mixed by doubly stochastic matrices; most blocks mix by Kimi Delta
Attention, the others attend to latent rows, without positions, that an index of pools chooses.

A block whose `attention.head_count_kv` is 0 is one of the former. What the files hold otherwise
than the model means it: `ssm_a` is -exp(A_log); the up-projection of latents is two tensors, that
of keys transposed. What stands behind the last block is the mean of the streams, and a norm. The
first uploads call the architecture `glm5next`; tensors and the keys read here are the same.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import mlx.core as mx
import numpy as np

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.layers import LayerLoader
from ds4tui.engine.models.decoder import gated
from ds4tui.engine.models.feed_forwards import ReadExperts, ReadFeedForward, dense, experts, limit
from ds4tui.engine.models.hybrid import next_token_blocks
from ds4tui.engine.models.hyper import hyper_connection, hyper_shape
from ds4tui.engine.models.keys import block_count, count, impossible, not_read, positive
from ds4tui.engine.models.streams import (
    CHANNEL_RULES,
    IndexedKept,
    Kept,
    PartPlan,
    RecurrentKept,
    StreamConfig,
)
from ds4tui.kernels.block import rms_norm
from ds4tui.kernels.choice import ComputePath
from ds4tui.kernels.feed_forward import ExpertsWeights, feed_forward
from ds4tui.kernels.hyper_streams import HyperShape
from ds4tui.kernels.indexed_attention import IndexShape
from ds4tui.kernels.kda import KdaMixing, KdaShape, KdaWeights
from ds4tui.kernels.linear import Linear
from ds4tui.kernels.pooled_latents import LatentShape, LatentWeights, PooledLatents, PoolWeights
from ds4tui.kernels.sigmoid_routing import SigmoidRouting
from ds4tui.kernels.streams import Mixer, StreamBlock, StreamPart

ROW_PARTS = 3  # latents, index keys and index gates
SIGMOID = 2  # of the key expert_gating_func
K_EPSILON = 1e-6  # of the index keys' norm, where the file does not say

ReadMixer = Callable[[LayerLoader, ComputePath, str], Mixer]


def glm5_next(gguf: GGUFFile) -> StreamConfig:
    """Raises GGUFError for missing or impossible keys, and for variants that are not read."""
    blocks, hyper = block_count(gguf) - next_token_blocks(gguf), hyper_shape(gguf)
    kda, latents = _kda(gguf), _latents(gguf)
    dense = gguf.key(".leading_dense_block_count", int, 0)
    parts = []
    for i, is_recurrent in enumerate(_recurrent(gguf, blocks)):
        kept, mixer = kda if is_recurrent else latents
        feeding = _dense(gguf, i) if i < dense else _experts(gguf, i)
        parts.append(PartPlan(kept, _block(gguf, i, hyper, mixer, feeding)))

    def read_collapse(loader: LayerLoader, path: ComputePath) -> Callable[[mx.array], mx.array]:
        norm = loader.vector("output_norm.weight", count(gguf, ".embedding_length"))
        return lambda streams: rms_norm(streams.mean(axis=1), norm, hyper.norm_epsilon)

    return StreamConfig(
        architecture=gguf.architecture,
        width=count(gguf, ".embedding_length"),
        vocab_size=gguf.tensor("token_embd.weight").shape[0],
        context_tokens=count(gguf, ".context_length"),
        streams=hyper.streams,
        parts=tuple(parts),
        rotations=(),
        read_collapse=read_collapse,
        rules=CHANNEL_RULES,
        left_out=tuple(f"blk.{i}." for i in range(blocks, block_count(gguf))),
    )


def _recurrent(gguf: GGUFFile, blocks: int) -> list[bool]:
    key = f"{gguf.architecture}.attention.head_count_kv"
    heads = gguf.metadata.get(key)
    if not isinstance(heads, np.ndarray) or len(heads) < blocks:
        raise impossible(gguf, f"the key {key} does not tell which blocks attend.")
    types = gguf.metadata.get(f"{gguf.architecture}.attention.indexer.types")
    for i in range(blocks):
        if heads[i] and isinstance(types, np.ndarray) and not types[i : i + 1].all():
            raise not_read(gguf, f"block {i} shares an index: that is not read.")
    return [bool(heads[i] == 0) for i in range(blocks)]


def _block(
    gguf: GGUFFile, i: int, shape: HyperShape, mixer: ReadMixer, feeding: ReadFeedForward
) -> Callable[[LayerLoader, ComputePath], StreamPart]:
    at, connect = f"blk.{i}.", partial(hyper_connection, gguf, shape)

    def read(loader: LayerLoader, path: ComputePath) -> StreamPart:
        mixing = connect(loader, at + "hc_attn", at + "attn_norm"), mixer(loader, path, at)
        fed = connect(loader, at + "hc_ffn", at + "ffn_norm"), feed_forward(feeding(loader, at))
        return StreamBlock(mixing, fed, path.activations)

    return read


# -- what sees other rows ----------------------------------------------------------------------


def _kda(gguf: GGUFFile) -> tuple[Kept, ReadMixer]:
    shape, width = _kda_shape(gguf), count(gguf, ".embedding_length")
    values, size = shape.values, shape.size

    def read(loader: LayerLoader, path: ComputePath, at: str) -> Mixer:
        def two(name: str) -> tuple[Linear, Linear]:
            first = loader.matrix(f"{at}ssm_{name}_a", size, width)
            return first, loader.matrix(f"{at}ssm_{name}_b", values, size)

        kernels = [f"{at}ssm_conv1d_{part}.weight" for part in "qkv"]
        weights = KdaWeights(
            inputs=_kda_inputs(loader, at, width, values),
            convolution=mx.concatenate([loader.kernel(k, values, shape.kernel) for k in kernels]),
            forget=two("f"),
            rate=-loader.vector(at + "ssm_a", shape.heads),
            forget_bias=loader.vector(at + "ssm_dt.bias", values),
            beta=loader.exact_matrix(at + "ssm_beta", shape.heads, width),
            gate=two("g"),
            norm=loader.vector(at + "ssm_norm.weight", size),
            output=loader.matrix(at + "attn_output", width, values),
        )
        return KdaMixing(weights, shape, path.channel_rule(), path.activations)

    return RecurrentKept(shape.matrices_shape, shape.tail_shape), read


def _kda_inputs(loader: LayerLoader, at: str, width: int, values: int) -> tuple[Linear, ...]:
    """Three matrices, or in some files one."""
    if loader.has(at + "attn_qkv.weight"):
        return (loader.matrix(at + "attn_qkv", 3 * values, width),)
    return tuple(loader.matrix(f"{at}attn_{part}", values, width) for part in "qkv")


def _kda_shape(gguf: GGUFFile) -> KdaShape:
    floor = gguf.key(".kda.gate_lower_bound", float, 0.0)
    return KdaShape(
        heads=count(gguf, ".attention.head_count"),
        size=count(gguf, ".kda.head_dim"),
        kernel=count(gguf, ".ssm.conv_kernel"),
        norm_epsilon=positive(gguf, ".attention.layer_norm_rms_epsilon"),
        floor=floor if -math.inf < floor < 0 else None,
    )


def _latents(gguf: GGUFFile) -> tuple[Kept, ReadMixer]:
    shape, index = _latent_shape(gguf), _index_shape(gguf)
    width, low = count(gguf, ".embedding_length"), count(gguf, ".attention.q_lora_rank")
    epsilon = gguf.key(".attention.layer_norm_epsilon", float, K_EPSILON)

    def read(loader: LayerLoader, path: ComputePath, at: str) -> Mixer:
        attention = _attention(loader, at, width, low, shape)
        pools = _pools(loader, at, width, low, index, epsilon)
        return PooledLatents(attention, shape, (pools, index), path.activations)

    values = shape.latent + 2 * index.key_size
    return IndexedKept(ROW_PARTS, values, 0, index.size, index.key_size), read


def _latent_shape(gguf: GGUFFile) -> LatentShape:
    turned = gguf.key(".rope.dimension_count", int, 0)
    if turned:
        raise not_read(gguf, f"keys of which {turned} values turn with the position are not read.")
    return LatentShape(
        heads=count(gguf, ".attention.head_count"),
        key_size=count(gguf, ".attention.key_length_mla"),
        value_size=count(gguf, ".attention.value_length_mla"),
        latent=count(gguf, ".attention.kv_lora_rank"),
        norm_epsilon=positive(gguf, ".attention.layer_norm_rms_epsilon"),
    )


def _index_shape(gguf: GGUFFile) -> IndexShape:
    size, kept = (count(gguf, f".attention.indexer.{name}") for name in ("kpool", "top_k"))
    if kept % size:
        raise impossible(gguf, f"{kept} rows in pools of {size} do not come out even.")
    if not gguf.key(".attention.indexer.kpool_select_tail", bool, True):
        raise not_read(gguf, "an index that hides the rows of the open pool is not read.")
    return IndexShape(
        heads=count(gguf, ".attention.indexer.head_count"),
        key_size=count(gguf, ".attention.indexer.key_length"),
        size=size,
        kept=kept // size,
    )


def _attention(
    loader: LayerLoader, at: str, width: int, low: int, shape: LatentShape
) -> LatentWeights:
    heads, keys, latent = shape.heads, shape.key_size, shape.latent
    return LatentWeights(
        q_a=loader.matrix(at + "attn_q_a", low, width),
        q_norm=loader.vector(at + "attn_q_a_norm.weight", low),
        q_b=loader.matrix(at + "attn_q_b", heads * keys, low),
        kv_a=loader.matrix(at + "attn_kv_a_mqa", latent, width),
        kv_norm=loader.vector(at + "attn_kv_a_norm.weight", latent),
        key_to_latent=loader.stack(at + "attn_k_b", heads, latent, keys),
        latent_to_value=loader.stack(at + "attn_v_b", heads, shape.value_size, latent),
        output=loader.matrix(at + "attn_output", width, heads * shape.value_size),
    )


def _pools(
    loader: LayerLoader, at: str, width: int, low: int, shape: IndexShape, epsilon: float
) -> PoolWeights:
    size, index = shape.key_size, at + "indexer."
    return PoolWeights(
        q=loader.matrix(index + "attn_q_b", shape.heads * size, low),
        k=loader.matrix(index + "attn_k", size, width),
        k_norm=loader.vector(index + "k_norm.weight", size),
        k_bias=loader.vector(index + "k_norm.bias", size),
        k_epsilon=epsilon,
        gate=loader.matrix(at + "indexer_compressor_gate", size, width),
        position=loader.table(at + "indexer_compressor_ape.weight", shape.size, size),
        shares=loader.exact_matrix(index + "proj", shape.heads, width),
    )


# -- feed-forward ------------------------------------------------------------------------------


def _dense(gguf: GGUFFile, i: int) -> ReadFeedForward:
    read_dense, most = dense(gguf), limit(gguf, "shexp", i)
    return lambda loader, at: replace(read_dense(loader, at), limit=most)


def _experts(gguf: GGUFFile, i: int) -> ReadExperts:
    width, number = count(gguf, ".embedding_length"), count(gguf, ".expert_count")
    shared = count(gguf, ".expert_shared_count") * count(gguf, ".expert_feed_forward_length")
    routing = _routing(gguf, number, count(gguf, ".expert_used_count"))
    read_experts = experts(gguf)

    def read(loader: LayerLoader, at: str) -> ExpertsWeights:
        of_all = gated(loader, at, width, shared, suffix="_shexp")
        return replace(
            read_experts(loader, at),
            shared=replace(of_all, limit=limit(gguf, "shexp", i)),
            route=routing(loader.vector(at + "exp_probs_b.bias", number)),
            limit=limit(gguf, "exp", i),
        )

    return read


def _routing(gguf: GGUFFile, number: int, used: int) -> Callable[[mx.array], SigmoidRouting]:
    groups = gguf.key(".expert_group_count", int, 1)
    groups_used = gguf.key(".expert_group_used_count", int, 1)
    if gguf.key(".expert_gating_func", int, SIGMOID) != SIGMOID:
        raise not_read(gguf, "experts that are not chosen by sigmoid are not read.")
    if used > number or groups < 1 or number % groups or not 1 <= groups_used <= groups:
        what = f"{used} of {number} experts in {groups_used} of {groups} groups"
        raise impossible(gguf, f"{what} cannot be used.")
    return partial(
        SigmoidRouting,
        used=used,
        factor=gguf.key(".expert_weights_scale", float, 1.0),
        is_normed=gguf.key(".expert_weights_norm", bool, False),
        groups=groups,
        groups_used=groups_used,
    )
