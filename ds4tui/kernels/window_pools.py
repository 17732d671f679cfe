"""Attention to a window of rows and to pools of all rows before, in plain MLX (DeepSeek V4).

    r     = RMSNorm(Wqa n) * w,  q_h = RMSNorm(Wqb r)     the end of each head turned
    kv    = RMSNorm(Wkv n) * w                            its end turned: key and value of all heads
    o_h   = Σ_s softmax_s(scale q_h · kv_s) kv_s          its end turned back, since values turned
over the last `window` rows, itself included, and the pools that are whole (kernels/compressors.py);
a head's sink takes part in the denominator alone. Of pools an index may choose: those of the
highest Σ_h (Wp n)_h ReLU(q_h · key), with q = Wiq r, and keys that a compressor of its own makes.
Heads go in groups through a matrix each, and what these give through one.
"""

from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from ds4tui.kernels.attention import SCORES_MAX
from ds4tui.kernels.block import Cosines, rms_norm
from ds4tui.kernels.compressors import Compressor, turned_end
from ds4tui.kernels.linear import Linear
from ds4tui.kernels.pooled_index import GATHER_SHARE, chosen_pools, pool_scores, whole_pools
from ds4tui.kernels.pooled_latents import by_head, heads_first
from ds4tui.kernels.stack import Stack
from ds4tui.kernels.streams import Step


class RowKeeper(Protocol):
    """engine.state.RawRowsLayer."""

    length: int

    def append(self, *rows: mx.array) -> tuple[mx.array, ...]: ...


class PoolKeeper(Protocol):
    """engine.state.PoolLayer."""

    def append(self, count: int, *pools: mx.array) -> tuple[mx.array, ...]: ...


class Keeper(Protocol):
    """engine.state.RawAndPools."""

    @property
    def raw(self) -> RowKeeper: ...
    @property
    def pools(self) -> PoolKeeper: ...


@dataclass(frozen=True, slots=True)
class WindowShape:
    """`rotation`: which of the step's rotations turns this block."""

    heads: int
    size: int
    window: int
    rotation: int
    norm_epsilon: float

    @property
    def scale(self) -> float:
        return float(self.size**-0.5)


@dataclass(frozen=True, slots=True)
class WindowWeights:
    """sinks float32 [heads]; groups: a matrix [rank, heads of a group * size] a group."""

    q_a: Linear
    q_norm: mx.array
    q_b: Linear
    kv: Linear
    kv_norm: mx.array
    sinks: mx.array
    groups: Stack
    output: Linear


@dataclass(frozen=True, slots=True)
class PoolIndex:
    """Chooses at most `kept` pools a query."""

    compressor: Compressor
    q: Linear
    shares: Linear
    heads: int
    kept: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What queries see beside their window: pools [P, size] of `ratio` rows, and, where an index
    chose among them, bool [T, P], at most `kept` a query."""

    pools: mx.array
    ratio: int
    chosen: mx.array | None = None
    kept: int = 0


class WindowOnly:
    """A block without pools: n [T, width], float32 and normed, to [T, width]. Products are made,
    and rows kept, in `dtype`."""

    def __init__(self, weights: WindowWeights, shape: WindowShape, dtype: mx.Dtype) -> None:
        self._w, self._shape, self._dtype = weights, shape, dtype

    def __call__(self, n: mx.array, layer: RowKeeper, step: Step) -> mx.array:
        rows, cosines = n.astype(self._dtype), step.cosines[self._shape.rotation]
        first = layer.length
        q, _ = self._queries(rows, cosines)
        (held,) = layer.append(self._kv(rows, cosines))
        return self._given(q, held, None, first, cosines)

    def _queries(self, rows: mx.array, cosines: Cosines) -> tuple[mx.array, mx.array]:
        """[H, T, size], and the low rows that they are made of."""
        w, shape = self._w, self._shape
        low = rms_norm(w.q_a(rows), w.q_norm, shape.norm_epsilon)
        q = heads_first(w.q_b(low), shape.heads)
        return turned_end(mx.fast.rms_norm(q, None, shape.norm_epsilon), cosines), low

    def _kv(self, rows: mx.array, cosines: Cosines) -> mx.array:
        w = self._w
        kv = rms_norm(w.kv(rows), w.kv_norm, self._shape.norm_epsilon)
        return turned_end(kv[None], cosines).astype(self._dtype)

    def _given(
        self, q: mx.array, held: mx.array, seen: Seen | None, first: int, cosines: Cosines
    ) -> mx.array:
        w, shape = self._w, self._shape
        found = attend_window(q, held[0], w.sinks, shape.scale, first, shape.window, seen)
        found = turned_end(found, cosines, backwards=True).swapaxes(0, 1)
        groups = w.groups.shape[0]
        grouped = found.reshape(found.shape[0], groups, -1).swapaxes(0, 1)
        mixed = by_head(w.groups, grouped.astype(self._dtype)).swapaxes(0, 1)
        return w.output(mixed.reshape(mixed.shape[0], -1))


class WindowPools(WindowOnly):
    """A block with pools. Of a row are kept, for a while, its key and value and what pools are made
    of; of pools all."""

    def __init__(
        self,
        weights: WindowWeights,
        shape: WindowShape,
        compressor: Compressor,
        index: PoolIndex | None,
        dtype: mx.Dtype,
    ) -> None:
        super().__init__(weights, shape, dtype)
        self._compressor, self._index = compressor, index

    def __call__(self, n: mx.array, layer: Keeper, step: Step) -> mx.array:  # type: ignore[override]
        rows, cosines = n.astype(self._dtype), step.cosines[self._shape.rotation]
        q, low = self._queries(rows, cosines)
        first, made = layer.raw.length, [self._compressor.rows(rows)]
        if self._index is not None:
            made.append(self._index.compressor.rows(rows))
        kinds = [kind for of_one in made for kind in of_one]
        held, *parts = layer.raw.append(self._kv(rows, cosines), *kinds)
        pools = layer.pools.append(len(rows), *self._pooled(first, parts))
        seen = self._seen(pools, n, low, first, cosines) if pools[0].shape[1] else None
        return self._given(q, held, seen, first, cosines)

    def _pooled(self, first: int, parts: list[mx.array]) -> list[mx.array]:
        """The pools that end in these rows, and those of the index, [1, P, ..]."""
        compressors = [self._compressor]
        if self._index is not None:
            compressors.append(self._index.compressor)
        of_one = len(parts) // len(compressors)
        pools = [
            compressor.pooled(first // compressor.size, *parts[i * of_one : (i + 1) * of_one])
            for i, compressor in enumerate(compressors)
        ]
        return [pool[None].astype(self._dtype) for pool in pools]

    def _seen(
        self,
        pools: tuple[mx.array, ...],
        n: mx.array,
        low: mx.array,
        first: int,
        cosines: Cosines,
    ) -> Seen:
        index, ratio, own = self._index, self._compressor.size, pools[0][0]
        if index is None or len(own) <= index.kept:
            return Seen(own, ratio)
        q = turned_end(heads_first(index.q(low), index.heads), cosines).astype(mx.float32)
        scores = pool_scores(q, pools[1][0].astype(mx.float32), index.shares(n))
        return Seen(own, ratio, chosen_pools(scores, first, ratio, index.kept), index.kept)


def attend_window(
    q: mx.array,
    rows: mx.array,
    sinks: mx.array,
    scale: float,
    first: int,
    window: int,
    seen: Seen | None,
) -> mx.array:
    """q [H, T, D] of rows from `first` on and rows [S, D] that end with theirs, to [H, T, D] in the
    dtype of q. Scores and softmax are float32; of queries few enough are done at a time that about
    SCORES_MAX numbers exist beside the rows."""
    heads, count, width = q.shape
    others = 0 if seen is None else seen.pools.shape[0]
    if seen is not None and _gathers(seen):
        others = seen.kept * (1 + width // heads)
    tile = max(1, SCORES_MAX // (heads * (window + others)))
    tile, outs, base = min(tile, max(window, 1)), [], first + count - len(rows)
    for start in range(0, count, tile):
        end = min(start + tile, count)
        low = max(0, first + start - window + 1)
        own = rows[low - base : first + end - base]
        part = None if seen is None else _of_queries(seen, start, end)
        outs.append(_attended(q[:, start:end], own, low, first + start, window, sinks, scale, part))
        if end < count:
            mx.eval(outs[-1])
    return outs[0] if len(outs) == 1 else mx.concatenate(outs, axis=1)


def _of_queries(seen: Seen, start: int, end: int) -> Seen:
    chosen = None if seen.chosen is None else seen.chosen[start:end]
    return Seen(seen.pools, seen.ratio, chosen, seen.kept)


def _gathers(seen: Seen) -> bool:
    return seen.chosen is not None and seen.pools.shape[0] > GATHER_SHARE * seen.kept


def _attended(
    q: mx.array,
    own: mx.array,
    low: int,
    first: int,
    window: int,
    sinks: mx.array,
    scale: float,
    seen: Seen | None,
) -> mx.array:
    """`own` are rows from `low` on."""
    heads, count, _ = q.shape
    queries, rows = mx.arange(first, first + count)[:, None], mx.arange(low, low + own.shape[0])
    in_window = (rows <= queries) & (rows > queries - window)
    scores = [mx.where(in_window, (q @ own.T).astype(mx.float32) * scale, -mx.inf)]
    pools = None if seen is None else _pools_of(seen, first, count)
    if pools is not None:
        values, is_seen = pools
        if values.ndim == 2:
            alike = (q @ values.T).astype(mx.float32)
        else:  # of each query its own
            alike = (q.swapaxes(0, 1) @ values.swapaxes(1, 2)).astype(mx.float32).swapaxes(0, 1)
        scores.append(mx.where(is_seen, alike * scale, -mx.inf))
    sink = mx.broadcast_to(sinks[:, None, None], (heads, count, 1))
    weights = mx.softmax(mx.concatenate([*scores, sink], axis=-1), axis=-1).astype(q.dtype)
    found = weights[..., : own.shape[0]] @ own
    if pools is None:
        return found
    shares = weights[..., own.shape[0] : -1]
    if values.ndim == 2:
        return found + shares @ values
    return found + (shares.swapaxes(0, 1) @ values).swapaxes(0, 1)


def _pools_of(seen: Seen, first: int, count: int) -> tuple[mx.array, mx.array]:
    """Pools [P, D] that all queries look at, or [T, kept, D] of each, and bool [T, ..] which of
    them it sees."""
    number = seen.pools.shape[0]
    if seen.chosen is None:
        return seen.pools, mx.arange(number) < whole_pools(first, count, seen.ratio)[:, None]
    if not _gathers(seen):
        return seen.pools, seen.chosen
    places = mx.where(seen.chosen, mx.arange(number), number)
    places = mx.sort(places, axis=-1)[:, : seen.kept]
    is_seen = places < number
    return seen.pools[mx.where(is_seen, places, 0)], is_seen
