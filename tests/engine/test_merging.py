"""Merging is what its definition says, and what the tokenizers library does where both can."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import BPE

from ds4tui.engine.merging import Rank, merge
from tests.scale import scaled


def by_definition(symbols: list[str], rank: Rank) -> list[str]:
    """Look at all pairs, join the best and leftmost, begin again."""
    symbols = list(symbols)
    while True:
        found = [
            (value, place)
            for place in range(len(symbols) - 1)
            if (value := rank(symbols[place], symbols[place + 1])) is not None
        ]
        if not found:
            return symbols
        _, place = min(found)
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]


texts = st.text("abc", max_size=24)


@settings(max_examples=scaled(600))
@given(text=texts, known=st.dictionaries(st.text("abc", min_size=2, max_size=6), st.integers(0, 3)))
def test_texts_of_the_best_score_merge_first_and_the_leftmost_of_equals(
    text: str, known: dict[str, int]
) -> None:
    def rank(left: str, right: str) -> float | None:
        return known.get(left + right)

    assert merge(list(text), rank) == by_definition(list(text), rank)


def made_up_merges(draw: random.Random) -> list[tuple[str, str]]:
    """Merges in the order in which training makes them: of what there is already."""
    there, merges = list("abcd"), []
    for _ in range(draw.randint(1, 12)):
        pair = (draw.choice(there), draw.choice(there))
        if len("".join(pair)) <= 8 and pair not in merges:
            merges.append(pair)
            there.append("".join(pair))
    return merges


@settings(max_examples=scaled(300))
@given(seed=st.integers(0, 2**32), text=st.text("abcd", max_size=40))
def test_ranked_pairs_merge_as_the_library_merges_them(seed: int, text: str) -> None:
    merges = made_up_merges(random.Random(seed))
    words = dict.fromkeys([*"abcd", *(a + b for a, b in merges)])
    vocabulary = {word: number for number, word in enumerate(words)}
    library = Tokenizer(BPE(vocabulary, merges))
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    ours = merge(list(text), lambda left, right: ranks.get((left, right)))
    assert ours == (library.encode(text).tokens if text else [])


def test_equal_texts_of_other_pairs_are_equally_good() -> None:
    """What ranked pairs cannot say: "aaa" is made of whichever pair is further left."""
    scores = {"aa": 0, "aaa": 1, "ba": -1}

    def rank(left: str, right: str) -> float | None:
        return scores.get(left + right)

    assert merge(list("baaaa"), rank) == ["ba", "aaa"]
    assert merge(["a", "aa", "a"], rank) == ["aaa", "a"]
    assert merge(["aa", "a", "aa"], rank) == ["aaa", "aa"]


def test_a_symbol_that_is_gone_merges_no_more() -> None:
    """The pair of the second and the third is outdated, though the third has become its text."""
    ranks = {("b", "a"): 0, ("aa", "a"): 1, ("a", "aa"): 5, ("ba", "aaa"): 6}
    assert merge(["b", "a", "aa", "a"], lambda left, right: ranks.get((left, right))) == ["baaaa"]


def test_nothing_and_one() -> None:
    assert merge([], lambda left, right: 0) == []
    assert merge(["a"], lambda left, right: 0) == ["a"]


def test_long_runs_do_not_take_square_time() -> None:
    calls = 0

    def rank(left: str, right: str) -> float | None:
        nonlocal calls
        calls += 1
        return len(left + right) if len(left + right) in (2, 4, 8) else None

    assert merge(["="] * 8000, rank) == ["=" * 8] * 1000
    assert calls < 8000 * 4
