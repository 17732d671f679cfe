"""Qwen3.8-Flash-Next: a hybrid as Qwen3.5 with experts, whose residual is several streams mixed
at low rank, whose attention sees what an index of pools chooses, and which looks up n-grams.

What the files hold otherwise than the models mean it is as in hybrid.py; the norms of streams,
of the index and of the n-grams have their 1 added, too. There is no norm before the output: the
last mixing is one.
"""

from collections.abc import Callable

import mlx.core as mx
import numpy as np

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.layers import LayerLoader
from ds4tui.engine.models.feed_forwards import experts_and_shared
from ds4tui.engine.models.hybrid import (
    attending_shape,
    delta_shape,
    delta_weights,
    gated_attention,
    next_token_blocks,
    recurrent_blocks,
)
from ds4tui.engine.models.keys import count, impossible, positive, rotary_values
from ds4tui.engine.models.rotation import Rotation
from ds4tui.engine.models.streams import (
    RULES,
    IndexedKept,
    Kept,
    NGramKept,
    PartPlan,
    RecurrentKept,
    StreamConfig,
)
from ds4tui.kernels.choice import ComputePath
from ds4tui.kernels.delta import DeltaMixing, Recurrent
from ds4tui.kernels.feed_forward import feed_forward
from ds4tui.kernels.indexed_attention import IndexedAttention, IndexShape, IndexWeights
from ds4tui.kernels.lowrank_streams import LowRankMixing, LowRankWeights
from ds4tui.kernels.ngrams import Hashing, Ids, NGrams, NGramWeights
from ds4tui.kernels.rope import neighbours
from ds4tui.kernels.streams import Mixer, NGramPart, Step, StreamBlock, StreamPart

ROW_PARTS = 4  # keys, values, index keys, and positions
DIRECTIONS = 3  # of positions: time, height and width

ReadMixing = Callable[[LayerLoader, ComputePath, str], LowRankMixing]
ReadMixer = Callable[[LayerLoader, ComputePath, str], Mixer]


def qwen4exp(gguf: GGUFFile) -> StreamConfig:
    """Raises GGUFError for missing or impossible keys."""
    recurrent, mixing = recurrent_blocks(gguf), _mixing(gguf)
    rotation = Rotation.of(gguf, attending_shape(gguf).key_size).interleaved(gguf)
    delta, with_ngrams = _delta(gguf), _ngram_blocks(gguf, recurrent)
    parts: list[PartPlan] = []
    for i, is_recurrent in enumerate(recurrent):
        if i in with_ngrams:
            parts.append(_ngrams(gguf, i))
        kept, mixer = delta if is_recurrent else _attention(gguf, i, rotation)
        parts.append(PartPlan(kept, _block(gguf, i, mixing, mixer)))

    def read_collapse(loader: LayerLoader, path: ComputePath) -> Callable[[mx.array], mx.array]:
        last = mixing(loader, path, "output_hc")
        return lambda streams: last.read(streams)[0]

    left_out = range(len(recurrent), len(recurrent) + next_token_blocks(gguf))
    return StreamConfig(
        architecture=gguf.architecture,
        width=count(gguf, ".embedding_length"),
        vocab_size=gguf.tensor("token_embd.weight").shape[0],
        context_tokens=count(gguf, ".context_length"),
        streams=_streams(gguf),
        parts=tuple(parts),
        rotations=(rotation,),
        read_collapse=read_collapse,
        rules=RULES,
        left_out=tuple(f"blk.{i}." for i in left_out),
    )


def _block(
    gguf: GGUFFile, i: int, mixing: ReadMixing, mixer: ReadMixer
) -> Callable[[LayerLoader, ComputePath], StreamPart]:
    experts, at = experts_and_shared(gguf), f"blk.{i}."

    def read(loader: LayerLoader, path: ComputePath) -> StreamPart:
        return StreamBlock(
            (mixing(loader, path, at + "hc_attn"), mixer(loader, path, at)),
            (mixing(loader, path, at + "hc_ffn"), feed_forward(experts(loader, at))),
            path.activations,
        )

    return read


# -- streams -----------------------------------------------------------------------------------


def _streams(gguf: GGUFFile) -> int:
    streams = count(gguf, ".hyper_connection.count")
    if streams < 2:
        raise impossible(gguf, f"the key {gguf.architecture}.hyper_connection.count is {streams}.")
    return streams


def _mixing(gguf: GGUFFile) -> ReadMixing:
    width, streams = count(gguf, ".embedding_length"), _streams(gguf)
    rank, wide = count(gguf, ".hyper_connection.low_rank"), streams * width
    epsilon = positive(gguf, ".attention.layer_norm_rms_epsilon")

    def read(loader: LayerLoader, path: ComputePath, name: str) -> LowRankMixing:
        has_shares = name != "output_hc"
        weights = LowRankWeights(
            norm=loader.vector(f"{name}_norm.weight", wide).reshape(streams, width),
            down=loader.matrix(f"{name}_down", rank, wide),
            up=loader.matrix(f"{name}_up", wide, rank),
            inject=loader.exact_matrix(f"{name}_inject", streams, wide) if has_shares else None,
        )
        return LowRankMixing(weights, epsilon, path.activations)

    return read


# -- what sees other rows ----------------------------------------------------------------------


def _delta(gguf: GGUFFile) -> tuple[Kept, ReadMixer]:
    shape, width = delta_shape(gguf, tiled=True), count(gguf, ".embedding_length")

    def read(loader: LayerLoader, path: ComputePath, at: str) -> Mixer:
        weights = delta_weights(loader, at, width, shape)
        mixing = DeltaMixing(weights, shape, path.delta_rule(shape), path.activations, mx.sigmoid)

        def mixer(n: mx.array, layer: Recurrent, step: Step) -> mx.array:
            return mixing(n, layer)

        return mixer

    return RecurrentKept(shape.matrices_shape, shape.tail_shape), read


def _attention(gguf: GGUFFile, i: int, rotation: Rotation) -> tuple[Kept, ReadMixer]:
    shape, index = attending_shape(gguf), _index_shape(gguf, i)
    width, rotary = count(gguf, ".embedding_length"), rotary_values(gguf)
    if rotary > index.key_size:
        what = f"{rotary} rotary values do not fit index keys of {index.key_size}."
        raise impossible(gguf, what)

    def read(loader: LayerLoader, path: ComputePath, at: str) -> Mixer:
        return IndexedAttention(
            gated_attention(loader, at, width, shape, rotary),
            shape,
            (_index(loader, at + "indexer.", width, rotary, index), index),
            path.attend(),
            lambda positions: rotation.turn(positions).device(mx.float32),
            path.activations,
        )

    values = shape.row_values + index.key_size
    return IndexedKept(ROW_PARTS, values, DIRECTIONS, index.size, index.key_size), read


def _index_shape(gguf: GGUFFile, i: int) -> IndexShape:
    key = f"{gguf.architecture}.attention.compress_ratios"
    ratios, kept = gguf.metadata.get(key), count(gguf, ".attention.indexer.top_k")
    if not isinstance(ratios, np.ndarray) or ratios.dtype.kind not in "iu" or len(ratios) <= i:
        raise impossible(gguf, f"the key {key} does not tell the pools of block {i}.")
    size = int(ratios[i])
    if size < 1 or kept % size:  # some converters write 0 for all
        raise impossible(gguf, f"block {i} sees {kept} rows in pools of {size} (the key {key}).")
    return IndexShape(
        heads=count(gguf, ".attention.indexer.head_count"),
        key_size=count(gguf, ".attention.indexer.key_length"),
        size=size,
        kept=kept // size,
    )


def _index(
    loader: LayerLoader, at: str, width: int, rotary: int, shape: IndexShape
) -> IndexWeights:
    one = neighbours(1, shape.key_size, rotary)
    rows = shape.heads * shape.key_size
    order = neighbours(shape.heads, shape.key_size, rotary)
    return IndexWeights(
        q=loader.matrix(at + "q_proj", rows, width, order),
        k=loader.matrix(at + "k_proj", shape.key_size, width, one),
        q_norm=loader.vector(at + "q_norm.weight", shape.key_size, one),
        k_norm=loader.vector(at + "k_norm.weight", shape.key_size, one),
    )


# -- n-grams -----------------------------------------------------------------------------------


def _ngram_blocks(gguf: GGUFFile, recurrent: list[bool]) -> list[int]:
    listed = gguf.metadata.get(f"{gguf.architecture}.ple.layers")
    if listed is None:
        return []
    blocks = [int(block) for block in np.atleast_1d(np.asarray(listed))]
    if len(blocks) > 1 or not all(0 <= i < len(recurrent) and recurrent[i] for i in blocks):
        # There is one table, with one set of constants, and llama.cpp asks for a delta block.
        raise impossible(gguf, f"n-grams at blocks {blocks}: one recurrent block was expected.")
    return blocks


def _ngrams(gguf: GGUFFile, i: int) -> PartPlan:
    streams, width = _streams(gguf), count(gguf, ".embedding_length")
    hashing, kernel = _hashing(gguf), count(gguf, ".ple.conv_kernel")
    values, wide = count(gguf, ".embedding_length_per_layer_input"), streams * width
    words, at = values * len(hashing.offsets), f"blk.{i}."
    epsilon = positive(gguf, ".attention.layer_norm_rms_epsilon")

    def read(loader: LayerLoader, path: ComputePath) -> StreamPart:
        def norm(name: str) -> mx.array:
            return loader.vector(f"{at}ple_norm_{name}.weight", wide).reshape(streams, width)

        least = int((hashing.offsets + hashing.vocabularies).max())
        weights = NGramWeights(
            look_up=loader.look_up("per_layer_token_embd.weight", least, values),
            key=loader.matrix(at + "ple_key", wide, words),
            value=loader.matrix(at + "ple_value", width, words),
            key_norm=norm("key"),
            query_norm=norm("query"),
            convolution_norm=norm("conv"),
            convolution=loader.table(at + "ple_conv1d.weight", wide, kernel),
        )
        return NGramPart(NGrams(weights, hashing, epsilon, path.activations))

    rows = ((kernel - 1) * hashing.size, wide)
    return PartPlan(NGramKept(rows, hashing.size - 1, hashing.end), read)


def _hashing(gguf: GGUFFile) -> Hashing:
    size, each = count(gguf, ".ple.ngram_size"), count(gguf, ".ple.heads_per_ngram")
    if size < 2:
        raise impossible(gguf, f"n-grams of {size} token are none.")
    heads = (size - 1) * each
    vocabularies = _constants(gguf, "head_vocab_sizes", heads)
    if (vocabularies < 1).any():
        raise impossible(gguf, "a table of n-grams has no rows (ple.head_vocab_sizes).")
    return Hashing(
        size=size,
        multipliers=_constants(gguf, "layer_multipliers", size),
        offsets=_constants(gguf, "head_offsets", heads),
        vocabularies=vocabularies,
        end=gguf.key(".ple.eos_token_id", int),
    )


def _constants(gguf: GGUFFile, name: str, number: int) -> Ids:
    held = gguf.metadata.get(f"{gguf.architecture}.ple.{name}")
    if not isinstance(held, np.ndarray) or held.dtype.kind not in "iu" or len(held) < number:
        raise impossible(gguf, f"the key {gguf.architecture}.ple.{name} holds no {number} numbers.")
    constants = held[:number].astype(np.int64)
    if (constants < 0).any():
        raise impossible(gguf, f"the key {gguf.architecture}.ple.{name} holds numbers beyond 2^63.")
    return constants
