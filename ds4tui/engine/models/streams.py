"""A model whose residual is several streams: what its families tell about a file, loading, and a
step. Its parts are in `kernels/streams.py`; each keeps one layer of the state.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.engine.capacity import RAW_SLACK_ROWS, grown_capacity, layer_capacity
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.layers import LayerLoader
from ds4tui.engine.models.rotation import Rotation
from ds4tui.engine.models.rows import ImageVectors, Rows
from ds4tui.engine.state import (
    IndexedLayer,
    LayerState,
    ModelState,
    Needed,
    NGramLayer,
    PoolLayer,
    RawAndPools,
    RawRowsLayer,
    RecurrentLayer,
)
from ds4tui.kernels.choice import ComputePath, Rule
from ds4tui.kernels.cpu.linear import host_view
from ds4tui.kernels.linear import Linear
from ds4tui.kernels.streams import Step, StreamDecoder, StreamEnds, StreamPart

# A position far enough in a sequence, where pools of any size end.
LONG_ALIGNED = 1 << 20


class Kept(Protocol):
    """What one part keeps of the rows it has seen."""

    def layer(self) -> LayerState: ...
    def growing_bytes(self, tokens: int, size: int) -> int:
        """Of buffers for `tokens` rows, whose numbers take `size` bytes."""

    @property
    def fixed_bytes(self) -> int: ...

    def snapshot_bytes(self, size: int) -> int:
        """Of the bounded part, where it is smallest in a long sequence."""
        return self.fixed_bytes

    def slack_bytes(self, size: int) -> int:
        """Of each further row that is kept to go back by."""
        return 0


@dataclass(frozen=True, slots=True)
class RecurrentKept(Kept):
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
class NGramKept(Kept):
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
class IndexedKept(Kept):
    """Rows of so many `values` and of `whole_numbers` of 4 bytes, in `arrays` kinds; and pools of
    `size` rows, of `pool_values` each."""

    arrays: int
    values: int
    whole_numbers: int
    size: int
    pool_values: int

    def layer(self) -> LayerState:
        return IndexedLayer(self.arrays, self.size)

    def growing_bytes(self, tokens: int, size: int) -> int:
        row = self.values * size + self.whole_numbers * 4
        pools = grown_capacity(tokens // self.size) * self.pool_values * size
        return grown_capacity(tokens) * row + pools

    @property
    def fixed_bytes(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class RawRowsKept(Kept):
    """The last rows of each kind, of so many numbers, those of the first in the activations' dtype
    and others in float32."""

    kinds: tuple[tuple[Needed, int], ...]

    def layer(self) -> RawRowsLayer:
        return RawRowsLayer(*(needed for needed, _ in self.kinds))

    def growing_bytes(self, tokens: int, size: int) -> int:
        window = 1 + max(needed.most for needed, _ in self.kinds)
        return layer_capacity(tokens, window, RAW_SLACK_ROWS) * self.slack_bytes(size)

    @property
    def fixed_bytes(self) -> int:
        return 0

    def snapshot_bytes(self, size: int) -> int:
        rows = [needed.at(LONG_ALIGNED) for needed, _ in self.kinds]
        return sum(n * row for n, row in zip(rows, self._row_bytes(size), strict=True))

    def slack_bytes(self, size: int) -> int:
        return sum(self._row_bytes(size))

    def _row_bytes(self, size: int) -> list[int]:
        (_, first), *others = self.kinds
        return [first * size, *(4 * values for _, values in others)]


@dataclass(frozen=True, slots=True)
class PoolsKept(Kept):
    """Pools of `size` rows, of so many values of each kind."""

    size: int
    values: tuple[int, ...]

    def layer(self) -> PoolLayer:
        return PoolLayer(self.size, len(self.values))

    def growing_bytes(self, tokens: int, size: int) -> int:
        return grown_capacity(max(1, tokens // self.size)) * sum(self.values) * size

    @property
    def fixed_bytes(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class PartPlan:
    """A part that keeps `pools`, too, is given both layers as RawAndPools."""

    kept: Kept
    read: Callable[[LayerLoader, ComputePath], StreamPart]
    pools: PoolsKept | None = None


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

    @property
    def kept(self) -> list[Kept]:
        """Of each layer of the state."""
        of_parts = ((part.kept, part.pools) for part in self.parts)
        return [kept for both in of_parts for kept in both if kept is not None]

    def kv_bytes(self, tokens: int, path: ComputePath) -> int:
        """As DecoderConfig.kv_bytes."""
        grown = [kept.growing_bytes(tokens, path.activations.size) for kept in self.kept]
        fixed = sum(kept.fixed_bytes for kept in self.kept)
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
        return ModelState([kept.layer() for kept in self._config.kept])

    def kv_bytes(self, tokens: int) -> int:
        """The most that a state of up to `tokens` rows ever takes."""
        return self._config.kv_bytes(tokens, self._path)

    def forward(self, rows: Rows, state: ModelState) -> mx.array | None:
        """As DecoderModel.forward."""
        if not len(rows) or rows.positions.ndim not in (1, 2):
            raise ValueError(f"Rows take positions [T] with T >= 1, not {rows.positions.shape}.")
        turns = [rotation.turn(rows.positions) for rotation in self._config.rotations]
        source, step = self._source(rows), Step.of(rows.ids, rows.positions, turns)
        return self._decoder(source, self._of_parts(state.layers), step, rows.logits)

    def _of_parts(self, layers: Sequence[LayerState]) -> list[Any]:
        """What each part is given."""
        given: list[Any] = []
        left = iter(layers)
        for part in self._config.parts:
            layer = next(left)
            given.append(layer if part.pools is None else _both(layer, next(left)))
        return given

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


def _both(raw: LayerState, pools: LayerState) -> RawAndPools:
    assert isinstance(raw, RawRowsLayer) and isinstance(pools, PoolLayer)
    return RawAndPools(raw, pools)


def _decoder(
    loader: LayerLoader, config: StreamConfig, path: ComputePath, embedding: Linear
) -> StreamDecoder:
    tied = not loader.has("output.weight")
    output = embedding if tied else loader.matrix("output", config.vocab_size, config.width)
    collapse = config.read_collapse(loader, path)
    ends = StreamEnds(embedding, config.streams, collapse, output)
    # Each part takes over its matrices before the next one is read.
    return StreamDecoder(ends, [part.read(loader, path) for part in config.parts], path.activations)
