"""The CPU twin of causal attention: NumPy's OpenBLAS for the products, tile by tile.

A tile of queries sees only the keys up to its last row, so about half of the scores of a
first chunk are never computed, and only its own square needs a mask. With a window it sees
no keys that lie before the window of its first row either.
"""

from functools import cache, lru_cache
from typing import cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.kernels.attention import first_seen
from ds4tui.kernels.cpu.linear import host_view
from ds4tui.kernels.cpu.threads import workers

Floats = npt.NDArray[np.float32]

TILE_ROWS = 64  # large enough for OpenBLAS to reach its rate, small enough to waste little
SCORES_MAX = 2 * 2**20  # scores at a time (8 MiB): they are passed over five times


def attend(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    scale: float,
    first_position: int,
    window: int | None = None,
) -> mx.array:
    """As `kernels.attention.attend`, over MLX arrays."""
    queries, keys, values, threads = host_view(q), host_view(k), host_view(v), workers()
    out = np.empty((*q.shape[:2], v.shape[2]), np.float32)

    def mix(tile: slice) -> None:
        first = first_position + tile.start
        out[:, tile] = host_attend(queries[:, tile], keys, values, scale, first, window)

    threads.each(threads.tiles(q.shape[1]), mix)
    return mx.array(out).astype(q.dtype)


def host_attend(
    q: Floats,
    k: Floats,
    v: Floats,
    scale: float,
    first_position: int,
    window: int | None = None,
) -> Floats:
    """As `kernels.attention.attend`, over float32 arrays, on the caller's thread; returns a new
    [H, T, Dv]."""
    heads, count, size = q.shape
    groups, width = v.shape[0], v.shape[2]
    grouped = (q * np.float32(scale)).reshape(groups, heads // groups, count, size)
    keys = k.swapaxes(1, 2)
    if count == 1:  # a decode step: no mask, no tiles, and all heads in one product
        seen = slice(first_seen(first_position, window), first_position + 1)
        mixed = _mixed(grouped[:, :, 0], keys[:, :, seen], v[:, seen], None)
        return mixed.reshape(heads, 1, width)
    out = np.empty((groups, heads // groups, count, width), np.float32)
    columns = first_position + count if window is None else window + TILE_ROWS
    for start, end in _tiles(count, heads // groups * columns):
        first, rows = first_position + start, end - start
        seen = slice(first_seen(first, window), first_position + end)
        hidden = _hidden(rows, first - seen.start, window)
        for group in range(groups):
            queries = grouped[group, :, start:end].reshape(-1, size)
            mixed = _mixed(queries, keys[group, :, seen], v[group, seen], hidden)
            out[group, :, start:end] = mixed.reshape(-1, rows, width)
    return out.reshape(heads, count, width)


def _tiles(count: int, scores_per_row: int) -> list[tuple[int, int]]:
    rows = min(TILE_ROWS, max(1, SCORES_MAX // scores_per_row))
    return [(start, min(start + rows, count)) for start in range(0, count, rows)]


def _mixed(q: Floats, keys: Floats, values: Floats, hidden: Floats | None) -> Floats:
    """q [.., R, D], keys [.., D, S], values [.., S, Dv] to [.., R, Dv]. `hidden` [n, m] is added
    to the scores of the last m keys, for each n queries of the R."""
    scores = q @ keys
    if hidden is not None:
        own = scores.reshape(-1, len(hidden), scores.shape[-1])[:, :, -hidden.shape[1] :]
        own += hidden
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    totals = scores.sum(axis=-1, keepdims=True)
    mixed = cast(Floats, scores @ values)
    mixed /= totals  # [R, Dv] divisions instead of [R, S]
    return mixed


def _hidden(rows: int, past: int, window: int | None) -> Floats:
    """-inf for what `rows` queries behind `past` rows do not see, 0 for the rest: [rows, m] for
    the last m of these rows, before which there is nothing to hide."""
    if window is None or past + rows <= window:
        return _later(rows)
    return _outside(rows, past, window)


@cache
def _later(rows: int) -> Floats:
    return np.triu(np.full((rows, rows), -np.inf, np.float32), 1)


@lru_cache(maxsize=16)  # a long chunk asks for few, again and again
def _outside(rows: int, past: int, window: int) -> Floats:
    distance = np.arange(past, past + rows)[:, None] - np.arange(past + rows)
    return np.where((distance < 0) | (distance >= window), -np.inf, 0.0).astype(np.float32)
