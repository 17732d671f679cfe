"""Causal attention over grouped heads, in plain MLX: the reference of its twins.

For each query head h with its key head h // (H / Hkv):
    out_t = softmax_s(scale * q_t · k_s) · v_s   over the rows s <= first_position + t,
                                                 with a window W: the last W of them
"""

import mlx.core as mx
import numpy as np
import numpy.typing as npt

SCORES_MAX = 4 * 2**20  # scores at a time (16 MiB in float32): long contexts stay bounded


def attend(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    scale: float,
    first_position: int,
    window: int | None = None,
) -> mx.array:
    """q [H, T, D], k [Hkv, S, D], v [Hkv, S, Dv] to [H, T, Dv], in the dtype of q.

    Query t is row `first_position + t` of the sequence and sees the rows up to itself, at most
    `window` of them; S >= first_position + T. Scores and softmax are float32. Queries go in
    tiles, so that no more than about SCORES_MAX scores (or one query's) exist at a time.
    """
    heads, count, _ = q.shape
    columns = k.shape[1] if window is None else min(k.shape[1], window + count)
    tile = max(1, SCORES_MAX // (heads * columns))
    outs = []
    for start in range(0, count, tile):
        end = min(start + tile, count)
        outs.append(_tile(q[:, start:end], k, v, scale, first_position + start, window))
        if end < count:
            mx.eval(outs[-1])  # else the tiles' scores would all be pending at once
    return outs[0] if len(outs) == 1 else mx.concatenate(outs, axis=1)


def first_seen(position: int, window: int | None) -> int:
    """The first row that the query at `position` sees."""
    return 0 if window is None else max(0, position + 1 - window)


def _tile(
    q: mx.array, k: mx.array, v: mx.array, scale: float, first: int, window: int | None
) -> mx.array:
    heads, count, size = q.shape
    groups, low, seen = k.shape[0], first_seen(first, window), first + count
    grouped = q.reshape(groups, heads // groups, count, size)
    scores = (grouped @ k[:, None, low:seen].swapaxes(-1, -2)).astype(mx.float32) * scale
    scores = mx.where(_seen(low, first, seen, window), scores, -mx.inf)
    weights = mx.softmax(scores, axis=-1).astype(v.dtype)
    return (weights @ v[:, None, low:seen]).reshape(heads, count, v.shape[-1])


def _seen(low: int, first: int, seen: int, window: int | None) -> mx.array:
    """Which of the rows `low` to `seen` each query from `first` on sees: bool [T, S]."""
    rows, queries = mx.arange(low, seen), mx.arange(first, seen)[:, None]
    before = rows <= queries
    return before if window is None else before & (rows > queries - window)


def attend_images(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    scale: float,
    first_position: int,
    window: int | None,
    sight: npt.NDArray[np.int32],
) -> mx.array:
    """As `attend`, where query t also sees the rows behind it, up to new row `sight[t]` - 1 (of
    the T, int32 [T]): those of its image. A window hides what it hides otherwise."""
    grouped = q.reshape(k.shape[0], -1, *q.shape[1:])
    rows, queries = mx.arange(k.shape[1]) - first_position, mx.arange(q.shape[1])[:, None]
    seen = rows < mx.array(sight)[:, None]
    seen = seen if window is None else seen & (rows > queries - window)
    scores = (grouped @ k[:, None].swapaxes(-1, -2)).astype(mx.float32) * scale
    weights = mx.softmax(mx.where(seen, scores, -mx.inf), axis=-1).astype(v.dtype)
    return (weights @ v[:, None]).reshape(*q.shape[:2], v.shape[-1])


def attend_fused(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    scale: float,
    first_position: int,
    window: int | None = None,
) -> mx.array:
    """The same through MLX's fused attention, which never builds the scores on a GPU."""
    low, seen = first_seen(first_position, window), first_position + q.shape[1]
    mask: mx.array | str = "causal"
    if window is not None and seen - low > window:
        mask = _seen(low, first_position, seen, window)
    out = mx.fast.scaled_dot_product_attention(
        q[None], k[None, :, low:seen], v[None, :, low:seen], scale=scale, mask=mask
    )
    return out[0]
