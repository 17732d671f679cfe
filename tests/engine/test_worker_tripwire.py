"""The tripwire: says once that nothing is reused, and why, and only when it is so."""

from ds4tui.engine.tripwire import MISSES, PROMPT_TOKENS_MIN, WATCHED, Tripwire
from ds4tui.events import Decision
from tests.engine.test_worker import Bench
from tests.fake_model import FakeModel
from tests.fake_state import FakeLayer, RecurrentLayer


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


def test_a_hybrid_without_room_for_snapshots_is_told() -> None:
    """Each time a prompt is sent again all of it is computed: no answer is wrong, only late."""
    model = FakeModel(context_tokens=3000, layer_types=(FakeLayer, RecurrentLayer))
    bench = Bench(model=model, chunk_sizes=(512,), put_away_bytes=0)
    prompt = [token % 200 for token in range(PROMPT_TOKENS_MIN + 200)]
    logs = [bench.run(prompt) for _ in range(MISSES + 1)]
    bench.engine.close()
    told = [log.of_type(Decision)[0] for log in logs]
    assert [decision.evaluated for decision in told] == [len(prompt)] * len(told)
    assert [decision.cause for decision in told] == [None, *["snapshot evicted"] * MISSES]
    assert [bool(decision.tripwire) for decision in told] == [*[False] * MISSES, True]
    assert "snapshot evicted" in told[-1].tripwire
    kinds = [note.kind for note in bench.engine.stats.notes]
    assert kinds.count("refused") == 1  # and not once for each place of each prompt
