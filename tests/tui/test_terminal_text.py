import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.tui.terminal_text import harmless, one_line, pasted
from tests.scale import scaled

_BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


@given(st.text() | st.binary().map(lambda b: b.decode("latin-1")))
@settings(max_examples=scaled(300))
def test_nothing_that_steers_a_terminal_is_left(text: str) -> None:
    for shown in (harmless(text), pasted(text)):
        bad = {c for c in shown if unicodedata.category(c) == "Cc"} - {"\n", "\t"}
        assert not bad and not set(shown) & set(_BIDI + "\u2028\u2029")
        assert len(shown.splitlines()) == len(shown.split("\n")) - shown.endswith("\n") or not shown
        shown.encode("utf-8")
    assert "\n" not in one_line(text) and "\t" not in one_line(text)


@given(st.text(alphabet=st.characters(exclude_categories=("Cc", "Cf", "Cs", "Zl", "Zp"))))
@settings(max_examples=scaled(100))
def test_ordinary_text_is_left_as_it_is(text: str) -> None:
    assert harmless(text) == pasted(text) == text
    assert harmless(text + "\n\té 🏳️‍🌈") == text + "\n\té 🏳️‍🌈"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31mred\x1b[0m b", "ared b"),
        ("\x1b]0;title\x07x\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\", "xlink"),
        ("\x1b(B\x1b=x\x1bP1;2q\x1b\\y", "xy"),
        ("bell\x07 nul\x00 del\x7f", "bell␇ nul␀ del␡"),
        ("dos\r\nold mac\runix\n", "dos\nold mac\nunix\n"),
        ("c1 \x9b31m", "c1 \ufffd31m"),
        ("unfinished \x1b[", "unfinished ␛["),
    ],
)
def test_pastes_lose_colours_and_keep_their_text(text: str, shown: str) -> None:
    assert pasted(text) == shown


def test_model_output_shows_its_escapes() -> None:
    assert harmless("\x1b[2J") == "␛[2J"
