"""A model whose residual is several streams: what its families tell about a file, loading, and a
step. Its parts are in `kernels/streams.py`; each keeps one layer of the state.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.engine.capacity import grown_capacity
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.layers import LayerLoader
from ds4tui.engine.models.rotation import Rotation
from ds4tui.engine.models.rows import ImageVectors, Rows
from ds4tui.engine.state import (
    IndexedLayer,
    LayerState,
    ModelState,
    NGramLayer,
    RecurrentLayer,
)
from ds4tui.kernels.choice import ComputePath, Rule
from ds4tui.kernels.cpu.linear import host_view
from ds4tui.kernels.linear import Linear
from ds4tui.kernels.streams import Step, StreamDecoder, StreamEnds, StreamPart


class Kept(Protocol):
    """What one part keeps of the rows it has seen."""

    def layer(self) -> LayerState: ...
    def growing_bytes(self, tokens: int, size: int) -> int:
        """Of buffers for `tokens` rows, whose numbers take `size` bytes."""

    @property
    def fixed_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class RecurrentKept:
    """Matrices and the last rows of a convolution, in float32."""

    matrices: tuple[int, int, int]
    tail: tuple[int, int]

    def layer(self) -> LayerState:
        return RecurrentLayer(self.matrices, self.tail)

    def growing_bytes(self, tokens: int, size: int) -> int:
        return 0

    @property
    def fixed_bytes(self) -> int:
        heads, values, keys = self.matrices
        return 4 * (heads * values * keys + self.tail[0] * self.tail[1])


@dataclass(frozen=True, slots=True)
class NGramKept:
    """The last rows of a convolution, in float32, and the last `tokens`."""

    rows: tuple[int, int]
    tokens: int
    end: int

    def layer(self) -> LayerState:
        return NGramLayer(self.rows, self.tokens, self.end)

    def growing_bytes(self, tokens: int, size: int) -> int:
        return 0

    @property
    def fixed_bytes(self) -> int:
        return 4 * (self.rows[0] * self.rows[1] + self.tokens)


@dataclass(frozen=True, slots=True)
class IndexedKept:
    """Rows of so many `values` and of `whole_numbers` of 4 bytes, in `arrays` kinds; and pools of
    `size` rows, of `pool_values` each, which may need the rows of the one before (`overlaps`)."""

    arrays: int
    values: int
    whole_numbers: int
    size: int
    pool_values: int
    overlaps: bool = False

    def layer(self) -> LayerState:
        return IndexedLayer(self.arrays, self.size, self.overlaps)

    def growing_bytes(self, tokens: int, size: int) -> int:
        row = self.values * size + self.whole_numbers * 4
        pools = grown_capacity(tokens // self.size) * self.pool_values * size
        return grown_capacity(tokens) * row + pools

    @property
    def fixed_bytes(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class PartPlan:
    kept: Kept
    read: Callable[[LayerLoader, ComputePath], StreamPart]


# What computes the gated delta rule, and one whose channels forget each at a rate of its own.
RULES: dict[Rule, str] = {
    "native": "in C++",
    "numpy": "in NumPy",
    "fused": "by its kernel",
    "chunks": "in chunks",
    "reference": "row by row",
}
CHANNEL_RULES = RULES | {"native": "in NumPy", "fused": "in chunks"}


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """The dimensions of one file. `parts` are in the order in which rows pass through them;
    `read_collapse` reads what stands behind the last. `rules`: who computes the delta rule, in
    words; None: nobody needs it. Tensors whose names begin with one of `left_out` are of no use."""

    architecture: str
    width: int
    vocab_size: int
    context_tokens: int
    streams: int
    parts: tuple[PartPlan, ...]
    rotations: tuple[Rotation, ...]
    read_collapse: Callable[[LayerLoader, ComputePath], Callable[[mx.array], mx.array]]
    rules: Mapping[Rule, str] | None
    left_out: tuple[str, ...] = ()

    @property
    def is_hybrid(self) -> bool:
        """Whether the kernels of hybrids are asked for."""
        return self.rules is not None

    def kv_bytes(self, tokens: int, path: ComputePath) -> int:
        """As DecoderConfig.kv_bytes."""
        grown = [part.kept.growing_bytes(tokens, path.activations.size) for part in self.parts]
        fixed = sum(part.kept.fixed_bytes for part in self.parts)
        return sum(grown) + max(grown, default=0) + fixed

    def run_by(self, path: ComputePath) -> str:
        products = "" if path.native is None else f", matrix products in C++ ({path.native.words})"
        rule = "" if self.rules is None else f", the delta rule {self.rules[path.rule]}"
        return f"{'streams' if self.streams > 1 else 'blocks'} in MLX{products}{rule}"


class StreamModel:
    """One loaded model. Owned by the engine thread."""

    def __init__(
        self, config: StreamConfig, gguf: GGUFFile, path: ComputePath, context_tokens: int
    ) -> None:
        """As DecoderModel."""
        self._config, self._path = config, path
        self.architecture = config.architecture
        self.context_tokens = context_tokens
        self.vocab_size = config.vocab_size
        loader = LayerLoader(gguf, path)
        self._embedding = loader.matrix("token_embd", config.vocab_size, config.width)
        self._decoder = _decoder(loader, config, path, self._embedding)
        self.unused_tensors = loader.warn_of_unused(left_out=config.left_out)
        self.weights_policy = path.policy
        self.experts = path.experts
        self.weights_bytes = loader.nbytes
        self.compute_path = loader.words(config.run_by(path))

    def new_state(self) -> ModelState:
        return ModelState([part.kept.layer() for part in self._config.parts])

    def kv_bytes(self, tokens: int) -> int:
        """The most that a state of up to `tokens` rows ever takes."""
        return self._config.kv_bytes(tokens, self._path)

    def forward(self, rows: Rows, state: ModelState) -> mx.array | None:
        """As DecoderModel.forward."""
        if not len(rows) or rows.positions.ndim not in (1, 2):
            raise ValueError(f"Rows take positions [T] with T >= 1, not {rows.positions.shape}.")
        turns = [rotation.turn(rows.positions) for rotation in self._config.rotations]
        source, step = self._source(rows), Step.of(rows.ids, rows.positions, turns)
        return self._decoder(source, state.layers, step, rows.logits)

    def _source(self, rows: Rows) -> npt.NDArray[np.int64] | mx.array:
        if rows.embeddings is not None:
            return rows.embeddings
        assert rows.ids is not None
        if rows.ids.min() < 0 or rows.ids.max() >= self.vocab_size:
            raise ValueError(f"Token ids must be in 0..{self.vocab_size - 1}.")
        return rows.ids if rows.images is None else self._embedded(rows.ids, rows.images)

    def _embedded(self, ids: npt.NDArray[np.int64], images: ImageVectors) -> mx.array:
        if images.added or images.sight is not None:
            raise ValueError(f"{self.architecture} takes vectors of images only.")
        if images.vectors.shape[-1] != self._config.width:
            got, width = images.vectors.shape[-1], self._config.width
            raise ValueError(f"Image vectors of {got} values do not fit a model of {width}.")
        rows = host_view(self._embedding.rows(ids)).copy()
        rows[images.at] = host_view(images.vectors)
        return mx.array(rows)


def _decoder(
    loader: LayerLoader, config: StreamConfig, path: ComputePath, embedding: Linear
) -> StreamDecoder:
    tied = not loader.has("output.weight")
    output = embedding if tied else loader.matrix("output", config.vocab_size, config.width)
    collapse = config.read_collapse(loader, path)
    ends = StreamEnds(embedding, config.streams, collapse, output)
    # Each part takes over its matrices before the next one is read.
    return StreamDecoder(ends, [part.read(loader, path) for part in config.parts], path.activations)
