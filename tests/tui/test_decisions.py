"""What is said of decisions: pure functions, no terminal."""

from dataclasses import replace
from itertools import takewhile

import pytest

from ds4tui.cache.causes import Cause
from ds4tui.events import Decision
from ds4tui.tui.decisions import decision_detail, decision_line, list_head
from ds4tui.tui.words import clock_words

FORK = Decision(
    "j7", kind="rewind", source="memory", grade="restore-exact", live=1950, prompt=1906,
    common=1902, kept=1902, dropped=48, evaluated=4, images="none", divergence=1902, held=1902,
    reason="fork at 1,902 (early message edited): 48 tokens of the old branch kept aside, 4 new",
    cause=Cause.EARLY_MESSAGE_EDITED.value, put_away="tail", estimated_ms=120.0,
    shared_window="the sky ", live_window="is blue", wanted_window="was red",
    origin="person", session=2, time_s=1_700_000_000.0, what="person: Why is the sky blue?",
)  # fmt: skip
NEW = replace(
    FORK, kind="extend", live=1902, dropped=0, divergence=None, cause=None, put_away="nothing",
    reason="4 new tokens after 1,902 that are resident", origin="agent", what="agent: Hello",
    shared_window="", live_window="", wanted_window="",
)  # fmt: skip
RESTORED = replace(
    FORK, kind="restore", source="parked+snapshot", held=1902, kept=1500, evaluated=406,
    replayed=402, put_away="whole", cause=Cause.SNAPSHOT_EVICTED.value,
)  # fmt: skip


@pytest.mark.parametrize("width", [10, 40, 76, 160])
def test_a_line_fits_and_its_columns_stand_below_their_heads(width: int) -> None:
    for decision in (FORK, NEW, RESTORED):
        line = decision_line(decision, width)
        assert line.cell_length <= width and "\n" not in line.plain
    assert list_head(width).cell_length <= width
    if width >= 76:
        head, line = list_head(width).plain, decision_line(FORK, width).plain
        assert line[: head.index("who")].strip() == clock_words(FORK.time_s)
        assert line[head.index("who") :].startswith("you")
        assert line[: head.index("kept") + 4].endswith("1,902")
        assert line[: head.index("new") + 3].endswith("4")
        assert line[head.index("cause") :].startswith("early message edited")


def test_a_wide_line_tells_the_reason_too_and_new_tokens_need_no_cause() -> None:
    assert FORK.reason in decision_line(FORK, 200).plain
    assert decision_line(NEW, 200).plain.endswith(NEW.reason)


def test_the_detail_tells_everything_in_words() -> None:
    text = decision_detail(FORK, 100, has_sessions=True).plain
    for said in (
        "rewind: kept 1,902 of 1,906 tokens, evaluated 4",
        FORK.reason,
        "cause     early message edited",
        "helps     Have the client",
        "live      1,950 were resident",
        "prompt    1,906 are wanted",
        "common    1,902 at the start of both",
        "held      1,902 of the prompt",
        "kept      1,902 (99%)",
        "dropped   48, kept aside",
        "evaluated 4",
        "replayed  0",
        "from      the live state",
        "grade     restore-exact",
        "estimated 0.12 s to the first token",
        "Where they part, at token 1,902",
        "by        you, in the app",
        "begins    Why is the sky blue?",
        "session   2",
    ):
        assert said in text, said


def test_both_sides_are_shown_with_a_mark_where_they_part() -> None:
    lines = decision_detail(FORK, 100).plain.split("\n")
    assert "resident  …the sky ┃is blue…" in lines
    assert "wanted    …the sky ┃was red" in lines  # its 4 tokens are all there are
    assert "session   2" not in lines


def test_what_is_new_has_no_cause_and_no_parting() -> None:
    text = decision_detail(NEW, 100).plain
    assert "cause" not in text and "part" not in text and "a program, over HTTP" in text


def test_pictures_that_the_model_is_not_shown_are_told() -> None:
    text = decision_detail(replace(NEW, images_left_out=2), 100).plain
    assert "left out  2 earlier pictures are not shown to the model (images_kept)" in text
    assert "left out" not in decision_detail(NEW, 100).plain


def test_replay_places_and_lost_branches_are_told() -> None:
    text = decision_detail(RESTORED, 100).plain
    assert "replayed  402 of those evaluated were held already" in text
    assert "from      a parked branch and a snapshot" in text
    assert "dropped   48, parked" in text and "make room" in text


@pytest.mark.parametrize("width", [0, 12, 30, 60])
def test_long_values_go_on_below_their_beginning(width: int) -> None:
    long = replace(FORK, wanted_window="word " * 40)
    lines = decision_detail(long, width).plain.split("\n")
    at = next(i for i, line in enumerate(lines) if line.startswith("wanted"))
    row = [lines[at], *takewhile(lambda line: line.startswith(" " * 10), lines[at + 1 :])]
    assert len(row) > 2
    said = "".join("".join(row).split())
    assert said == "wanted…thesky┃" + "word" * 40  # nothing of it is lost


def test_text_of_conversations_stays_text() -> None:
    nasty = "[bold]x[/] \x1b]0;owned\x07\x9b2J\u202e\r\n\tend [/nonsense]"
    odd = replace(
        FORK, shared_window=nasty, live_window=nasty, wanted_window=nasty, what=f"agent: {nasty}",
        reason=nasty,
    )  # fmt: skip
    for content in (decision_detail(odd, 60, has_sessions=True), decision_line(odd, 200)):
        assert "\x1b" not in content.plain and "\x9b" not in content.plain
        assert "\u202e" not in content.plain and "[bold]x[/]" in content.plain
    assert "⏎⇥end" in decision_detail(odd, 200).plain
    assert "\n" not in decision_line(odd, 76).plain


def test_a_side_that_has_no_text_says_so() -> None:
    lines = decision_detail(replace(FORK, live_window="", divergence=3), 80).plain.split("\n")
    assert "resident  the sky ┃(no text)" in lines  # and nothing was left out before it
