"""A whole step of a dense decoder, in plain MLX: rows in, logits out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.kernels.block import Block, KVAppender, rms_norm
from ds4tui.kernels.linear import Linear
from ds4tui.kernels.rope import Turn

Logits = Literal["none", "last", "all"]
Source = npt.NDArray[np.int64] | mx.array  # ids [T], or embeddings [T, width]


@dataclass(frozen=True, slots=True)
class Ends:
    """What stands before and after the blocks. `output` is `embedding` itself where the model
    ties them."""

    embedding: Linear
    norm: mx.array
    output: Linear
    norm_epsilon: float


class Decoder(Protocol):
    def __call__(
        self, source: Source, layers: Sequence[Any], turn: Turn, logits: Logits
    ) -> mx.array | None:
        """Append the rows to every layer; logits float32 [1 or T, vocab], or None.

        All work is done on return, so an error belongs to the step that made it.
        """


class DenseDecoder:
    """embedding, blocks, norm, output; activations and KV in `dtype`."""

    def __init__(self, ends: Ends, blocks: Sequence[Block], dtype: mx.Dtype) -> None:
        self._ends, self._blocks, self._dtype = ends, blocks, dtype

    def __call__(
        self, source: Source, layers: Sequence[KVAppender], turn: Turn, logits: Logits
    ) -> mx.array | None:
        x = source if isinstance(source, mx.array) else self._ends.embedding.rows(source)
        x, cosines = x.astype(self._dtype), turn.device(mx.float32)
        for block, layer in zip(self._blocks, layers, strict=True):
            x = block(x, layer, cosines)
        result = None if logits == "none" else self._head(x[-1:] if logits == "last" else x)
        mx.eval(x if result is None else result, [layer.buffers() for layer in layers])
        return result

    def _head(self, x: mx.array) -> mx.array:
        ends = self._ends
        return ends.output(rms_norm(x, ends.norm, ends.norm_epsilon)).astype(mx.float32)
