"""Small pages and snapshots whose numbers follow from the ids before them: a row that is handed
out for other ids is found at once."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import xxhash

from ds4tui.cache import kvmerge
from ds4tui.cache.kvarrays import HostBounded, HostPage, HostRows, HostSnapshot
from ds4tui.cache.timeline import Timeline

Array = npt.NDArray[Any]

IDENTITY = b"model-a"
HEADS, SIZE, LAYERS = 2, 4, 3  # the last layer is bounded


def merge_short_pages(patch: pytest.MonkeyPatch) -> None:
    """So that little conversations have pages to merge."""
    patch.setattr(kvmerge, "PAGE_POSITIONS_MAX", 120)
    patch.setattr(kvmerge, "SMALL_POSITIONS", 60)
    patch.setattr(kvmerge, "MERGED_POSITIONS_MIN", 60)


def tag(timeline: Timeline, position: int, what: str) -> int:
    """A number of 64 bits that only this prefix has."""
    return xxhash.xxh3_64_intdigest(timeline.digest(position) + what.encode())


def _filled(numbers: list[int], shape: tuple[int, ...]) -> Array:
    """float32 numbers of `shape` that follow from each number, one behind the other along a new
    first axis."""
    seeds = np.array(numbers, np.uint64)[:, None]
    places = np.arange(1, 1 + int(np.prod(shape)), dtype=np.uint64)[None]
    mixed = (seeds ^ (places * np.uint64(0x9E3779B97F4A7C15))) * np.uint64(0xBF58476D1CE4E5B9)
    return (mixed >> np.uint64(40)).astype(np.float32).reshape(len(numbers), *shape)


def true_page(timeline: Timeline, start: int, end: int) -> HostPage:
    """Rows [start, end) of `timeline`: layer 0 in float32 and float16, keys with their rows along
    the last axis, as a CPU keeps them; layer 1 in bfloat16; layer 2 has none."""
    seeds = [tag(timeline, position + 1, "row") for position in range(start, end)]
    rows = _filled(seeds, (HEADS, SIZE))  # [rows, heads, size]
    keys, values = rows.transpose(1, 2, 0), (rows.transpose(1, 0, 2) % 2039).astype(np.float16)
    bits = (rows.transpose(1, 0, 2).view(np.uint32) >> 16).astype(np.uint16)
    first = HostRows((keys, values), (2, 1), ("float32", "float16"))
    second = HostRows((bits,), (1,), ("bfloat16",))
    return HostPage(start, end, (first, second, None))


def true_snapshot(timeline: Timeline, logits: bool = True) -> HostSnapshot:
    """The bounded part at the end of `timeline`."""
    seed = tag(timeline, len(timeline), "bounded")
    matrix = _filled([seed], (2, 3, 3))[0]
    tail = _filled([seed ^ 1], (3, 5))[0]
    drawn = _filled([seed ^ 2], (11,))[0] if logits else None
    position = len(timeline)
    return HostSnapshot(position, (None, None, HostBounded.of(matrix, tail)), drawn)


def same_rows(found: HostRows | None, wanted: HostRows | None) -> bool:
    if found is None or wanted is None:
        return found is wanted
    pairs = zip(found.arrays, wanted.arrays, strict=True)
    same = all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in pairs)
    return same and found.axes == wanted.axes and found.dtypes == wanted.dtypes


def same_page(found: HostPage, wanted: HostPage) -> bool:
    if (found.start, found.end) != (wanted.start, wanted.end):
        return False
    return all(same_rows(a, b) for a, b in zip(found.layers, wanted.layers, strict=True))


def same_snapshot(found: HostSnapshot, wanted: HostSnapshot) -> bool:
    arrays: list[list[Array]] = []
    for snapshot in (found, wanted):
        held = [layer.arrays if layer else () for layer in snapshot.layers]
        logits = () if snapshot.logits is None else (snapshot.logits,)
        arrays.append([array for part in (*held, logits) for array in part])
    shapes = [[layer is None for layer in s.layers] for s in (found, wanted)]
    same = len(arrays[0]) == len(arrays[1]) and shapes[0] == shapes[1]
    return same and all(np.array_equal(a, b) for a, b in zip(*arrays, strict=True))
