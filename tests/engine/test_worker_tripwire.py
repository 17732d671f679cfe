"""The tripwire: says once that nothing is reused, and why, and only when it is so."""

from ds4tui.engine.tripwire import MISSES, PROMPT_TOKENS_MIN, WATCHED, Tripwire


def watched(*decisions: tuple[int, int, str | None]) -> tuple[Tripwire, list[str]]:
    tripwire = Tripwire()
    return tripwire, [tripwire.watch(*decision) for decision in decisions]


def test_many_misses_are_told_once_with_the_usual_cause() -> None:
    miss = (5000, 20, "system text changed")
    tripwire, told = watched((5000, 0, "other conversation"), miss, miss, miss, miss)
    assert [bool(words) for words in told] == [False, False, False, True, False]
    assert told[3] == (
        "4 of the last 4 long prompts reused nothing (19,940 tokens computed anew); "
        "the usual cause: system text changed (3 of 4)"
    )
    assert tripwire.words.startswith("5 of the last 5")
    assert tripwire.cause == "system text changed"


def test_it_is_told_again_after_reuse_has_come_back_and_gone() -> None:
    miss, hit = (5000, 0, "tools changed"), (5000, 4900, None)
    tripwire, told = watched(*[miss] * MISSES, *[hit] * WATCHED)
    assert sum(map(bool, told)) == 1
    assert (tripwire.words, tripwire.cause) == ("", "")
    again = [tripwire.watch(*miss) for _ in range(MISSES)]
    assert [bool(words) for words in again] == [False, False, False, True]


def test_short_prompts_first_prompts_and_real_reuse_do_not_count() -> None:
    short = (PROMPT_TOKENS_MIN, 0, "other conversation")
    first = (5000, 0, None)
    reused = (5000, 600, "early message edited")
    for decision in (short, first, reused):
        tripwire, told = watched(*[decision] * 20)
        assert told == [""] * 20
        assert tripwire.words == ""
