"""What a forward pass takes: the rows to evaluate and which logits to return."""

from dataclasses import dataclass
from typing import Literal

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.cache.timeline import ImageSpan

Logits = Literal["none", "last", "all"]


@dataclass(frozen=True, slots=True)
class ImageVectors:
    """What an encoder gives for V of the rows.

    at int64 [V]: which of them. vectors float32 [V, width], in place of their embeddings. added
    [V, width] each: what is added behind the first blocks. sight int32 [T]: the end of what each
    of all T rows sees of them, where images are seen whole (kernels/decoder.py).
    """

    at: npt.NDArray[np.int64]
    vectors: mx.array
    added: tuple[mx.array, ...] = ()
    sight: npt.NDArray[np.int32] | None = None

    def __post_init__(self) -> None:
        counts = {len(self.at), *(part.shape[0] for part in (self.vectors, *self.added))}
        if len(counts) != 1:
            raise ValueError(f"Image rows have parts of {sorted(counts)} rows.")


@dataclass(frozen=True, slots=True)
class Rows:
    """T consecutive rows of a timeline: exactly one of `ids` and `embeddings` is given.

    ids int64 [T], those of images the model's own; embeddings [T, width]; positions int32 [T], or
    [3, T] for the families that turn time, height and width apart; spans: the images among these
    rows; images: what stands in place of some rows of `ids`, whose ids count for nothing.
    """

    ids: npt.NDArray[np.int64] | None
    embeddings: mx.array | None
    positions: npt.NDArray[np.int32]
    spans: tuple[ImageSpan, ...] = ()
    logits: Logits = "last"
    images: ImageVectors | None = None

    def __post_init__(self) -> None:
        if (self.ids is None) == (self.embeddings is None):
            raise ValueError("Rows hold either ids or embeddings.")
        if self.positions.shape[-1] != len(self):
            raise ValueError(f"{len(self)} rows have positions of {self.positions.shape}.")
        if self.images is not None and self.ids is None:
            raise ValueError("Vectors of images stand among ids.")

    def __len__(self) -> int:
        if self.ids is not None:
            return len(self.ids)
        assert self.embeddings is not None
        return int(self.embeddings.shape[0])

    @classmethod
    def of_ids(cls, ids: npt.ArrayLike, first_position: int, logits: Logits = "last") -> "Rows":
        """Text rows at consecutive positions."""
        tokens = np.asarray(ids, dtype=np.int64)
        positions = np.arange(first_position, first_position + len(tokens), dtype=np.int32)
        return cls(tokens, None, positions, (), logits)
