"""Families of latent attention: deepseek2 (DeepSeek V2, V3, R1, Kimi K2, GLM-4.7-Flash), deepseek32
(V3.2) and glm-dsa (GLM-5 to 5.3), the latter two with an index of rows.

Files hold the up-projection of latents as two tensors, that of keys transposed; early ones as one.
YaRN's stretch is not in what is turned: it goes to the scale, twice. The index of V3.2 pairs the
halves of what it turns, all else its neighbours. Which blocks of glm-dsa share an index is told by
`attention.indexer.types`, or by the length of the context (engine/indexes.py).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np

from ds4tui.engine.capacity import grown_capacity
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.indexes import own_indexes
from ds4tui.engine.layers import LayerLoader
from ds4tui.engine.models.decoder import gated
from ds4tui.engine.models.feed_forwards import ReadExperts, ReadFeedForward, dense, experts
from ds4tui.engine.models.hybrid import next_token_blocks
from ds4tui.engine.models.keys import block_count, count, impossible, not_read, positive
from ds4tui.engine.models.rotation import Rotation
from ds4tui.engine.models.streams import Kept, PartPlan, StreamConfig
from ds4tui.engine.state import LatentLayer, LayerState
from ds4tui.kernels.block import rms_norm
from ds4tui.kernels.choice import ComputePath
from ds4tui.kernels.feed_forward import ExpertsWeights, Route, feed_forward
from ds4tui.kernels.latent_rows import Choice, LatentRows, LatentRowWeights, Queries, RowIndex
from ds4tui.kernels.linear import Linear
from ds4tui.kernels.pooled_latents import LatentShape
from ds4tui.kernels.rope import neighbours
from ds4tui.kernels.sigmoid_routing import SigmoidRouting
from ds4tui.kernels.softmax_routing import SoftmaxRouting
from ds4tui.kernels.stack import DenseStack, Stack
from ds4tui.kernels.streams import Mixer, OneStream, StreamBlock, StreamPart

SOFTMAX, SIGMOID = 1, 2  # of the key expert_gating_func
K_EPSILON = 1e-6  # of the index keys' norm, where the file does not say

ReadMixer = Callable[[LayerLoader, ComputePath, str], Mixer]


@dataclass(frozen=True, slots=True)
class LatentKept(Kept):
    """Rows of so many values each, of each kind."""

    sizes: tuple[int, ...]

    def layer(self) -> LayerState:
        return LatentLayer(len(self.sizes))

    def growing_bytes(self, tokens: int, size: int) -> int:
        return grown_capacity(tokens) * sum(self.sizes) * size

    @property
    def fixed_bytes(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class _Sizes:
    """turned: values at the end of a head, and of a row, that turn. low: of queries, 0 for none."""

    shape: LatentShape
    width: int
    turned: int
    low: int
    scale: float

    @property
    def plain(self) -> int:
        return self.shape.key_size - self.turned

    @property
    def row(self) -> int:
        return self.shape.latent + self.turned


@dataclass(frozen=True, slots=True)
class _IndexSizes:
    heads: int
    key: int
    kept: int
    epsilon: float
    pairs_halves: bool


def latent(gguf: GGUFFile) -> StreamConfig:
    """Raises GGUFError for missing or impossible keys, and for variants that are not read."""
    blocks = block_count(gguf) - next_token_blocks(gguf)
    rotation, scale = _rotation(gguf)
    sizes, index = _sizes(gguf, scale), _index_sizes(gguf)
    choice = None if index is None else Choice(index.kept)
    first_experts = gguf.key(".leading_dense_block_count", int, 0)
    parts, owns = [], _own_indexes(gguf, blocks)
    for i, has_index in enumerate(owns):
        own = index if has_index else None
        mixer = _mixer(sizes, own, choice)
        feeding = dense(gguf) if i < first_experts else _experts(gguf)
        kept = LatentKept((sizes.row,) if own is None else (sizes.row, own.key))
        parts.append(PartPlan(kept, _block(i, sizes, mixer, feeding)))

    def read_collapse(loader: LayerLoader, path: ComputePath) -> Callable[[mx.array], mx.array]:
        norm = loader.vector("output_norm.weight", sizes.width)
        return lambda streams: rms_norm(streams[:, 0], norm, sizes.shape.norm_epsilon)

    return StreamConfig(
        architecture=gguf.architecture,
        width=sizes.width,
        vocab_size=gguf.tensor("token_embd.weight").shape[0],
        context_tokens=count(gguf, ".context_length"),
        streams=1,
        parts=tuple(parts),
        rotations=(rotation,),
        read_collapse=read_collapse,
        rules=None,
        left_out=(
            *(f"blk.{i}." for i in range(blocks, block_count(gguf))),
            # Published files of GLM-5.2 have them where no block looks, too (llama.cpp 25407).
            *(f"blk.{i}.indexer." for i, own in enumerate(owns) if index and not own),
        ),
    )


def _rotation(gguf: GGUFFile) -> tuple[Rotation, float]:
    """And the factor of the scale."""
    rotation = Rotation.of(gguf, count(gguf, ".attention.key_length_mla"))
    multiplier = gguf.key(".rope.scaling.yarn_log_multiplier", float, 0.0)
    if not multiplier or gguf.key(".rope.scaling.type", str, "") != "yarn":
        return rotation, 1.0
    stretch = 1 + multiplier * math.log(positive(gguf, ".rope.scaling.factor"))
    return Rotation(rotation.frequencies), stretch**2


def _sizes(gguf: GGUFFile, factor: float) -> _Sizes:
    key_size = count(gguf, ".attention.key_length_mla")
    shape = LatentShape(
        heads=count(gguf, ".attention.head_count"),
        key_size=key_size,
        value_size=count(gguf, ".attention.value_length_mla"),
        latent=count(gguf, ".attention.kv_lora_rank"),
        norm_epsilon=positive(gguf, ".attention.layer_norm_rms_epsilon"),
    )
    return _Sizes(
        shape=shape,
        width=count(gguf, ".embedding_length"),
        turned=count(gguf, ".rope.dimension_count"),
        low=gguf.key(".attention.q_lora_rank", int, 0),
        scale=shape.scale * factor,
    )


def _index_sizes(gguf: GGUFFile) -> _IndexSizes | None:
    if gguf.architecture == "deepseek2":
        return None
    return _IndexSizes(
        heads=count(gguf, ".attention.indexer.head_count"),
        key=count(gguf, ".attention.indexer.key_length"),
        kept=count(gguf, ".attention.indexer.top_k"),
        epsilon=gguf.key(".attention.layer_norm_epsilon", float, K_EPSILON),
        pairs_halves=gguf.architecture == "deepseek32",
    )


def _own_indexes(gguf: GGUFFile, blocks: int) -> list[bool]:
    """Of each block whether it has an index of its own. Raises GGUFError if the first has none."""
    if gguf.architecture != "glm-dsa":
        return [gguf.architecture != "deepseek2"] * blocks
    types = gguf.metadata.get("glm-dsa.attention.indexer.types")
    if types is not None and not (isinstance(types, np.ndarray) and len(types) >= blocks):
        raise impossible(gguf, "the key attention.indexer.types does not tell of all blocks.")
    own = own_indexes(types, count(gguf, ".context_length"), blocks)
    if not own[0]:
        raise impossible(gguf, "block 0 shares an index, and none stands before it.")
    return own


def _block(
    i: int, sizes: _Sizes, mixer: ReadMixer, feeding: ReadFeedForward
) -> Callable[[LayerLoader, ComputePath], StreamPart]:
    at, epsilon = f"blk.{i}.", sizes.shape.norm_epsilon

    def read(loader: LayerLoader, path: ComputePath) -> StreamPart:
        def normed(name: str) -> OneStream:
            return OneStream(loader.vector(f"{at}{name}.weight", sizes.width), epsilon)

        mixing = normed("attn_norm"), mixer(loader, path, at)
        fed = normed("ffn_norm"), feed_forward(feeding(loader, at))
        return StreamBlock(mixing, fed, path.activations)

    return read


# -- attention ---------------------------------------------------------------------------------


def _mixer(sizes: _Sizes, index: _IndexSizes | None, choice: Choice | None) -> ReadMixer:
    def read(loader: LayerLoader, path: ComputePath, at: str) -> Mixer:
        weights = _weights(loader, path, at, sizes)
        own = None if index is None else _index(loader, at, sizes, index)
        return LatentRows(weights, sizes.shape, sizes.scale, own, choice, path.activations)

    return read


def _weights(loader: LayerLoader, path: ComputePath, at: str, sizes: _Sizes) -> LatentRowWeights:
    shape = sizes.shape
    keys, values = _up_projections(loader, path, at, sizes)
    return LatentRowWeights(
        queries=_queries(loader, at, sizes),
        kv_a=loader.matrix(at + "attn_kv_a_mqa", sizes.row, sizes.width),
        kv_norm=loader.vector(at + "attn_kv_a_norm.weight", shape.latent),
        key_to_latent=keys,
        latent_to_value=values,
        output=loader.matrix(at + "attn_output", sizes.width, shape.heads * shape.value_size),
    )


def _queries(loader: LayerLoader, at: str, sizes: _Sizes) -> Queries:
    outs, low = sizes.shape.heads * sizes.shape.key_size, sizes.low
    if not low or loader.has(at + "attn_q.weight"):
        return Queries(None, None, loader.matrix(at + "attn_q", outs, sizes.width))
    return Queries(
        loader.matrix(at + "attn_q_a", low, sizes.width),
        loader.vector(at + "attn_q_a_norm.weight", low),
        loader.matrix(at + "attn_q_b", outs, low),
    )


def _up_projections(
    loader: LayerLoader, path: ComputePath, at: str, sizes: _Sizes
) -> tuple[Stack, Stack]:
    """Of keys, transposed, and of values."""
    shape, plain = sizes.shape, sizes.plain
    heads, values, rank = shape.heads, shape.value_size, shape.latent
    if not loader.has(at + "attn_kv_b.weight"):
        keys = loader.stack(at + "attn_k_b", heads, rank, plain)
        return keys, loader.stack(at + "attn_v_b", heads, values, rank)
    both = loader.table(at + "attn_kv_b.weight", heads * (plain + values), rank)
    both = both.reshape(heads, plain + values, rank).astype(path.activations)
    keys_part = mx.contiguous(both[:, :plain].swapaxes(1, 2))
    return DenseStack(keys_part), DenseStack(mx.contiguous(both[:, plain:]))


def _index(loader: LayerLoader, at: str, sizes: _Sizes, index: _IndexSizes) -> RowIndex:
    at = at + "indexer."

    def order(heads: int) -> np.ndarray | None:
        return neighbours(heads, index.key, sizes.turned) if index.pairs_halves else None

    def matrix(name: str, heads: int, columns: int) -> Linear:
        return loader.matrix(at + name, heads * index.key, columns, order(heads))

    return RowIndex(
        q=matrix("attn_q_b", index.heads, sizes.low),
        k=matrix("attn_k", 1, sizes.width),
        k_norm=loader.vector(at + "k_norm.weight", index.key, order(1)),
        k_bias=loader.vector(at + "k_norm.bias", index.key, order(1)),
        k_epsilon=index.epsilon,
        shares=loader.exact_matrix(at + "proj", index.heads, sizes.width),
        heads=index.heads,
    )


# -- feed-forward ------------------------------------------------------------------------------


def _experts(gguf: GGUFFile) -> ReadExperts:
    width, inner = count(gguf, ".embedding_length"), count(gguf, ".expert_feed_forward_length")
    shared = inner * gguf.key(".expert_shared_count", int, 0)
    read_experts = experts(gguf)

    def read(loader: LayerLoader, at: str) -> ExpertsWeights:
        of_all = gated(loader, at, width, shared, suffix="_shexp") if shared else None
        return replace(read_experts(loader, at), shared=of_all, route=_route(gguf, loader, at))

    return read


def _route(gguf: GGUFFile, loader: LayerLoader, at: str) -> Route:
    number, used = count(gguf, ".expert_count"), count(gguf, ".expert_used_count")
    factor = gguf.key(".expert_weights_scale", float, 1.0) or 1.0  # 0: not told
    is_normed = gguf.key(".expert_weights_norm", bool, False)
    groups = gguf.key(".expert_group_count", int, 1) or 1
    groups_used = gguf.key(".expert_group_used_count", int, 1) or 1
    if groups < 1 or number % groups or not 1 <= groups_used <= groups:
        raise impossible(gguf, f"{number} experts in {groups_used} of {groups} groups.")
    kind, bias = gguf.key(".expert_gating_func", int, SOFTMAX), at + "exp_probs_b.bias"
    if kind == SIGMOID:
        biases = loader.vector(bias, number) if loader.has(bias) else mx.zeros(number)
        return SigmoidRouting(biases, used, factor, is_normed, groups, groups_used)
    if kind != SOFTMAX or groups_used < groups or loader.has(bias):
        what = f"routing of kind {kind} with {groups_used} of {groups} groups"
        raise not_read(gguf, f"{what}{' and a bias' if loader.has(bias) else ''} is not read.")
    return SoftmaxRouting(used, factor, is_normed)
