"""What changes in a system text though nothing is meant; what is meant stays."""

from datetime import datetime

import pytest

from ds4tui.chat.volatile import without_accounting, without_clocks

NOW = datetime(2030, 5, 17, 23, 58, 1)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Now: 2030-05-17T23:58:01.123Z.", "Now: 2030-05-18T00:02:59.001Z."),
        ("Today's date is 2030-05-17.", "Today's date is 2030-05-18."),
        ("Time: 2030-05-17 23:58:01 +02:00", "Time: 2030-05-17 23:59:12 +02:00"),
        ("Today is Friday, May 17, 2030, 11:58 PM.", "Today is Saturday, May 18, 2030, 12:03 AM."),
        ("Current date: 17 May 2030", "Current date: 18 May 2030"),
        ("a\nDate: 2030/05/17\nb", "a\nDate: 2030/05/16\nb"),
    ],
)
def test_clocks_are_all_alike(one: str, other: str) -> None:
    assert one != other
    assert without_clocks(one, NOW) == without_clocks(other, NOW)


@pytest.mark.parametrize(
    "text",
    [
        "We are open from 9:00 to 17:30 each day.",
        "Today in history: 1969-07-20.",
        "The date of the treaty is May 8, 1945.",
        "Release 2030-05-17 of the parser.",
        "Due date: 2030-06-30.",
        "The meeting time is 2030-05-17 10:00. Answer with it.",
        "Today is 2030-05-17. Shop opens 09:30 closes 12:00",
        "Deadline day: Friday 2030-05-17",
        "Now and then: 2030-13-45, 0000-00-00.",
        "",
    ],
)
def test_dates_that_a_text_is_about_stay(text: str) -> None:
    assert without_clocks(text, NOW) == text


def test_only_the_line_with_the_clock_changes() -> None:
    text = "Open at 9:00.\nTime: 2030-05-17 10:00\nClosed at 18:00."
    lines = without_clocks(text, NOW).split("\n")
    assert (lines[0], lines[2]) == ("Open at 9:00.", "Closed at 18:00.")
    assert "10:00" not in lines[1]


def test_accounting_headers_are_nothing_to_a_model() -> None:
    header = "x-anthropic-billing-header: cc_version=2.1.36; cch=0a1b2;"
    assert without_accounting(f"{header}\nYou help.") == "\nYou help."
    assert without_accounting("Never send x-anthropic-billing-header: it.") == (
        "Never send x-anthropic-billing-header: it."
    )
