"""The native twin of a whole decoder step: from the ids to the logits in one call.

A call costs some microseconds, MLX's and NumPy's small operations cost that each, and a step has
hundreds. Rows, keys and values are float32, as in the NumPy twin, and so is every sum: weights
are decoded, activations are never rounded.
"""

from collections.abc import Sequence
from ctypes import pointer
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.kernels.block import BlockShape, BlockWeights
from ds4tui.kernels.cpu.linear import host_view
from ds4tui.kernels.cpu.native.library import (
    CacheStruct,
    ExpertsStruct,
    Kernels,
    LayerStruct,
    MatrixStruct,
    ModelStruct,
    StepStruct,
)
from ds4tui.kernels.cpu.native.linear import native_stack, struct_of
from ds4tui.kernels.decoder import NO_IMAGES, Ends, ImageRows, Logits, Source
from ds4tui.kernels.feed_forward import ExpertsWeights, FeedForwardWeights, require_plain
from ds4tui.kernels.rope import Turn

Floats = npt.NDArray[np.float32]

TURNS_MAX = 2  # rotations of one model


class NativeAppender(Protocol):
    """Where a block keeps its keys and values (engine/state/)."""

    @property
    def length(self) -> int: ...
    @property
    def base(self) -> int:
        """The position of the buffers' first row, once they are reserved."""

    def reserved(self, count: int, keys: tuple[int, int], values: tuple[int, int]) -> "Buffers":
        """Buffers with room for `count` rows more: keys [heads, size, capacity], values
        [heads, capacity, size]; `keys` and `values` are (heads, size)."""

    def written(self, count: int) -> None:
        """Rows behind the last one are there now."""


Buffers = tuple[Floats, Floats]


@dataclass(frozen=True, slots=True)
class NativeBlock:
    """The weights of one block; NativeDecoder runs it. All vectors are kept as NumPy arrays."""

    weights: BlockWeights
    shape: BlockShape


class NativeDecoder:
    """As `kernels.decoder.DenseDecoder`; the layers must keep their rows in NumPy."""

    def __init__(self, kernels: Kernels, ends: Ends, blocks: Sequence[NativeBlock]) -> None:
        """TypeError for a matrix that is not in the file's blocks, ValueError for blocks that
        differ in more than window and rotation."""
        self._kernels, self._ends, self._blocks = kernels, ends, blocks
        self._kept: list[Floats] = []  # the vectors that the structs point to
        self._layers = (LayerStruct * len(blocks))(*map(self._layer, blocks))
        self._model = self._model_of(ends, blocks)

    def __call__(
        self,
        source: Source,
        layers: Sequence[NativeAppender],
        turns: Sequence[Turn],
        logits: Logits,
        images: ImageRows = NO_IMAGES,
    ) -> mx.array | None:
        """As `kernels.decoder.Decoder`."""
        given = self._given(source)
        count, first = len(given), layers[0].length
        caches = (CacheStruct * len(layers))(
            *(self._cache(layer, first, count) for layer in layers)
        )
        wanted = {"none": 0, "last": 1, "all": count}[logits]
        result = np.empty((wanted, self._model.head.out), np.float32)
        factors = [np.ascontiguousarray(turn.factors) for turn in turns]
        step = StepStruct(caches=caches, logits=result.ctypes.data, rows=count, first=first)
        step.logit_rows = wanted
        for i, factor in enumerate(factors):
            step.turns[i], step.pairs[i] = factor.ctypes.data, factor.shape[1]
        if given.dtype == np.int64:
            step.ids = given.ctypes.data
        else:
            step.embedded = given.ctypes.data
        added = np.ascontiguousarray(images.added, np.float32)
        step.added, step.added_blocks = added.ctypes.data, len(images.added)
        sight = None if images.sight is None else np.ascontiguousarray(images.sight, np.int32)
        step.sight = None if sight is None else sight.ctypes.data
        self._kernels.step(self._model, step)
        for layer in layers:
            layer.written(count)
        return mx.array(result) if wanted else None

    def _given(self, source: Source) -> npt.NDArray[np.int64] | Floats:
        if isinstance(source, mx.array):
            return np.ascontiguousarray(host_view(source))
        return np.ascontiguousarray(source, np.int64)

    def _cache(self, layer: NativeAppender, first: int, count: int) -> CacheStruct:
        shape = self._blocks[0].shape
        keys, values = layer.reserved(
            count, (shape.kv_heads, shape.key_size), (shape.kv_heads, shape.value_size)
        )
        if not 0 <= first - layer.base <= keys.shape[2] - count:
            # Else the kernel would write outside of them.
            raise ValueError(f"A layer has no place for rows {first} to {first + count}.")
        return CacheStruct(keys.ctypes.data, values.ctypes.data, keys.shape[2], layer.base)

    def _model_of(self, ends: Ends, blocks: Sequence[NativeBlock]) -> ModelStruct:
        first = blocks[0].shape
        if any(_dimensions(block) != _dimensions(blocks[0]) for block in blocks):
            raise ValueError("The blocks of the model differ in their dimensions.")
        if any(block.shape.turn >= TURNS_MAX for block in blocks):
            raise ValueError(f"The model has more than {TURNS_MAX} rotations.")
        fed = [block.weights.feed_forward for block in blocks]
        return ModelStruct(
            layers=self._layers,
            embedding=struct_of(ends.embedding),
            head=struct_of(ends.output),
            output_norm=self._vector(ends.norm),
            blocks=len(blocks),
            width=ends.embedding.shape[1],
            inner=fed[0].gate.shape[-2],
            heads=first.heads,
            kv_heads=first.kv_heads,
            key_size=first.key_size,
            value_size=first.value_size,
            is_gelu=fed[0].activation == "gelu",
            experts=max(_experts(part) for part in fed),
            norm_epsilon=first.norm_epsilon,
            score_scale=first.scale,
            embedding_scale=ends.embedding_scale,
        )

    def _layer(self, block: NativeBlock) -> LayerStruct:
        w, fed, shape = block.weights, block.weights.feed_forward, block.shape
        gate, up, down, experts = _fed(fed)
        return LayerStruct(
            q=struct_of(w.attention.q),
            k=struct_of(w.attention.k),
            v=struct_of(w.attention.v),
            output=struct_of(w.attention.output),
            gate=gate,
            up=up,
            down=down,
            experts=pointer(experts) if experts else None,
            attn_norm=self._vector(w.attn_norm),
            ffn_norm=self._vector(w.ffn_norm),
            q_norm=self._vector(w.attention.q_norm),
            k_norm=self._vector(w.attention.k_norm),
            attn_post_norm=self._vector(w.attn_post_norm),
            ffn_post_norm=self._vector(w.ffn_post_norm),
            window=shape.window or 0,
            turn=shape.turn,
        )

    def _vector(self, weight: mx.array | None) -> int | None:
        if weight is None:
            return None
        self._kept.append(host_view(weight).copy())
        return int(self._kept[-1].ctypes.data)


def _fed(
    w: FeedForwardWeights,
) -> tuple[MatrixStruct, MatrixStruct, MatrixStruct, ExpertsStruct | None]:
    """gate, up and down; of the first expert, where there are some."""
    require_plain(w)
    if isinstance(w, ExpertsWeights) and w.shared is not None:
        raise ValueError("Whole steps in C++ know no shared expert.")
    if not isinstance(w, ExpertsWeights):
        return struct_of(w.gate), struct_of(w.up), struct_of(w.down), None
    gate, up, down = native_stack(w.gate), native_stack(w.up), native_stack(w.down)
    experts = ExpertsStruct(
        router=struct_of(w.router),
        gate_bytes=gate.expert_bytes,
        up_bytes=up.expert_bytes,
        down_bytes=down.expert_bytes,
        count=gate.shape[0],
        used=w.used,
    )
    return gate.matrices[0], up.matrices[0], down.matrices[0], experts


def _experts(w: FeedForwardWeights) -> int:
    return w.gate.shape[0] if isinstance(w, ExpertsWeights) else 0


def _dimensions(block: NativeBlock) -> tuple[object, ...]:
    s, fed = block.shape, block.weights.feed_forward
    sizes = (s.heads, s.kv_heads, s.key_size, s.value_size, s.norm_epsilon, s.scale)
    return *sizes, fed.gate.shape[-2], fed.activation
