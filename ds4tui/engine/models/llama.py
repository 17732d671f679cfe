"""The llama family: SmolLM2, Llama 2 and 3, Mistral and everything converted as `llama`.

Dense pre-norm blocks, grouped-query attention, rotary positions. The file's Q and K rows are
permuted for a rope over neighbouring values, so that is the rope used. The maths of a block is
in `kernels/block.py`; here are the keys and tensors of the file, and a step over the blocks.
"""

import logging
import math
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.layers import LayerLoader
from ds4tui.engine.models.rows import Rows
from ds4tui.engine.state import HostKVLayer, KVLayer, ModelState, grown_capacity
from ds4tui.errors import GGUFError
from ds4tui.kernels.block import BlockShape, BlockWeights
from ds4tui.kernels.choice import ComputePath
from ds4tui.kernels.decoder import Decoder, Ends
from ds4tui.kernels.rope import Turn

log = logging.getLogger(__name__)

ROPE_FACTORS = "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """The dimensions of one file; `frequencies` are radians a position, float64 [J]."""

    blocks: int
    width: int
    feed_forward: int
    vocab_size: int
    context_tokens: int
    shape: BlockShape
    frequencies: npt.NDArray[np.float64]

    @classmethod
    def of(cls, gguf: GGUFFile) -> "LlamaConfig":
        """Raises GGUFError for missing or impossible keys and for variants that are not read."""
        if gguf.key(".expert_count", int, 0):
            raise GGUFError(f"{gguf.path.name} is a mixture of experts.", "Use a dense model.")
        width, heads = _count(gguf, ".embedding_length"), _count(gguf, ".attention.head_count")
        kv_heads = _count(gguf, ".attention.head_count_kv", heads)
        if heads % kv_heads:
            raise GGUFError(
                f"{gguf.path.name}: {heads} query heads cannot share {kv_heads} key heads.",
                "Get another conversion of this model.",
            )
        rotary = _count(gguf, ".rope.dimension_count", width // heads)
        key_size = _count(gguf, ".attention.key_length", rotary)
        return cls(
            blocks=_count(gguf, ".block_count"),
            width=width,
            feed_forward=_count(gguf, ".feed_forward_length"),
            vocab_size=gguf.tensor("token_embd.weight").shape[0],
            context_tokens=_context_tokens(gguf),
            shape=BlockShape(
                heads=heads,
                kv_heads=kv_heads,
                key_size=key_size,
                value_size=_count(gguf, ".attention.value_length", key_size),
                norm_epsilon=gguf.key(".attention.layer_norm_rms_epsilon", float),
                scale=gguf.key(".attention.scale", float, 1 / math.sqrt(key_size)),
            ),
            frequencies=_frequencies(gguf, rotary, key_size),
        )

    def kv_bytes(self, tokens: int, path: ComputePath) -> int:
        """The most that a state of up to `tokens` rows takes: its buffers as they grow, plus
        one layer, which is there twice while it does."""
        values = self.shape.kv_heads * (self.shape.key_size + self.shape.value_size)
        layer = grown_capacity(tokens) * values * path.activations.size
        return layer * (self.blocks + 1)


class LlamaModel:
    """One loaded llama. Owned by the engine thread."""

    architecture = "llama"

    def __init__(
        self, config: LlamaConfig, gguf: GGUFFile, path: ComputePath, context_tokens: int
    ) -> None:
        """Loads all weights, a tensor at a time; `context_tokens` is what the caller grants.
        Raises GGUFError for missing or misshapen tensors."""
        self._config, self._path = config, path
        self.context_tokens = context_tokens
        self.vocab_size = config.vocab_size
        loader = LayerLoader(gguf, path)
        self._decoder = _decoder(loader, config, path)
        loader.warn_of_unused(ROPE_FACTORS)
        self.weights_bytes = loader.nbytes
        self.compute_path = loader.words()

    def new_state(self) -> ModelState:
        layer = HostKVLayer if self._path.host_blocks else KVLayer
        return ModelState([layer() for _ in range(self._config.blocks)])

    def kv_bytes(self, tokens: int) -> int:
        """The most that a state of up to `tokens` rows ever takes."""
        return self._config.kv_bytes(tokens, self._path)

    def forward(self, rows: Rows, state: ModelState) -> mx.array | None:
        """Evaluate rows behind those in `state`; logits float32 [1 or T, vocab], or None.

        Raises ValueError for no rows, ids outside the vocabulary, or positions that are not
        [T]. After any other error the layers may be uneven: the state is to be thrown away.
        """
        source = self._source(rows)
        turn = Turn.at(rows.positions, self._config.frequencies)
        return self._decoder(source, state.layers, turn, rows.logits)

    def _source(self, rows: Rows) -> npt.NDArray[np.int64] | mx.array:
        if not len(rows) or rows.positions.ndim != 1:
            raise ValueError(f"llama takes positions [T] for T >= 1, not {rows.positions.shape}.")
        if rows.embeddings is not None:
            return rows.embeddings
        assert rows.ids is not None
        # NumPy would read a negative id from the end, MLX anything from anywhere.
        if rows.ids.min() < 0 or rows.ids.max() >= self.vocab_size:
            raise ValueError(f"Token ids must be in 0..{self.vocab_size - 1}.")
        return rows.ids


def _decoder(loader: LayerLoader, config: LlamaConfig, path: ComputePath) -> Decoder:
    embedding = loader.matrix("token_embd", config.vocab_size, config.width)
    tied = not loader.has("output.weight")
    output = embedding if tied else loader.matrix("output", config.vocab_size, config.width)
    norm = loader.vector("output_norm.weight", config.width)
    # Each block takes over its matrices before the next one is read.
    blocks = [path.block(_block(loader, config, i), config.shape) for i in range(config.blocks)]
    return path.decoder(Ends(embedding, norm, output, config.shape.norm_epsilon), blocks)


def _block(loader: LayerLoader, config: LlamaConfig, i: int) -> BlockWeights:
    shape, width, inner = config.shape, config.width, config.feed_forward
    at = f"blk.{i}."
    return BlockWeights(
        attn_norm=loader.vector(at + "attn_norm.weight", width),
        q=loader.matrix(at + "attn_q", shape.heads * shape.key_size, width),
        k=loader.matrix(at + "attn_k", shape.kv_heads * shape.key_size, width),
        v=loader.matrix(at + "attn_v", shape.kv_heads * shape.value_size, width),
        output=loader.matrix(at + "attn_output", width, shape.heads * shape.value_size),
        ffn_norm=loader.vector(at + "ffn_norm.weight", width),
        gate=loader.matrix(at + "ffn_gate", inner, width),
        up=loader.matrix(at + "ffn_up", inner, width),
        down=loader.matrix(at + "ffn_down", width, inner),
    )


def _frequencies(gguf: GGUFFile, rotary: int, key_size: int) -> npt.NDArray[np.float64]:
    """freq_base^(-2j/rotary), divided by the scaling factor, and each by its own factor where
    the file has ROPE_FACTORS (llama3 scaling, worked out by the converter)."""
    if rotary % 2 or rotary > key_size:
        raise GGUFError(
            f"{gguf.path.name}: {rotary} rotary values do not fit heads of {key_size}.",
            "Get another conversion of this model.",
        )
    base = gguf.key(".rope.freq_base", float, 10_000.0)
    steps = np.arange(0, rotary, 2, dtype=np.float64) / rotary
    frequencies = base**-steps / _linear_scaling(gguf)
    if ROPE_FACTORS in gguf.tensors:
        factors = gguf.dequantised(ROPE_FACTORS)
        if factors.shape != frequencies.shape or not (factors > 0).all():
            raise GGUFError(
                f"{gguf.path.name}: the tensor {ROPE_FACTORS} must hold {len(steps)} "
                f"positive factors, not {list(factors.shape)}.",
                "Get another conversion of this model.",
            )
        frequencies /= factors
    return frequencies


def _linear_scaling(gguf: GGUFFile) -> float:
    kind = gguf.key(".rope.scaling.type", str, "linear")
    if kind == "none":
        return 1.0
    if kind != "linear":
        raise GGUFError(
            f"{gguf.path.name}: rope scaling of type {kind!r} is not read (only linear is).",
            "Use a conversion without it.",
        )
    older = gguf.key(".rope.scale_linear", float, 1.0)
    return gguf.key(".rope.scaling.factor", float, older) or 1.0


def _context_tokens(gguf: GGUFFile) -> int:
    """The trained context; a sliding window (early Mistral) is full attention up to its size."""
    context = _count(gguf, ".context_length")
    window = gguf.key(".attention.sliding_window", int, 0)
    if 0 < window < context:
        log.info("%s: context cut to its sliding window of %d tokens", gguf.path.name, window)
        return window
    return context


def _count(gguf: GGUFFile, name: str, default: int | None = None) -> int:
    value = gguf.key(name, int) if default is None else gguf.key(name, int, default)
    if value < 1:
        raise GGUFError(
            f"{gguf.path.name}: the key {gguf.architecture}{name} is {value}.",
            "Get another conversion of this model.",
        )
    return value
