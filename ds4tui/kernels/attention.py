"""Causal attention over grouped heads, in plain MLX: the reference of its twins.

For each query head h with its key head h // (H / Hkv):
    out_t = softmax_s(scale * q_t · k_s) · v_s   over the rows s <= first_position + t
"""

import mlx.core as mx

SCORES_MAX = 4 * 2**20  # scores at a time (16 MiB in float32): long contexts stay bounded


def attend(q: mx.array, k: mx.array, v: mx.array, scale: float, first_position: int) -> mx.array:
    """q [H, T, D], k [Hkv, S, D], v [Hkv, S, Dv] to [H, T, Dv], in the dtype of q.

    Query t is row `first_position + t` of the sequence and sees the rows up to itself;
    S >= first_position + T. Scores and softmax are float32. Queries go in tiles, so that
    no more than about SCORES_MAX scores (or one query's) exist at a time.
    """
    heads, count, _ = q.shape
    tile = max(1, SCORES_MAX // (heads * k.shape[1]))
    outs = []
    for start in range(0, count, tile):
        end = min(start + tile, count)
        outs.append(_tile(q[:, start:end], k, v, scale, first_position + start))
        if end < count:
            mx.eval(outs[-1])  # else the tiles' scores would all be pending at once
    return outs[0] if len(outs) == 1 else mx.concatenate(outs, axis=1)


def _tile(q: mx.array, k: mx.array, v: mx.array, scale: float, first: int) -> mx.array:
    heads, count, size = q.shape
    groups, seen = k.shape[0], first + count
    grouped = q.reshape(groups, heads // groups, count, size)
    scores = (grouped @ k[:, None, :seen].swapaxes(-1, -2)).astype(mx.float32) * scale
    hidden = mx.arange(seen) > mx.arange(first, seen)[:, None]  # [T, S]
    weights = mx.softmax(mx.where(hidden, -mx.inf, scores), axis=-1).astype(v.dtype)
    return (weights @ v[:, None, :seen]).reshape(heads, count, v.shape[-1])


def attend_fused(
    q: mx.array, k: mx.array, v: mx.array, scale: float, first_position: int
) -> mx.array:
    """The same through MLX's fused attention, which never builds the scores on a GPU."""
    seen = first_position + q.shape[1]
    out = mx.fast.scaled_dot_product_attention(
        q[None], k[None, :, :seen], v[None, :, :seen], scale=scale, mask="causal"
    )
    return out[0]
