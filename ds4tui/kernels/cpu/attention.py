"""The CPU twin of causal attention: NumPy's OpenBLAS for the products, tile by tile.

A tile of queries sees only the keys up to its last row, so about half of the scores of a
first chunk are never computed, and only its own square needs a mask.
"""

from functools import cache
from typing import cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.kernels.cpu.linear import host_view
from ds4tui.kernels.cpu.threads import workers

Floats = npt.NDArray[np.float32]

TILE_ROWS = 64  # large enough for OpenBLAS to reach its rate, small enough to waste little
SCORES_MAX = 2 * 2**20  # scores at a time (8 MiB): they are passed over five times


def attend(q: mx.array, k: mx.array, v: mx.array, scale: float, first_position: int) -> mx.array:
    """As `kernels.attention.attend`, over MLX arrays."""
    queries, keys, values, threads = host_view(q), host_view(k), host_view(v), workers()
    out = np.empty((*q.shape[:2], v.shape[2]), np.float32)

    def mix(tile: slice) -> None:
        first = first_position + tile.start
        out[:, tile] = host_attend(queries[:, tile], keys, values, scale, first)

    threads.each(threads.tiles(q.shape[1]), mix)
    return mx.array(out).astype(q.dtype)


def host_attend(q: Floats, k: Floats, v: Floats, scale: float, first_position: int) -> Floats:
    """As `kernels.attention.attend`, over float32 arrays, on the caller's thread; returns a new
    [H, T, Dv]."""
    heads, count, size = q.shape
    groups, width = v.shape[0], v.shape[2]
    grouped = (q * np.float32(scale)).reshape(groups, heads // groups, count, size)
    keys = k.swapaxes(1, 2)
    if count == 1:  # a decode step: no mask, no tiles, and all heads in one product
        seen = first_position + 1
        mixed = _mixed(grouped[:, :, 0], keys[:, :, :seen], v[:, :seen], None)
        return mixed.reshape(heads, 1, width)
    out = np.empty((groups, heads // groups, count, width), np.float32)
    for start, end in _tiles(count, heads // groups * (first_position + count)):
        seen, rows = first_position + end, end - start
        for group in range(groups):
            queries = grouped[group, :, start:end].reshape(-1, size)
            mixed = _mixed(queries, keys[group, :, :seen], v[group, :seen], _later(rows))
            out[group, :, start:end] = mixed.reshape(-1, rows, width)
    return out.reshape(heads, count, width)


def _tiles(count: int, scores_per_row: int) -> list[tuple[int, int]]:
    rows = min(TILE_ROWS, max(1, SCORES_MAX // scores_per_row))
    return [(start, min(start + rows, count)) for start in range(0, count, rows)]


def _mixed(q: Floats, keys: Floats, values: Floats, later: Floats | None) -> Floats:
    """q [.., R, D], keys [.., D, S], values [.., S, Dv] to [.., R, Dv]. `later` [n, n] hides of
    the last n keys those behind the query, for each n queries of the R."""
    scores = q @ keys
    if later is not None:
        rows = len(later)
        own = scores.reshape(-1, rows, scores.shape[-1])[:, :, -rows:]
        own += later
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    totals = scores.sum(axis=-1, keepdims=True)
    mixed = cast(Floats, scores @ values)
    mixed /= totals  # [R, Dv] divisions instead of [R, S]
    return mixed


@cache
def _later(rows: int) -> Floats:
    return np.triu(np.full((rows, rows), -np.inf, np.float32), 1)
