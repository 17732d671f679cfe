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
class ImageRows:
    """What rows of images bring besides their embeddings.

    added: float32 [T, width] each, added to all rows behind each of the first blocks (zero for
    rows of text). sight: int32 [T], for each row the end of what it sees of the T: itself is the
    last, or its image's last row is, where images are seen whole.
    """

    added: tuple[npt.NDArray[np.float32], ...] = ()
    sight: npt.NDArray[np.int32] | None = None


@dataclass(frozen=True, slots=True)
class Ends:
    """What stands before and after the blocks. `output` is `embedding` itself where the model
    ties them. Embeddings of ids, not those that are given, are multiplied by the scale."""

    embedding: Linear
    norm: mx.array
    output: Linear
    norm_epsilon: float
    embedding_scale: float = 1.0


NO_IMAGES = ImageRows()


class Decoder(Protocol):
    def __call__(
        self,
        source: Source,
        layers: Sequence[Any],
        turns: Sequence[Turn],
        logits: Logits,
        images: ImageRows = NO_IMAGES,
    ) -> mx.array | None:
        """Append the rows to every layer; logits float32 [1 or T, vocab], or None. Each block
        takes the one of `turns` that its shape names.

        All work is done on return, so an error belongs to the step that made it.
        """


class DenseDecoder:
    """embedding, blocks, norm, output; matrices are multiplied, and keys and values kept, in
    `dtype`."""

    def __init__(self, ends: Ends, blocks: Sequence[Block], dtype: mx.Dtype) -> None:
        self._ends, self._blocks, self._dtype = ends, blocks, dtype

    def __call__(
        self,
        source: Source,
        layers: Sequence[KVAppender],
        turns: Sequence[Turn],
        logits: Logits,
        images: ImageRows = NO_IMAGES,
    ) -> mx.array | None:
        x, cosines = self._rows(source), [turn.device(mx.float32) for turn in turns]
        sight = () if images.sight is None else (images.sight,)
        for i, (block, layer) in enumerate(zip(self._blocks, layers, strict=True)):
            x = block(x, layer, cosines[block.shape.turn], *sight)
            if i < len(images.added):
                x = x + mx.array(images.added[i])
        result = None if logits == "none" else self._head(x[-1:] if logits == "last" else x)
        mx.eval(x if result is None else result, [layer.buffers() for layer in layers])
        return result

    def _rows(self, source: Source) -> mx.array:
        if isinstance(source, mx.array):
            return source.astype(mx.float32)
        return self._ends.embedding.rows(source).astype(mx.float32) * self._ends.embedding_scale

    def _head(self, x: mx.array) -> mx.array:
        ends = self._ends
        n = rms_norm(x, ends.norm, ends.norm_epsilon).astype(self._dtype)
        return ends.output(n).astype(mx.float32)
