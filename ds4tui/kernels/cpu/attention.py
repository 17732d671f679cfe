"""The CPU twin of causal attention: NumPy's OpenBLAS for the products, tile by tile.

A tile of queries sees only the keys up to its last row, so about half of the scores of a
first chunk are never computed, and only its own square needs a mask.
"""

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.kernels.cpu.linear import host_view

Floats = npt.NDArray[np.float32]

TILE_ROWS = 128  # large enough for OpenBLAS to reach its rate, small enough to waste little
SCORES_MAX = 2 * 2**20  # scores at a time (8 MiB): they are passed over five times


def attend(q: mx.array, k: mx.array, v: mx.array, scale: float, first_position: int) -> mx.array:
    """As `kernels.attention.attend`, over MLX arrays."""
    out = host_attend(host_view(q), host_view(k), host_view(v), scale, first_position)
    return mx.array(out).astype(q.dtype)


def host_attend(q: Floats, k: Floats, v: Floats, scale: float, first_position: int) -> Floats:
    """As `kernels.attention.attend`, over float32 arrays; returns a new [H, T, Dv]."""
    heads, count, _ = q.shape
    share = heads // k.shape[0]  # query heads that read the same keys
    out = np.empty((heads, count, v.shape[2]), np.float32)
    for start, end in _tiles(count, share, first_position):
        seen = first_position + end
        for group in range(k.shape[0]):
            part = slice(group * share, (group + 1) * share)
            out[part, start:end] = _tile(
                q[part, start:end], k[group, :seen], v[group, :seen], scale
            )
    return out


def _tiles(count: int, share: int, first: int) -> list[tuple[int, int]]:
    rows = min(TILE_ROWS, max(1, SCORES_MAX // (share * (first + count))))
    return [(start, min(start + rows, count)) for start in range(0, count, rows)]


def _tile(q: Floats, k: Floats, v: Floats, scale: float) -> Floats:
    """q [share, rows, D] against one head's keys; the last `rows` keys are the queries' own."""
    share, rows, size = q.shape
    seen = k.shape[0]
    scores = (q.reshape(share * rows, size) * np.float32(scale)) @ k.T
    if rows > 1:
        own = scores.reshape(share, rows, seen)[:, :, seen - rows :]
        own[:, np.triu(np.ones((rows, rows), bool), 1)] = -np.inf
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    totals = scores.sum(axis=-1, keepdims=True)
    mixed: Floats = (scores @ v) / totals  # dividing [rows, Dv] is cheaper than [rows, S]
    return mixed.reshape(share, rows, v.shape[1])
