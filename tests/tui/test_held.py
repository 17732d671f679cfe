"""What the side panel says of memory: pure functions of the stats."""

from dataclasses import replace

import pytest

from ds4tui.engine.stats import EngineStats, MemoryNote, SessionStats
from ds4tui.events import Decision, PrefillProgress
from ds4tui.tui.held import (
    held_section,
    notes_section,
    resident_bar,
    sessions_section,
    tripwire_section,
)
from ds4tui.tui.layout_map import COMMON_MARK
from ds4tui.tui.panels import PanelView, decision_words, dropped_words, kv_panel
from ds4tui.tui.words import clock_words, short_count

REWIND = Decision(
    "j", kind="rewind", source="memory", grade="restore-exact", live=3000, prompt=2100, common=2048,
    kept=2048, dropped=952, evaluated=52, images="none", reason="fork at 2,048", put_away="tail",
)  # fmt: skip
STATS = EngineStats(
    "idle", context_tokens=8192, resident_tokens=4096, kv_bytes=1000, decision=REWIND,
    parked_states=2, parked_tokens=165_755, parked_bytes=3_000_000, segments=1, segment_tokens=952,
    segment_bytes=1_000_000, snapshots=4, snapshot_bytes=2_000_000, cache_budget_bytes=24_000_000,
    sessions=(SessionStats(1, "READY", 4096, 1000, 4, 96, "person: Hello", "", 5.0),),
)  # fmt: skip
TWO = replace(
    STATS,
    sessions=(
        SessionStats(1, "DECODING", 4096, 218_000_000, what="person: Why\x1b[2J so?", job_id="j"),
        SessionStats(
            2, "DECODING", 120, 9000, what="agent: You are a coding agent that writes code"
        ),
        SessionStats(3),
        SessionStats(4, "POISONED"),
    ),
)


def plain(content: object) -> str:
    assert content is not None
    return str(getattr(content, "plain"))  # noqa: B009


def test_the_bar_marks_how_far_the_prompt_was_common() -> None:
    text = resident_bar(STATS, 32).plain
    assert text == "━" * 8 + COMMON_MARK + "━" * 7 + "─" * 16
    assert COMMON_MARK not in resident_bar(replace(STATS, decision=None), 32).plain
    cold = replace(REWIND, common=0)
    assert COMMON_MARK not in resident_bar(replace(STATS, decision=cold), 32).plain
    # Another session's decision may tell of more than is resident here.
    assert COMMON_MARK not in resident_bar(replace(STATS, resident_tokens=100), 32).plain


@pytest.mark.parametrize("common", [1, 4095, 8191, 8192])
def test_the_bar_stays_as_wide_as_it_is(common: int) -> None:
    stats = replace(STATS, resident_tokens=8192, decision=replace(REWIND, common=common))
    assert all(resident_bar(stats, width).cell_length == width for width in (1, 8, 32))
    assert resident_bar(replace(stats, context_tokens=0), 8).cell_length == 8


def test_what_is_held_beside_the_live_state_is_counted() -> None:
    text = plain(held_section(STATS, 32))
    for said in (
        "parked    2 · 165k tok · 3.0 MB",
        "segments  1 · 952 tok · 1.0 MB",
        "snapshots 4 of 500 kB: 2.0 MB",
        "an edit   replays 96 at most",
        "━" * 8 + "─" * 24,
        "room      6.0 MB of 24.0 MB",
    ):
        assert said in text, said
    assert all(len(line) <= 32 for line in text.split("\n"))


def test_families_without_snapshots_say_nothing_of_them() -> None:
    some = replace(STATS, snapshots=0, snapshot_bytes=0, sessions=(), parked_states=0)
    text = plain(held_section(some, 32))
    assert "snapshots" not in text and "replays" not in text and "parked    none" in text
    assert held_section(EngineStats("idle"), 32) is None


def test_sessions_tell_who_is_at_work_and_for_whom() -> None:
    assert sessions_section(STATS, 32) is None  # the panel is about the only one
    lines = plain(sessions_section(TWO, 32)).split("\n")
    assert lines == [
        "Sessions",
        "1 at work · 4,096 tok · 218.0 MB",
        "  you: Why␛[2J so?",
        "2 rests · 120 tok · 9 kB",
        "  agent: You are a coding agent…",
        "3 empty",
        "4 given up",
    ]


def test_a_prompt_that_is_read_beside_a_reply_says_what_it_is_given() -> None:
    reading = PrefillProgress("j", 512, 14_000, 0, 100.0, 135.0, slowed="given 20 %")
    first, *others = TWO.sessions
    stats = replace(TWO, sessions=(replace(first, prefill=reading), *others))
    lines = plain(sessions_section(stats, 32)).split("\n")
    assert lines[3:5] == ["  read 512 of 14,000", "  given 20 %"]
    stats = replace(TWO, sessions=(replace(first, prefill=replace(reading, slowed="")), *others))
    assert len(plain(sessions_section(stats, 32)).split("\n")) == len(lines) - 1


def test_notes_are_the_newest_that_are_news() -> None:
    notes = [MemoryNote(float(n), "evicted", f"evicted {n}") for n in range(5)]
    notes.insert(4, MemoryNote(9.0, "pruned", "pruned it"))
    notes.append(MemoryNote(9.0, "tripwire", "wired"))
    lines = plain(notes_section(replace(STATS, notes=tuple(notes)))).split("\n")
    assert lines[1:] == [f"{clock_words(n)} evicted {n}" for n in (4, 3, 2)]
    assert notes_section(replace(STATS, notes=(notes[-1],))) is None


def test_of_the_disk_only_what_went_or_was_refused_is_news_here() -> None:
    notes = tuple(
        MemoryNote(1.0, kind, f"disk: {kind} 9 tokens")
        for kind in ("stored", "loaded", "missed", "damaged", "evicted", "refused")
    )
    lines = plain(notes_section(replace(STATS, notes=notes))).split("\n")[1:]
    assert [line.split()[2] for line in lines] == ["refused", "evicted"]


def test_the_tripwire_stands_first_as_long_as_it_holds() -> None:
    assert tripwire_section(STATS) is None
    wired = replace(STATS, tripwire="4 of the last 4 long prompts reused nothing")
    assert kv_panel(PanelView(wired), 32).plain.startswith("Nothing is reused\n4 of the last 4")


def test_the_panel_has_all_of_them() -> None:
    notes = (MemoryNote(1.0, "refused", "refused 9 tokens"),)
    text = kv_panel(PanelView(replace(TWO, notes=notes)), 32).plain
    for said in ("Held beside it", "Sessions", "refused 9 tokens", "dropped   952, kept aside"):
        assert said in text, said


@pytest.mark.parametrize(
    ("put_away", "words"),
    [
        ("tail", "952, kept aside"),
        ("whole", "952, parked"),
        ("drop", "952, given up"),
        ("nothing", "952"),
        ("", "952"),
    ],
)
def test_what_became_of_dropped_tokens(put_away: str, words: str) -> None:
    assert dropped_words(replace(REWIND, put_away=put_away)) == words
    assert dropped_words(replace(REWIND, put_away=put_away, dropped=0)) == "0"


def test_a_restore_tells_both_counts() -> None:
    assert decision_words(replace(REWIND, kind="restore")) == "restore -> 2,048, then +52"
    assert decision_words(replace(REWIND, kind="load")) == "load -> 2,048, then +52"


def test_short_counts_never_say_too_much() -> None:
    assert [short_count(n) for n in (0, 9_999, 10_000, 10_999, 1_234_567)] == [
        "0", "9,999", "10k", "10k", "1,234k",
    ]  # fmt: skip
