"""Which exceptions say that there was no memory, and that nothing else is wrong.

NumPy and Python raise MemoryError, as does MLX for std::bad_alloc. What MLX's allocators say
themselves comes as a RuntimeError, of which only the words tell: "[malloc] Unable to allocate N
bytes." and "cudaMallocAsync(...) failed: out of memory" on CUDA, "[metal::malloc] Attempting to
allocate ..." and "[metal::malloc] Resource limit (N) exceeded." on Metal, where a command that
finds no memory fails with "Insufficient Memory". (On a CPU MLX 0.32 does not say anything: the
process is killed. There only what is asked before can help.)
"""

import re

_WORDS = re.compile(
    r"\[(metal::)?malloc(_or_wait)?\]|out of memory|insufficient memory|bad_alloc", re.IGNORECASE
)


def is_no_memory(exc: BaseException) -> bool:
    """Whether memory that was asked for could not be had."""
    if isinstance(exc, MemoryError):
        return True
    return isinstance(exc, RuntimeError) and _WORDS.search(str(exc)) is not None
