"""Which blocks of GLM-5.2 have an index of their own, where the file does not say. No mlx.

Its files have a context of a million tokens; those of GLM-5 and 5.1, whose blocks all have one,
less. The others see what the last one before them chose.
"""

LONG_CONTEXT = 1_000_000
_FIRST, _NEXT, _EVERY = 3, 6, 4


def has_own_index(block: int) -> bool:
    """Blocks 0 to 2, 6, and every fourth from there: 21 of 78."""
    return block < _FIRST or (block >= _NEXT and (block - _NEXT) % _EVERY == 0)
