"""What the project's own lines hold, for tests that nothing is left behind."""

import gc
import tracemalloc
from pathlib import Path

import ds4tui

OURS = [Path(ds4tui.__file__).parent, Path(__file__).parent]


def traced_bytes() -> int:
    """Of what was allocated since tracemalloc started: a table of the interpreter, which may
    double at any time, is no leak of ours."""
    gc.collect()
    ours = [tracemalloc.Filter(True, f"{folder}/*") for folder in OURS]
    return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces(ours).traces)
