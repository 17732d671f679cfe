"""A decoder whose residual is several streams, in plain MLX: rows in, logits out.

The streams begin as copies of the embedding. Each part of a block reads one vector a row off
them, and what it gives is written back to all; how, is the business of its `Connection`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.kernels.block import Cosines, rms_norm
from ds4tui.kernels.decoder import Logits, Source
from ds4tui.kernels.feed_forward import FeedForward
from ds4tui.kernels.linear import Linear
from ds4tui.kernels.ngrams import NGramKeeper, NGrams
from ds4tui.kernels.rope import Turn


@dataclass(frozen=True, slots=True)
class Step:
    """What is known of the T rows of one step: ids int64 [T], None where only embeddings are
    given; positions int32 [3, T], in time, height and width; and the rotations that they make."""

    ids: npt.NDArray[np.int64] | None
    positions: npt.NDArray[np.int32]
    cosines: tuple[Cosines, ...] = ()

    @classmethod
    def of(
        cls,
        ids: npt.NDArray[np.int64] | None,
        positions: npt.NDArray[np.int32],
        turns: Sequence[Turn],
    ) -> "Step":
        """positions [T] or [3, T]."""
        apart = positions if positions.ndim == 2 else np.tile(positions, (3, 1))
        return cls(ids, apart, tuple(turn.device(mx.float32) for turn in turns))


class Connection(Protocol):
    """Between the streams, float32 [T, n, width], and one part of a block."""

    def read(self, streams: mx.array) -> tuple[mx.array, Any]:
        """What the part takes, float32 [T, width], and what `written` has to know."""

    def written(self, streams: mx.array, known: Any, given: mx.array) -> mx.array:
        """The streams after the part gave [T, width]."""


class OneStream:
    """Of a single stream, the usual residual: a norm in front of a part, whose result is added."""

    def __init__(self, norm: mx.array, epsilon: float) -> None:
        self._norm, self._epsilon = norm, epsilon

    def read(self, streams: mx.array) -> tuple[mx.array, None]:
        return rms_norm(streams[:, 0], self._norm, self._epsilon), None

    def written(self, streams: mx.array, known: None, given: mx.array) -> mx.array:
        return streams + given.astype(mx.float32)[:, None]


class Mixer(Protocol):
    """The part that sees other rows; it keeps what it needs of them in `layer`."""

    def __call__(self, n: mx.array, layer: Any, step: Step) -> mx.array: ...


class StreamPart(Protocol):
    """What has one layer of the state, in the order of the blocks."""

    def __call__(self, streams: mx.array, layer: Any, step: Step) -> mx.array: ...


class StreamBlock:
    """A mixer, and a feed-forward that takes its rows in `dtype`."""

    def __init__(
        self,
        mixing: tuple[Connection, Mixer],
        feeding: tuple[Connection, FeedForward],
        dtype: mx.Dtype,
    ) -> None:
        self._mixing, self._feeding, self._dtype = mixing, feeding, dtype

    def __call__(self, streams: mx.array, layer: Any, step: Step) -> mx.array:
        connection, mixer = self._mixing
        n, known = connection.read(streams)
        streams = connection.written(streams, known, mixer(n, layer, step))
        connection, feed_forward = self._feeding
        n, known = connection.read(streams)
        return connection.written(streams, known, feed_forward(n.astype(self._dtype)))


class KnowsTokens(Protocol):
    """What chooses by the rows' tokens: ids int64 [T], told before each step."""

    ids: npt.NDArray[np.int64] | None


class TokenBlock(StreamBlock):
    """One whose experts are chosen by tokens."""

    def __init__(
        self,
        mixing: tuple[Connection, Mixer],
        feeding: tuple[Connection, FeedForward],
        dtype: mx.Dtype,
        by_token: KnowsTokens,
    ) -> None:
        super().__init__(mixing, feeding, dtype)
        self._by_token = by_token

    def __call__(self, streams: mx.array, layer: Any, step: Step) -> mx.array:
        self._by_token.ids = step.ids
        return super().__call__(streams, layer, step)


class NGramPart:
    """N-grams, which are added to the streams in front of a block."""

    def __init__(self, ngrams: NGrams) -> None:
        self._ngrams = ngrams

    def __call__(self, streams: mx.array, layer: NGramKeeper, step: Step) -> mx.array:
        """ValueError for rows whose ids nobody knows."""
        if step.ids is None:
            raise ValueError("This model looks up n-grams of ids: rows need them.")
        return streams + self._ngrams(streams, step.ids, layer)


@dataclass(frozen=True, slots=True)
class StreamEnds:
    """What stands before and after the parts. `collapse` makes of the streams what the output
    matrix takes, [T, width]."""

    embedding: Linear
    streams: int
    collapse: Callable[[mx.array], mx.array]
    output: Linear


class StreamDecoder:
    """Matrices are multiplied, and rows kept, in `dtype`; the streams are float32."""

    def __init__(self, ends: StreamEnds, parts: Sequence[StreamPart], dtype: mx.Dtype) -> None:
        self._ends, self._parts, self._dtype = ends, parts, dtype

    def __call__(
        self, source: Source, layers: Sequence[Any], step: Step, logits: Logits
    ) -> mx.array | None:
        """Append the rows to every layer; logits float32 [1 or T, vocab], or None. All work is
        done on return, so an error belongs to the step that made it."""
        x = source if isinstance(source, mx.array) else self._ends.embedding.rows(source)
        streams = mx.repeat(x.astype(mx.float32)[:, None], self._ends.streams, axis=1)
        for part, layer in zip(self._parts, layers, strict=True):
            streams = part(streams, layer, step)
        result = None
        if logits != "none":
            result = self._head(streams[-1:] if logits == "last" else streams)
        kept = [layer.buffers() for layer in layers]
        mx.eval(streams if result is None else result, kept)
        return result

    def _head(self, streams: mx.array) -> mx.array:
        ends = self._ends
        return ends.output(ends.collapse(streams).astype(self._dtype)).astype(mx.float32)
