import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual import events
from textual.drivers import linux_driver

from ds4tui.tui.whole_pastes import WholePastes
from tests.scale import scaled

TYPED = "a\x1b[200~log line\n\x1b[31mERROR\x1b[0m\n/quit\nmore \x1b\n\x1b[201~b\x1b[200~\x1b[201~c"


def parsed(pieces: list[str]) -> list[str]:
    """What a terminal's input means: keys by name, pastes in brackets."""
    parser = WholePastes()
    found = [event for piece in pieces for event in parser.feed(piece)]
    return [f"[{e.text}]" if isinstance(e, events.Paste) else getattr(e, "key", "?") for e in found]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, len(TYPED)])
def test_a_paste_with_escape_sequences_is_one_paste_however_it_is_cut(size: int) -> None:
    pieces = [TYPED[at : at + size] for at in range(0, len(TYPED), size)]
    assert parsed(pieces) == ["a", "[log line\nERROR\n/quit\nmore ␛\n]", "b", "[]", "c"]


def test_keys_outside_pastes_are_parsed_as_ever() -> None:
    assert parsed(["x\r\x1b[A\x1b[13;2u"]) == ["x", "enter", "up", "shift+enter"]


@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        ("\x1b[13;2:1u", ["shift+enter"]),  # pressed
        ("\x1b[13;2:2u", ["shift+enter"]),  # and held
        ("\x1b[13;2:3u", []),  # released
        ("\x1b[97:65;2;65u", ["A"]),  # with the shifted key
        ("\x1b[97:65:97;2:3;65u", []),
        ("\x1b[1;5:1A", ["ctrl+up"]),
        ("\x1b[99999999999;2u", []),
    ],
)
def test_keys_of_kitty_in_their_longest_form(sent: str, keys: list[str]) -> None:
    assert parsed([sent + "x"]) == [*keys, "x"]


# Pieces of what terminals send, and of what they do not.
BYTES = st.lists(
    st.sampled_from(
        ["\x1b", "[", "O", "1", "13", ";", ":", "2", "27", "u", "~", "A", "M", "m", "<", "?", "\r",
         "\n", "\x1b[200~", "\x1b[201~", "a", "é", "\x00", "\x7f", "\x9b", "R", "$y", "99999999999"]
    )
)  # fmt: skip


@settings(max_examples=scaled(200))
@given(BYTES)
def test_nothing_that_is_sent_ends_the_input(pieces: list[str]) -> None:
    parsed(pieces)
    parsed(["".join(pieces)])


def test_the_driver_reads_with_it() -> None:
    assert vars(linux_driver)["XTermParser"] is WholePastes
