"""A model of attention blocks: what its families tell about a file, loading, and a step.

A family turns a file's keys into a DecoderConfig, which also says how a block's tensors are
read. The maths of a block is in `kernels/block.py`.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.engine.capacity import layer_capacity
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.layers import LayerLoader, Order
from ds4tui.engine.models.rotation import ROPE_FACTORS, Rotation
from ds4tui.engine.models.rows import ImageVectors, Rows
from ds4tui.engine.state import (
    HostKVLayer,
    HostRecurrentLayer,
    HostWindowLayer,
    KVLayer,
    LayerState,
    ModelState,
    RecurrentLayer,
    WindowLayer,
)
from ds4tui.kernels.block import AttentionWeights, BlockShape
from ds4tui.kernels.choice import AnyShape, AnyWeights, ComputePath, is_hybrid
from ds4tui.kernels.cpu.linear import host_view
from ds4tui.kernels.decoder import NO_IMAGES, Decoder, Ends, ImageRows
from ds4tui.kernels.delta import DeltaShape
from ds4tui.kernels.feed_forward import Activation, GatedWeights
from ds4tui.kernels.linear import Linear
from ds4tui.kernels.rope import neighbours

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """The dimensions of one file. `blocks` has a shape a block, whose `turn` is an index into
    `rotations`; `read_block` loads the weights of block i. The file may have `blocks_left_out`
    more behind them."""

    architecture: str
    width: int
    vocab_size: int
    context_tokens: int
    blocks: tuple[AnyShape, ...]
    rotations: tuple[Rotation, ...]
    read_block: Callable[[LayerLoader, int], AnyWeights]
    embedding_scale: float = 1.0
    blocks_left_out: int = 0

    def kv_bytes(self, tokens: int, path: ComputePath) -> int:
        """The most that a state of up to `tokens` rows takes: its buffers as they grow, plus
        the largest layer, which is there twice while it does, and what never grows."""
        values = [
            s.row_values * layer_capacity(tokens, s.window)
            for s in self.blocks
            if isinstance(s, BlockShape)
        ]
        fixed = sum(s.state_bytes for s in self.blocks if isinstance(s, DeltaShape))
        return (sum(values) + max(values, default=0)) * path.activations.size + fixed

    @property
    def is_hybrid(self) -> bool:
        return is_hybrid(self.blocks)

    def run_by(self, path: ComputePath) -> str:
        return path.words_of(self.blocks)


class DecoderModel:
    """One loaded model. Owned by the engine thread."""

    def __init__(
        self, config: DecoderConfig, gguf: GGUFFile, path: ComputePath, context_tokens: int
    ) -> None:
        """Loads all weights, a tensor at a time; `context_tokens` is what the caller grants.
        Raises GGUFError for missing or misshapen tensors."""
        self._config, self._path = config, path
        self.architecture = config.architecture
        self.context_tokens = context_tokens
        self.vocab_size = config.vocab_size
        loader = LayerLoader(gguf, path)
        self._embedding = loader.matrix("token_embd", config.vocab_size, config.width)
        self._decoder = _decoder(loader, config, path, self._embedding)
        self.unused_tensors = loader.warn_of_unused(ROPE_FACTORS, left_out=_left_out(config))
        self.weights_policy = path.policy
        self.experts = path.experts
        self.weights_bytes = loader.nbytes
        self.compute_path = loader.words(config.run_by(path))

    def new_state(self) -> ModelState:
        in_numpy = self._path.runs_on_host(self._config.blocks)
        return ModelState([_layer_state(shape, in_numpy) for shape in self._config.blocks])

    def kv_bytes(self, tokens: int) -> int:
        """The most that a state of up to `tokens` rows ever takes."""
        return self._config.kv_bytes(tokens, self._path)

    def forward(self, rows: Rows, state: ModelState) -> mx.array | None:
        """Evaluate rows behind those in `state`; logits float32 [1 or T, vocab], or None.

        Raises ValueError for no rows, ids outside the vocabulary, or positions that are not [T]
        (nor [3, T], where the family turns in three directions). After any other error the layers
        may be uneven: the state is to be thrown away.
        """
        source = self._source(rows)
        turns = [rotation.turn(rows.positions) for rotation in self._config.rotations]
        images = NO_IMAGES if rows.images is None else _image_rows(rows.images, len(rows))
        return self._decoder(source, state.layers, turns, rows.logits, images)

    def _source(self, rows: Rows) -> npt.NDArray[np.int64] | mx.array:
        if not len(rows) or rows.positions.ndim not in (1, 2):
            raise ValueError(f"Rows take positions [T] with T >= 1, not {rows.positions.shape}.")
        if rows.embeddings is not None:
            return rows.embeddings
        assert rows.ids is not None
        ids = rows.ids
        if rows.images is not None:
            ids = ids.copy()
            ids[rows.images.at] = 0  # of any token: they are replaced
        # NumPy would read a negative id from the end, MLX anything from anywhere.
        if ids.min() < 0 or ids.max() >= self.vocab_size:
            raise ValueError(f"Token ids must be in 0..{self.vocab_size - 1}.")
        return ids if rows.images is None else self._embedded(ids, rows.images)

    def _embedded(self, ids: npt.NDArray[np.int64], images: ImageVectors) -> mx.array:
        """Rows of text as the model embeds them, rows of images as they are given."""
        if images.vectors.shape[-1] != self._config.width:
            got, width = images.vectors.shape[-1], self._config.width
            raise ValueError(f"Image vectors of {got} values do not fit a model of {width}.")
        texts = self._embedding.rows(ids).astype(mx.float32) * self._config.embedding_scale
        rows = host_view(texts).copy()
        rows[images.at] = host_view(images.vectors)
        return mx.array(rows)


def _left_out(config: DecoderConfig) -> list[str]:
    """How the names of tensors begin that are left out."""
    blocks = len(config.blocks)
    return [f"blk.{i}." for i in range(blocks, blocks + config.blocks_left_out)]


def _layer_state(shape: AnyShape, in_numpy: bool) -> LayerState:
    if isinstance(shape, DeltaShape):
        kind = HostRecurrentLayer if in_numpy else RecurrentLayer
        return kind(shape.matrices_shape, shape.tail_shape)
    if shape.window is None:
        return HostKVLayer() if in_numpy else KVLayer()
    return HostWindowLayer(shape.window) if in_numpy else WindowLayer(shape.window)


def _image_rows(images: ImageVectors, count: int) -> ImageRows:
    """`images` among `count` rows."""
    added = []
    for part in images.added:
        rows = np.zeros((count, part.shape[-1]), np.float32)
        rows[images.at] = host_view(part)
        added.append(rows)
    return ImageRows(tuple(added), images.sight)


def _decoder(
    loader: LayerLoader, config: DecoderConfig, path: ComputePath, embedding: Linear
) -> Decoder:
    tied = not loader.has("output.weight")
    output = embedding if tied else loader.matrix("output", config.vocab_size, config.width)
    norm = loader.vector("output_norm.weight", config.width)
    ends = Ends(embedding, norm, output, config.blocks[0].norm_epsilon, config.embedding_scale)
    # Each block takes over its matrices before the next one is read.
    blocks = [path.block(config.read_block(loader, i), s) for i, s in enumerate(config.blocks)]
    return path.decoder(ends, blocks)


# -- parts of a block that families share, of the tensors whose names begin with `at` -----------


def attention(
    loader: LayerLoader,
    at: str,
    width: int,
    shape: BlockShape,
    halves: int | None = None,
    head_norms: bool = False,
) -> AttentionWeights:
    """`halves`: the rotary values of a head, where the file pairs their halves and not
    neighbours. Biases are taken where the file has them."""

    def order(heads: int) -> Order | None:
        return None if halves is None else neighbours(heads, shape.key_size, halves)

    def head_norm(name: str) -> mx.array | None:
        return loader.vector(at + name, shape.key_size, order(1)) if head_norms else None

    q_rows, k_rows = shape.heads * shape.key_size, shape.kv_heads * shape.key_size
    return AttentionWeights(
        q=loader.matrix(at + "attn_q", q_rows, width, order(shape.heads)),
        k=loader.matrix(at + "attn_k", k_rows, width, order(shape.kv_heads)),
        v=loader.matrix(at + "attn_v", shape.kv_heads * shape.value_size, width),
        output=loader.matrix(at + "attn_output", width, shape.heads * shape.value_size),
        q_norm=head_norm("attn_q_norm.weight"),
        k_norm=head_norm("attn_k_norm.weight"),
    )


def gated(
    loader: LayerLoader,
    at: str,
    width: int,
    inner: int,
    activation: Activation = "silu",
    suffix: str = "",
) -> GatedWeights:
    """`suffix`: how the names end, "_shexp" of an expert that all rows share."""
    return GatedWeights(
        gate=loader.matrix(f"{at}ffn_gate{suffix}", inner, width),
        up=loader.matrix(f"{at}ffn_up{suffix}", inner, width),
        down=loader.matrix(f"{at}ffn_down{suffix}", width, inner),
        activation=activation,
    )
