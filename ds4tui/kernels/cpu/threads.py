"""The threads of the CPU kernels: ours, and OpenBLAS told to use none of its own.

OpenBLAS's threads spin while they wait for each other inside every product. On a machine that
has something else to do, a product of a fraction of a millisecond then takes a whole time slice:
with two busy processes beside it, a decode step took ten times as long on two OpenBLAS threads
as on one. Our threads meet twice a block, sleep while they wait, and share all of the work.
"""

import ctypes
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np  # noqa: F401  the library must be loaded before it is looked for

log = logging.getLogger(__name__)

THREADS_MAX = 16  # beyond this the memory bus is full
TILE_ROWS = 128  # where OpenBLAS reaches its rate on one thread
TILE_ROWS_MIN = 16  # fewer rows read the matrices once more for less than that costs

Rows = slice


class RowWorkers:
    """Runs a task for each tile of rows, on several threads when that pays.

    Owned by the engine thread, which waits for all tiles. Tiles depend on the counts alone, so
    the same rows give the same bits.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads, "ds4tui-kernel") if threads > 1 else None

    def tiles(self, count: int) -> list[Rows]:
        """Tiles of about equal size, of at most TILE_ROWS rows; as many for each thread."""
        tiles = max(-(-count // TILE_ROWS), min(self.threads, count // TILE_ROWS_MIN))
        if tiles > 1:
            tiles = -(-tiles // self.threads) * self.threads
        rows = -(-count // max(1, tiles))
        return [slice(start, min(start + rows, count)) for start in range(0, count, rows)]

    def each(self, tiles: Sequence[Rows], task: Callable[[Rows], None]) -> None:
        """`task` for every tile; the last ones first, which have the most keys to look at."""
        if self._pool is None or len(tiles) == 1:
            for tile in tiles:
                task(tile)
            return
        for future in [self._pool.submit(task, tile) for tile in reversed(tiles)]:
            future.result()


_limit = THREADS_MAX


def limit_threads(threads: int) -> None:
    """Use at most so many threads. Before the first model is loaded only."""
    global _limit
    if workers.cache_info().currsize:
        raise RuntimeError("The threads of the CPU kernels are running already.")
    _limit = threads


@cache
def workers() -> RowWorkers:
    """The workers of this process. OpenBLAS is told to use one thread from now on; where it
    cannot be told, it keeps its own threads and there is one worker."""
    controlled = _one_blas_thread()
    threads = min(cpus(), _limit) if controlled else 1
    log.info("CPU kernels: %d threads, OpenBLAS %s", threads, controlled or "left as it is")
    return RowWorkers(threads)


def cpus() -> int:
    """CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _one_blas_thread() -> str:
    """Tell NumPy's OpenBLAS to use one thread; its name, or "" if there is none to tell."""
    for path in _loaded_openblas():
        library = ctypes.CDLL(str(path))
        for name in _SETTERS:
            setter = getattr(library, name, None)
            if setter is not None:
                setter(ctypes.c_int(1))
                return path.name
    return ""


# The wheels of NumPy add a prefix and a suffix to the names of their own copy.
_SETTERS = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
)


def _loaded_openblas() -> list[Path]:
    """Libraries of that name in this process; none where there is no /proc (macOS's NumPy
    multiplies with Accelerate)."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[5] for line in maps.splitlines() if "openblas" in line}
    return [Path(path) for path in sorted(paths)]
