"""Which blocks of GLM-5 and after have an index of their own. No mlx.

A file says it in `attention.indexer.types`. Where it does not, a context of a million tokens means
GLM-5.2, whose other blocks see what the last one before them chose; in GLM-5 and 5.1 all have one.
"""

from typing import Any

LONG_CONTEXT = 1_000_000
_FIRST, _NEXT, _EVERY = 3, 6, 4


def own_indexes(types: Any, context_tokens: int, blocks: int) -> list[bool]:
    """Of each block. `types`, if the file has them, are of so many blocks at least."""
    if types is not None:
        return [bool(kind) for kind in types[:blocks]]
    return [context_tokens < LONG_CONTEXT or _is_own(i) for i in range(blocks)]


def _is_own(block: int) -> bool:
    """Blocks 0 to 2, 6, and every fourth from there: 21 of 78."""
    return block < _FIRST or (block >= _NEXT and (block - _NEXT) % _EVERY == 0)
