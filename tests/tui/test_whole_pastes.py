import pytest
from textual import events
from textual.drivers import linux_driver

from ds4tui.tui.whole_pastes import WholePastes

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


def test_the_driver_reads_with_it() -> None:
    assert vars(linux_driver)["XTermParser"] is WholePastes
