"""The merging of symbols that byte-level BPE and SentencePiece share.

Both begin with single characters and join neighbours, best pair first, until no pair may be
joined; of equally good ones the leftmost goes first. They differ in what makes a pair good: BPE
ranks pairs, SentencePiece the text that comes of one. Ranking pairs cannot say the latter (of
two pairs that make one text neither is better), so this is ours and not the library's.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import pairwise

# The best pair is the one with the least number; None for a pair that may not be joined.
Rank = Callable[[str, str], float | None]
# Rank, place of the left one and text of a pair that waits to be joined.
_Waiting = list[tuple[float, int, str]]


def merge(symbols: list[str], rank: Rank) -> list[str]:
    """`symbols` (none empty) after all merges. Takes O(n log n) steps; changes its argument."""
    end = len(symbols)
    after, before = list(range(1, end + 1)), list(range(-1, end - 1))
    waiting: _Waiting = [
        (value, place, left + right)
        for place, (left, right) in enumerate(pairwise(symbols))
        if (value := rank(left, right)) is not None
    ]
    heapify(waiting)
    while waiting:
        _, left, text = heappop(waiting)
        right = after[left]
        # Outdated if either has been merged meanwhile, unless what comes of it is the same.
        if right == end or not symbols[left] or symbols[left] + symbols[right] != text:
            continue
        symbols[left], symbols[right] = text, ""
        following = after[left] = after[right]
        if following < end:
            before[following] = left
            _push(waiting, rank(text, symbols[following]), left, text + symbols[following])
        previous = before[left]
        if previous >= 0:
            _push(waiting, rank(symbols[previous], text), previous, symbols[previous] + text)
    return [symbol for symbol in symbols if symbol]


def _push(waiting: _Waiting, value: float | None, place: int, text: str) -> None:
    if value is not None:
        heappush(waiting, (value, place, text))
