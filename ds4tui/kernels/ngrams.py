"""Words of several tokens, looked up by a hash and added to the residual streams, in plain MLX
(the per-layer embeddings of Qwen3.8-Flash-Next).

For each n from 2 to `size` and each head h of that n, with the token x_p of row p and the n - 1
before it (`end` in place of those that do not belong: before the first row, and all up to the
last end of text before row p):
    row  = offset_h + (x_p m_0 ^ x_(p-1) m_1 ^ .. ^ x_(p-n+1) m_(n-1)) mod vocabulary_h
    e    = [table rows of all heads]
    g_i  = s(Nq(streams)_i · Nk(Wkey e)_i / sqrt(width))    s(a) = sign(a) sqrt(max(|a|, 1e-6))
    y_i  = sigmoid(g_i) * Wvalue e
    out  = y + silu(convolution over Nc(y))         each channel by itself; of rows p, p - size, ..
with Nq, Nk, Nc norms of each stream. What is kept of earlier rows are the last rows of Nc(y), and
the last size - 1 tokens, which say all that is needed of the timeline.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.kernels.delta import taken_tail
from ds4tui.kernels.feed_forward import silu
from ds4tui.kernels.linear import Linear

Ids = npt.NDArray[np.int64]
LEAST_GATE = 1e-6

# Rows of a table by their numbers, int64 [N]: float32 [N, values].
LookUp = Callable[[Ids], npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Hashing:
    """multipliers int64 [size]; offsets and vocabularies int64 [heads], those of n = 2 first,
    `heads` / (size - 1) of each n. `end` is the id that ends a text."""

    size: int
    multipliers: Ids
    offsets: Ids
    vocabularies: Ids
    end: int

    def rows(self, before: Ids, ids: Ids) -> Ids:
        """Numbers of the table's rows, int64 [T, heads], of tokens `ids` behind `before`
        [size - 1]."""
        tokens = np.concatenate([before, ids])
        start, mixed = self.size - 1, ids * self.multipliers[0]
        each, found = len(self.offsets) // (self.size - 1), []
        belongs = np.ones(len(ids), bool)
        for back in range(1, self.size):
            earlier = tokens[start - back : len(tokens) - back]
            belongs &= earlier != self.end
            mixed = mixed ^ (np.where(belongs, earlier, self.end) * self.multipliers[back])
            heads = slice((back - 1) * each, back * each)
            found.append(mixed[:, None] % self.vocabularies[heads] + self.offsets[heads])
        return np.concatenate(found, axis=1)


class NGramKeeper(Protocol):
    """What is kept of earlier rows (engine/state/recurrent.py)."""

    def held(self) -> tuple[mx.array, ...]:
        """The last rows of the convolution, and the last tokens."""

    def replace(self, rows: mx.array, tokens: mx.array, count: int) -> None: ...


@dataclass(frozen=True, slots=True)
class NGramWeights:
    """Norms float32 [n, width]; convolution float32 [n * width, kernel]."""

    look_up: LookUp
    key: Linear
    value: Linear
    key_norm: mx.array
    query_norm: mx.array
    convolution_norm: mx.array
    convolution: mx.array


class NGrams:
    """Streams float32 [T, n, width] to what is added to them. Products are made in `dtype`."""

    def __init__(
        self, weights: NGramWeights, hashing: Hashing, epsilon: float, dtype: mx.Dtype
    ) -> None:
        self._w, self._hashing, self._epsilon, self._dtype = weights, hashing, epsilon, dtype

    def __call__(self, streams: mx.array, ids: Ids, layer: NGramKeeper) -> mx.array:
        """`ids` [T] are those of the rows."""
        kept, before = layer.held()
        words = self._words(np.asarray(before).astype(np.int64), ids)
        given = self._given(streams, words)
        seen = mx.concatenate([kept, self._norm(given, self._w.convolution_norm).flatten(1)])
        local = silu(dilated(seen, self._w.convolution, self._hashing.size))
        tokens = np.concatenate([np.asarray(before), ids])[len(ids) :].astype(np.int32)
        layer.replace(taken_tail(seen, len(ids)), mx.array(tokens), len(ids))
        return given + local.reshape(given.shape)

    def _words(self, before: Ids, ids: Ids) -> mx.array:
        rows = self._hashing.rows(before, ids)
        return mx.array(self._w.look_up(rows.reshape(-1)).reshape(len(ids), -1))

    def _given(self, streams: mx.array, words: mx.array) -> mx.array:
        w, (_, _, width) = self._w, streams.shape
        words = words.astype(self._dtype)
        keys = w.key(words).astype(mx.float32).reshape(streams.shape)
        queries = self._norm(streams, w.query_norm)
        alike = (self._norm(keys, w.key_norm) * queries).sum(axis=-1) / math.sqrt(width)
        gates = mx.sqrt(mx.maximum(mx.abs(alike), LEAST_GATE)) * mx.sign(alike)
        return mx.sigmoid(gates)[:, :, None] * w.value(words).astype(mx.float32)[:, None]

    def _norm(self, x: mx.array, weight: mx.array) -> mx.array:
        return mx.fast.rms_norm(x, None, self._epsilon) * weight


def dilated(seen: mx.array, weight: mx.array, step: int) -> mx.array:
    """seen [(K - 1) * step + T, C] and weight [C, K] to [T, C]: of each row, and those `step`,
    2 * `step`, .. before it."""
    kernel = weight.shape[1]
    count = seen.shape[0] - (kernel - 1) * step
    total = seen[:count] * weight[:, 0]
    for i in range(1, kernel):
        total = total + seen[i * step : i * step + count] * weight[:, i]
    return total
