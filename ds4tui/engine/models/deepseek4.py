"""DeepSeek V4 Flash: four streams mixed by doubly stochastic matrices, one key and value of all
heads within a window, pools of 4 rows that an index chooses and of 128 rows, experts by a table
of tokens in the first blocks.

`attention.compress_ratios` tells the size of each block's pools, 0 for none. Blocks without pools
turn by the plain frequencies, others by YaRN's on a base of their own, without its stretch. The
output's first matrix lies in the file as one, its groups of rows one behind the other.

What the published graph rounds besides (keys through 8-bit floats, the index's through 4-bit ones)
is not done: transformers does not either, whose numbers these are.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.layers import LayerLoader
from ds4tui.engine.models.decoder import gated
from ds4tui.engine.models.feed_forwards import experts, limit
from ds4tui.engine.models.hybrid import next_token_blocks
from ds4tui.engine.models.hyper import hyper_connection, hyper_shape
from ds4tui.engine.models.keys import block_count, count, impossible, not_read, positive
from ds4tui.engine.models.rotation import Rotation
from ds4tui.engine.models.streams import PartPlan, PoolsKept, RawRowsKept, StreamConfig
from ds4tui.engine.state import Needed
from ds4tui.kernels.block import Cosines
from ds4tui.kernels.choice import ComputePath
from ds4tui.kernels.compressors import Compressor, CompressorWeights
from ds4tui.kernels.feed_forward import ExpertsWeights, feed_forward
from ds4tui.kernels.hyper_streams import HyperHead, HyperShape
from ds4tui.kernels.softplus_routing import SoftplusRouting, TokenRouting
from ds4tui.kernels.streams import Mixer, StreamBlock, StreamPart, TokenBlock
from ds4tui.kernels.window_pools import (
    PoolIndex,
    WindowOnly,
    WindowPools,
    WindowShape,
    WindowWeights,
)

SQRT_SOFTPLUS = 4  # of the key expert_gating_func
PLAIN, COMPRESSED = 0, 1  # the step's rotations
INDEXED, POOLED = 4, 128  # rows of a pool: with an index and overlapping, or without


def deepseek4(gguf: GGUFFile) -> StreamConfig:
    """Raises GGUFError for missing or impossible keys, and for variants that are not read."""
    blocks, hyper = block_count(gguf) - next_token_blocks(gguf), hyper_shape(gguf)
    rotations = _rotations(gguf)
    parts = tuple(
        PartPlan(
            _raw_kept(gguf, ratio),
            _block(gguf, i, ratio, hyper, rotations[COMPRESSED]),
            _pools_kept(gguf, ratio),
        )
        for i, ratio in enumerate(_ratios(gguf, blocks))
    )
    width = count(gguf, ".embedding_length")

    def read_collapse(loader: LayerLoader, path: ComputePath) -> Callable[[mx.array], mx.array]:
        head = HyperHead(
            function=loader.exact_matrix("output_hc_fn", hyper.streams, hyper.streams * width),
            scale=loader.vector("output_hc_scale.weight", 1),
            base=loader.vector("output_hc_base.weight", hyper.streams),
            norm=loader.vector("output_norm.weight", width),
        )
        return partial(head, shape=hyper)

    return StreamConfig(
        architecture=gguf.architecture,
        width=width,
        vocab_size=gguf.tensor("token_embd.weight").shape[0],
        context_tokens=count(gguf, ".context_length"),
        streams=hyper.streams,
        parts=parts,
        rotations=rotations,
        read_collapse=read_collapse,
        rules=None,
        left_out=tuple(f"blk.{i}." for i in range(blocks, block_count(gguf))),
    )


def _ratios(gguf: GGUFFile, blocks: int) -> list[int]:
    ratios = gguf.metadata.get("deepseek4.attention.compress_ratios")
    if not isinstance(ratios, np.ndarray) or len(ratios) < blocks:
        raise impossible(gguf, "the key attention.compress_ratios does not tell of all blocks.")
    strange = sorted({int(ratio) for ratio in ratios[:blocks]} - {0, INDEXED, POOLED})
    if strange:
        raise not_read(gguf, f"pools of {strange[0]} rows are not read.")
    return [int(ratio) for ratio in ratios[:blocks]]


def _rotations(gguf: GGUFFile) -> tuple[Rotation, Rotation]:
    plain = Rotation.plain(
        positive(gguf, ".rope.freq_base", 10_000.0), count(gguf, ".rope.dimension_count")
    )
    compressed = Rotation.of(
        gguf, count(gguf, ".attention.key_length"), ".attention.compress_rope_freq_base"
    )
    return plain, Rotation(compressed.frequencies)


def _raw_kept(gguf: GGUFFile, ratio: int) -> RawRowsKept:
    """Keys and values of the window; and c and z of the compressors (kernels/compressors.py)."""
    size, window = (count(gguf, f".attention.{k}") for k in ("key_length", "sliding_window"))
    kinds = [(Needed(last=window - 1), size)]
    for values in _pool_values(gguf, ratio):
        kinds.append((Needed(pool=ratio), 2 * values))
        if ratio == INDEXED:
            kinds.append((Needed(pool=ratio, before=True), 2 * values))
    return RawRowsKept(tuple(kinds))


def _pools_kept(gguf: GGUFFile, ratio: int) -> PoolsKept | None:
    return PoolsKept(ratio, _pool_values(gguf, ratio)) if ratio else None


def _pool_values(gguf: GGUFFile, ratio: int) -> tuple[int, ...]:
    """Of a pool, and of its key in the index."""
    size = count(gguf, ".attention.key_length")
    if ratio == INDEXED:
        return size, count(gguf, ".attention.indexer.key_length")
    return (size,) if ratio else ()


def _block(
    gguf: GGUFFile, i: int, ratio: int, shape: HyperShape, rotation: Rotation
) -> Callable[[LayerLoader, ComputePath], StreamPart]:
    at, connect = f"blk.{i}.", partial(hyper_connection, gguf, shape)

    def read(loader: LayerLoader, path: ComputePath) -> StreamPart:
        mixer = _mixer(gguf, loader, path, at, ratio, rotation)
        mixing = connect(loader, at + "hc_attn", at + "attn_norm"), mixer
        weights, by_token = _experts(gguf, loader, i)
        fed = connect(loader, at + "hc_ffn", at + "ffn_norm"), feed_forward(weights)
        if by_token is not None:
            return TokenBlock(mixing, fed, path.activations, by_token)
        return StreamBlock(mixing, fed, path.activations)

    return read


# -- attention ---------------------------------------------------------------------------------


def _mixer(
    gguf: GGUFFile,
    loader: LayerLoader,
    path: ComputePath,
    at: str,
    ratio: int,
    rotation: Rotation,
) -> Mixer:
    shape = WindowShape(
        heads=count(gguf, ".attention.head_count"),
        size=count(gguf, ".attention.key_length"),
        window=count(gguf, ".attention.sliding_window"),
        rotation=COMPRESSED if ratio else PLAIN,
        norm_epsilon=positive(gguf, ".attention.layer_norm_rms_epsilon"),
    )
    weights = _weights(gguf, loader, at, shape)
    if not ratio:
        return WindowOnly(weights, shape, path.activations)
    epsilon = shape.norm_epsilon
    compress = partial(_compressor, gguf, loader, ratio=ratio, epsilon=epsilon, rotation=rotation)
    pools = compress(at + "attn_compressor", values=shape.size)
    index = _index(gguf, loader, at, compress) if ratio == INDEXED else None
    return WindowPools(weights, shape, pools, index, path.activations)


def _weights(gguf: GGUFFile, loader: LayerLoader, at: str, shape: WindowShape) -> WindowWeights:
    width, low = count(gguf, ".embedding_length"), count(gguf, ".attention.q_lora_rank")
    groups = count(gguf, ".attention.output_group_count")
    rank, whole = count(gguf, ".attention.output_lora_rank"), shape.heads * shape.size
    if shape.heads % groups:
        raise impossible(gguf, f"{shape.heads} heads in {groups} groups do not come out even.")
    return WindowWeights(
        q_a=loader.matrix(at + "attn_q_a", low, width),
        q_norm=loader.vector(at + "attn_q_a_norm.weight", low),
        q_b=loader.matrix(at + "attn_q_b", whole, low),
        kv=loader.matrix(at + "attn_kv", shape.size, width),
        kv_norm=loader.vector(at + "attn_kv_a_norm.weight", shape.size),
        sinks=loader.vector(at + "attn_sinks.weight", shape.heads),
        groups=loader.groups(at + "attn_output_a", groups, rank, whole // groups),
        output=loader.matrix(at + "attn_output_b", width, groups * rank),
    )


def _compressor(
    gguf: GGUFFile,
    loader: LayerLoader,
    name: str,
    *,
    values: int,
    ratio: int,
    epsilon: float,
    rotation: Rotation,
) -> Compressor:
    width = count(gguf, ".embedding_length")
    kept = 2 * values if ratio == INDEXED else values
    weights = CompressorWeights(
        kv=loader.matrix(f"{name}_kv", kept, width),
        gate=loader.matrix(f"{name}_gate", kept, width),
        position=loader.table(f"{name}_ape.weight", ratio, kept),
        norm=loader.vector(f"{name}_norm.weight", values),
    )

    def turn_at(positions: npt.NDArray[np.int32]) -> Cosines:
        return rotation.turn(positions).device(mx.float32)

    return Compressor(weights, epsilon, turn_at)


def _index(
    gguf: GGUFFile, loader: LayerLoader, at: str, compress: Callable[..., Compressor]
) -> PoolIndex:
    heads, key = (count(gguf, f".attention.indexer.{k}") for k in ("head_count", "key_length"))
    width, low = count(gguf, ".embedding_length"), count(gguf, ".attention.q_lora_rank")
    return PoolIndex(
        compressor=compress(at + "indexer_compressor", values=key),
        q=loader.matrix(at + "indexer.attn_q_b", heads * key, low),
        shares=loader.exact_matrix(at + "indexer.proj", heads, width),
        heads=heads,
        kept=count(gguf, ".attention.indexer.top_k"),
    )


# -- feed-forward ------------------------------------------------------------------------------


def _experts(
    gguf: GGUFFile, loader: LayerLoader, i: int
) -> tuple[ExpertsWeights, TokenRouting | None]:
    """And what chooses by tokens, in the blocks where that is so."""
    at, width = f"blk.{i}.", count(gguf, ".embedding_length")
    shared = count(gguf, ".expert_shared_count") * count(gguf, ".expert_feed_forward_length")
    by_token = _token_routing(gguf, loader, at) if i < _hash_blocks(gguf) else None
    of_all = gated(loader, at, width, shared, suffix="_shexp")
    weights = replace(
        experts(gguf)(loader, at),
        shared=replace(of_all, limit=limit(gguf, "shexp", i)),
        route=by_token or _routing(gguf, loader, at),
        limit=limit(gguf, "exp", i),
    )
    return weights, by_token


def _hash_blocks(gguf: GGUFFile) -> int:
    return gguf.key(".hash_layer_count", int, 0)


def _token_routing(gguf: GGUFFile, loader: LayerLoader, at: str) -> TokenRouting:
    used, vocab = count(gguf, ".expert_used_count"), gguf.tensor("token_embd.weight").shape[0]
    table = loader.whole_numbers(at + "ffn_gate_tid2eid.weight", vocab, used)
    if table.min() < 0 or table.max() >= count(gguf, ".expert_count"):
        raise impossible(gguf, f"{at}ffn_gate_tid2eid names experts that are not there.")
    return TokenRouting(table, _factor(gguf))


def _routing(gguf: GGUFFile, loader: LayerLoader, at: str) -> SoftplusRouting:
    kind = gguf.key(".expert_gating_func", int, SQRT_SOFTPLUS)
    if kind != SQRT_SOFTPLUS or not gguf.key(".expert_weights_norm", bool, True):
        raise not_read(gguf, f"routing of kind {kind}, or without a sum of 1, is not read.")
    bias = loader.vector(at + "exp_probs_b.bias", count(gguf, ".expert_count"))
    return SoftplusRouting(bias, count(gguf, ".expert_used_count"), _factor(gguf))


def _factor(gguf: GGUFFile) -> float:
    return gguf.key(".expert_weights_scale", float, 1.0)
