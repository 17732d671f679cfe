"""Attention over chosen pools of rows, in plain MLX.

Rows 0 to r-1 are pool 0, the next r pool 1, and so on. The query of row p sees the pools that are
whole by then, w < floor((p + 1) / r), of these the `kept` that an indexer scores highest, and all
rows of its own pool up to itself. Where no more pools are whole than are kept, that is all rows.

Which pools are chosen depends on their scores alone, not on how a prompt is cut: of equal scores
the earlier pools win, as many as are needed.
"""

import mlx.core as mx

from ds4tui.kernels.attention import SCORES_MAX

# A query's rows are gathered where they are this much fewer than all rows: a gathered row is
# copied, and multiplied by one query only.
GATHER_SHARE = 4


def whole_pools(first: int, count: int, size: int) -> mx.array:
    """How many pools of `size` rows each query from row `first` on sees: int32 [T]."""
    return (mx.arange(first, first + count) + 1) // size


def pool_scores(q: mx.array, pools: mx.array, shares: mx.array | None = None) -> mx.array:
    """Queries of the index [H, T, D] and its pools [P, D] to float32 [T, P]: what the heads find
    alike, and nothing where they find the contrary, added up, or by `shares` float32 [T, H]."""
    tile, outs = max(1, SCORES_MAX // max(1, q.shape[0] * pools.shape[0])), []
    for start in range(0, q.shape[1], tile):
        part = slice(start, start + tile)
        alike = mx.maximum((q[:, part] @ pools.T).astype(mx.float32), 0)
        if shares is not None:
            alike = alike * shares[part].T[:, :, None]
        outs.append(alike.sum(axis=0))
        if start + tile < q.shape[1]:
            mx.eval(outs[-1])
    return outs[0] if len(outs) == 1 else mx.concatenate(outs)


def chosen_pools(scores: mx.array, first: int, size: int, kept: int) -> mx.array:
    """Scores float32 [T, P] of pools of `size` rows, by queries from row `first` on: bool [T, P],
    which pools each query sees."""
    count, pools = scores.shape
    seen = mx.arange(pools) < whole_pools(first, count, size)[:, None]
    if pools <= kept:
        return seen
    scores = mx.where(seen, scores, -mx.inf)
    least = mx.sort(scores, axis=-1)[:, pools - kept, None]
    above, equal = scores > least, scores == least
    room = kept - above.sum(axis=-1, keepdims=True)
    return seen & (above | (equal & (mx.cumsum(equal.astype(mx.int32), axis=-1) <= room)))


def attend_chosen(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    scale: float,
    first: int,
    chosen: mx.array,
    size: int,
    kept: int,
) -> mx.array:
    """q [H, T, D], k [Hkv, S, D], v [Hkv, S, Dv] and `chosen` as above to [H, T, Dv], in the
    dtype of q; S = first + T. Scores and softmax are float32; of queries few enough are done at
    a time that about SCORES_MAX numbers exist beside the rows."""
    heads, count, _ = q.shape
    rows = (kept + 1) * size - 1
    gathers = k.shape[1] > GATHER_SHARE * rows
    values = rows * k.shape[0] * (k.shape[-1] + v.shape[-1]) if gathers else heads * k.shape[1]
    tile, outs = max(1, SCORES_MAX // values), []
    for start in range(0, count, tile):
        part = slice(start, min(start + tile, count))
        some = q[:, part], k, v, scale, first + start, chosen[part], size
        outs.append(_gathered(*some, kept) if gathers else _masked(*some))
        if part.stop < count:
            mx.eval(outs[-1])
    return outs[0] if len(outs) == 1 else mx.concatenate(outs, axis=1)


def _masked(
    q: mx.array, k: mx.array, v: mx.array, scale: float, first: int, chosen: mx.array, size: int
) -> mx.array:
    heads, count, width = q.shape
    groups, seen = k.shape[0], first + count
    rows, queries = mx.arange(seen), mx.arange(first, seen)
    ends = whole_pools(first, count, size) * size
    of_own = (rows >= ends[:, None]) & (rows <= queries[:, None])
    of_pools = mx.repeat(chosen, size, axis=1)[:, :seen]
    of_pools = mx.pad(of_pools, [(0, 0), (0, seen - of_pools.shape[1])])
    grouped = q.reshape(groups, heads // groups, count, width)
    scores = (grouped @ k[:, None, :seen].swapaxes(-1, -2)).astype(mx.float32) * scale
    weights = mx.softmax(mx.where(of_own | of_pools, scores, -mx.inf), axis=-1).astype(v.dtype)
    return (weights @ v[:, None, :seen]).reshape(heads, count, v.shape[-1])


def _gathered(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    scale: float,
    first: int,
    chosen: mx.array,
    size: int,
    kept: int,
) -> mx.array:
    heads, count, width = q.shape
    groups = k.shape[0]
    rows, is_seen = _rows_of(chosen, first, size, kept)
    # Heads of one group share the rows of their query: [Hkv, T, heads of it, rows].
    grouped = q.reshape(groups, heads // groups, count, width).swapaxes(1, 2)
    scores = (grouped @ k[:, rows].swapaxes(-1, -2)).astype(mx.float32) * scale
    scores = mx.where(is_seen[:, None], scores, -mx.inf)
    weights = mx.softmax(scores, axis=-1).astype(v.dtype)
    return (weights @ v[:, rows]).swapaxes(1, 2).reshape(heads, count, v.shape[-1])


def _rows_of(chosen: mx.array, first: int, size: int, kept: int) -> tuple[mx.array, mx.array]:
    """The rows that each query sees, in order, [T, kept * size + size - 1], and which of them it
    does: places that are left over hold row 0."""
    count, pools = chosen.shape
    places = mx.where(chosen, mx.arange(pools), pools)
    first_chosen = mx.sort(places, axis=-1)[:, :kept]
    within = mx.arange(size)
    of_pools = (first_chosen[:, :, None] * size + within).reshape(count, -1)
    are_pools = mx.repeat(first_chosen < pools, size, axis=1)
    own = whole_pools(first, count, size)[:, None] * size + within[:-1]
    are_own = own <= mx.arange(first, first + count)[:, None]
    rows = mx.concatenate([of_pools, own], axis=1)
    is_seen = mx.concatenate([are_pools, are_own], axis=1)
    return mx.where(is_seen, rows, 0), is_seen
