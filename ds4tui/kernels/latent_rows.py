"""Latent attention whose rows carry their position (DeepSeek V2 and after, GLM-5), in plain MLX.

    q_h   = [nope | rope]          of Wq n, or of Wqb (RMSNorm(Wqa n) * w), the end turned
    row   = [RMSNorm(c) * w | k]   of Wkva n, k turned: what is kept of a token, for all heads
    out   = Wo [.. | Wvb_h Σ_s softmax_s(scale [Wkb_h q_h nope | q_h rope] · row_s) c_s | ..]
with Wkb taken to the queries and Wvb to what they found, so that latent rows are keys and values.

An index (DeepSeek V3.2, GLM-5) keeps LayerNorm(Wk n) of each row, its beginning turned. A query
sees the `kept` rows of the highest Σ_h (Wp n)_h ReLU(q_h · key) with q = Wiq of the same low rows,
to a factor that changes no order; all rows while there are not more. Blocks that share an index
see what the last one with an index of its own chose (GLM-5.2).
"""

from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from ds4tui.kernels.attention import attend
from ds4tui.kernels.block import Cosines, rms_norm
from ds4tui.kernels.linear import Linear
from ds4tui.kernels.pooled_index import attend_chosen, chosen_pools, pool_scores
from ds4tui.kernels.pooled_latents import LatentShape, by_head, heads_first
from ds4tui.kernels.rope import turned
from ds4tui.kernels.stack import Stack
from ds4tui.kernels.streams import Step


class LatentKeeper(Protocol):
    """engine.state.LatentLayer."""

    length: int

    def append(self, *rows: mx.array) -> tuple[mx.array, ...]: ...


@dataclass(frozen=True, slots=True)
class Queries:
    """`low` and its norm are None where queries have no low rank."""

    low: Linear | None
    norm: mx.array | None
    heads: Linear


@dataclass(frozen=True, slots=True)
class LatentRowWeights:
    """key_to_latent: a matrix [latent, nope] a head; latent_to_value: [value_size, latent]."""

    queries: Queries
    kv_a: Linear
    kv_norm: mx.array
    key_to_latent: Stack
    latent_to_value: Stack
    output: Linear


@dataclass(frozen=True, slots=True)
class RowIndex:
    """An index of single rows."""

    q: Linear
    k: Linear
    k_norm: mx.array
    k_bias: mx.array
    k_epsilon: float
    shares: Linear
    heads: int


class Choice:
    """What queries of the step at work see, from block to block: bool [T, S] of the last index
    that chose, None for all rows. `kept` rows at most are seen."""

    def __init__(self, kept: int) -> None:
        self.kept = kept
        self.rows: mx.array | None = None


class LatentRows:
    """n [T, width], float32 and normed, to [T, width]. Products are made, and rows kept, in
    `dtype`. `choice` is None in models without an index; `index` is None where a block has none
    of its own."""

    def __init__(
        self,
        weights: LatentRowWeights,
        shape: LatentShape,
        scale: float,
        index: RowIndex | None,
        choice: Choice | None,
        dtype: mx.Dtype,
    ) -> None:
        if index is not None and choice is None:
            raise ValueError("An index chooses for somebody.")
        self._w, self._shape, self._scale, self._dtype = weights, shape, scale, dtype
        self._index, self._choice = index, choice

    def __call__(self, n: mx.array, layer: LatentKeeper, step: Step) -> mx.array:
        w, shape, cosines = self._w, self._shape, step.cosines[0]
        rows, first = n.astype(self._dtype), layer.length
        low = self._low(rows)
        q = heads_first(w.queries.heads(low), shape.heads)
        held = self._kept(n, rows, low, layer, cosines)
        plain = shape.key_size - (held.shape[-1] - shape.latent)
        asked = by_head(w.key_to_latent, q[..., :plain])
        asked = mx.concatenate([asked, turned(q[..., plain:], *cosines)], axis=-1)
        values = by_head(w.latent_to_value, self._attended(asked, held, first))
        return w.output(values.swapaxes(0, 1).reshape(n.shape[0], -1))

    def _low(self, rows: mx.array) -> mx.array:
        queries = self._w.queries
        if queries.low is None or queries.norm is None:
            return rows
        return rms_norm(queries.low(rows), queries.norm, self._shape.norm_epsilon)

    def _kept(
        self,
        n: mx.array,
        rows: mx.array,
        low: mx.array,
        layer: LatentKeeper,
        cosines: Cosines,
    ) -> mx.array:
        """All rows [1, S, latent + turned], and what of them is seen told to `choice`. `rows` is n
        in the dtype of products."""
        w, shape = self._w, self._shape
        kv = w.kv_a(rows)
        latent = rms_norm(kv[:, : shape.latent], w.kv_norm, shape.norm_epsilon)
        key = turned(kv[None, :, shape.latent :], *cosines)
        row = mx.concatenate([latent[None], key], axis=-1).astype(self._dtype)
        if self._index is None:
            return layer.append(row)[0]
        first, index_row = layer.length, self._index_row(self._index, rows, cosines)
        held, keys = layer.append(row, index_row)
        self._choose(self._index, n, low, keys[0], first, cosines)
        return held

    def _index_row(self, index: RowIndex, rows: mx.array, cosines: Cosines) -> mx.array:
        keys = mx.fast.layer_norm(index.k(rows), index.k_norm, index.k_bias, index.k_epsilon)
        return turned(keys[None], *cosines).astype(self._dtype)

    def _choose(
        self,
        index: RowIndex,
        n: mx.array,
        low: mx.array,
        keys: mx.array,
        first: int,
        cosines: Cosines,
    ) -> None:
        assert self._choice is not None
        self._choice.rows = None
        if keys.shape[0] <= self._choice.kept:
            return
        q = turned(heads_first(index.q(low), index.heads), *cosines).astype(mx.float32)
        scores = pool_scores(q, keys.astype(mx.float32), index.shares(n))
        self._choice.rows = chosen_pools(scores, first, 1, self._choice.kept)

    def _attended(self, asked: mx.array, held: mx.array, first: int) -> mx.array:
        values, choice = held[..., : self._shape.latent], self._choice
        if choice is None or choice.rows is None:
            return attend(asked, held, values, self._scale, first)
        chosen, kept = choice.rows, choice.kept
        return attend_chosen(asked, held, values, self._scale, first, chosen, 1, kept)
