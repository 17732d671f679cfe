"""Attention over grouped heads whose queries see the rows that an index of pools chooses, in
plain MLX (Qwen3.8-Flash-Next's).

A pool's key is the mean of the index keys of its rows, normed, and turned to where its first row
stands. The index queries are normed and turned as those of the attention; the score of a pool is
the sum over heads of ReLU(q · k). kernels/pooled_index.py says what a query sees then.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.kernels.block import Attend, AttentionWeights, BlockShape, Cosines, rms_norm
from ds4tui.kernels.linear import Linear
from ds4tui.kernels.pooled_index import attend_chosen, chosen_pools, pool_scores
from ds4tui.kernels.rope import turned
from ds4tui.kernels.streams import Step

# Of rows at positions int32 [3, N].
TurnAt = Callable[[npt.NDArray[np.int32]], Cosines]


@dataclass(frozen=True, slots=True)
class IndexShape:
    """`kept` pools of `size` rows are seen, of as many as there are."""

    heads: int
    key_size: int
    size: int
    kept: int


@dataclass(frozen=True, slots=True)
class IndexWeights:
    """The norms are of each head: [key_size]."""

    q: Linear
    k: Linear
    q_norm: mx.array
    k_norm: mx.array


class IndexedKeeper(Protocol):
    """Where keys, values, index keys and positions are kept (engine/state/indexed.py)."""

    def append(self, *rows: mx.array) -> tuple[mx.array, ...]: ...
    def pools(
        self, pooling: Callable[[int, tuple[mx.array, ...]], mx.array]
    ) -> mx.array | None: ...


class IndexedAttention:
    """n [T, width], float32 and normed, to [T, width]. Products are made, and rows kept, in
    `dtype`. `attend` serves while all rows are seen."""

    def __init__(
        self,
        weights: AttentionWeights,
        shape: BlockShape,
        index: tuple[IndexWeights, IndexShape],
        attend: Attend,
        turn_at: TurnAt,
        dtype: mx.Dtype,
    ) -> None:
        self._w, self._shape, self._attend, self._dtype = weights, shape, attend, dtype
        self._index, self._index_shape = index
        self._turn_at = turn_at

    def __call__(self, n: mx.array, layer: IndexedKeeper, step: Step) -> mx.array:
        w, shape, turn = self._w, self._shape, step.cosines[self._shape.turn]
        n = n.astype(self._dtype)
        queries, gates = mx.split(w.q(n), [shape.heads * shape.key_size], axis=-1)
        q = self._turned(_heads(queries, shape.heads), w.q_norm, turn)
        k = self._turned(_heads(w.k(n), shape.kv_heads), w.k_norm, turn)
        positions = mx.array(np.ascontiguousarray(step.positions.T))[None]
        rows = k, _heads(w.v(n), shape.kv_heads), self._index.k(n)[None], positions
        keys, values, _, _ = layer.append(*rows)
        pools = layer.pools(partial(self._pooled, n.shape[0], keys.shape[1], step))
        mixed = self._mixed(q, keys, values, n, pools, turn)
        mixed = mixed.swapaxes(0, 1).reshape(n.shape[0], -1)
        return w.output(mixed * mx.sigmoid(gates))

    def _mixed(
        self,
        q: mx.array,
        keys: mx.array,
        values: mx.array,
        n: mx.array,
        pools: mx.array | None,
        turn: Cosines,
    ) -> mx.array:
        size, kept = self._index_shape.size, self._index_shape.kept
        first = keys.shape[1] - n.shape[0]
        if pools is None or pools.shape[1] <= kept:
            return self._attend(q, keys, values, self._shape.scale, first, None)
        heads = _heads(self._index.q(n), self._index_shape.heads)
        asked = self._turned(heads, self._index.q_norm, turn).astype(mx.float32)
        scores = pool_scores(asked, pools[0].astype(mx.float32))
        chosen = chosen_pools(scores, first, size, kept)
        return attend_chosen(q, keys, values, self._shape.scale, first, chosen, size, kept)

    def _pooled(
        self, count: int, length: int, step: Step, pool: int, rows: tuple[mx.array, ...]
    ) -> mx.array:
        """As engine.state.indexed.Pooling; `count` rows of `length` are those of the step."""
        size = self._index_shape.size
        keys, positions = rows[2].astype(mx.float32), rows[3]
        means = keys.reshape(1, -1, size, keys.shape[-1]).mean(axis=2).astype(self._dtype)
        first = pool * size - (length - count)
        if first >= 0:  # what the step brought needs not be read back
            at = step.positions[:, first : first + positions.shape[1] : size]
        else:
            at = np.asarray(positions[0, ::size]).T
        return self._turned(means, self._index.k_norm, self._turn_at(at))

    def _turned(self, x: mx.array, norm: mx.array | None, turn: Cosines) -> mx.array:
        assert norm is not None
        return turned(rms_norm(x, norm, self._shape.norm_epsilon), *turn)


def _heads(x: mx.array, heads: int) -> mx.array:
    """[T, H * D] to [H, T, D]."""
    return x.reshape(x.shape[0], heads, -1).swapaxes(0, 1)
