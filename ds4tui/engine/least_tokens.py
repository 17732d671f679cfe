"""How few tokens a text can have, told in milliseconds.

Encoding megabytes takes minutes; that they do not fit any context can be told without. A token
that stands for n bytes has n shares of 1/n. A byte's share is at most that of the longest token
it occurs in; so the shares of a text's bytes add up to no more than the tokens it has.
"""

import math
from collections.abc import Iterable

import numpy as np

# Bytes of characters beyond ASCII, all of which UTF-8 needs. Without a token for each, one unknown
# token may stand for a whole character.
_BEYOND_ASCII = range(0x80, 0xF5)


class LeastTokens:
    """`pieces` are the bytes of every token that text may become."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        known = [piece for piece in pieces if piece]
        lengths = np.array([len(piece) for piece in known], dtype=np.int64)
        longest = np.zeros(256, dtype=np.int64)
        np.maximum.at(longest, np.frombuffer(b"".join(known), np.uint8), lengths.repeat(lengths))
        self._shares = 1 / np.maximum(longest, 1)
        alone = {piece[0] for piece in known if len(piece) == 1}
        # A byte without a token of its own may be left out.
        self._shares[[byte for byte in range(256) if byte not in alone]] = 0
        if not alone.issuperset(_BEYOND_ASCII):
            self._shares[0x80:] = 0

    def of(self, text: str) -> int:
        """Lone surrogates count as less than what they become."""
        data = np.frombuffer(text.encode("utf-8", "replace"), np.uint8)
        total = float(np.bincount(data, minlength=256) @ self._shares)
        return math.ceil(total * (1 - 1e-9))  # rounding must not make it one more
