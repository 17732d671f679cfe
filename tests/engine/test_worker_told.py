"""Texts for ids: what stands around a divergence, and what a conversation is."""

import pytest

from ds4tui.cache.outline import Turn
from ds4tui.cache.plan import Divergence
from ds4tui.cache.timeline import Timeline
from ds4tui.engine.books import what_it_is
from ds4tui.engine.requests import GenerateRequest
from ds4tui.engine.told import ids_text, window_texts
from tests.fake_model import END_OF_TURN, ROLE_IDS, ByteTokenizer

TOKENIZER = ByteTokenizer()


def test_control_tokens_are_told_in_their_own_words_and_images_in_ours() -> None:
    ids = [*b"hi", END_OF_TURN, ROLE_IDS["user"], -5, -6, -7, *b"?"]
    assert ids_text(ids, TOKENIZER) == "hi<end><user>[image]?"  # type: ignore[arg-type]
    assert ids_text(ids, TOKENIZER, skip_special=True) == "hi[image]?"  # type: ignore[arg-type]


def test_half_characters_at_the_ends_are_left_out() -> None:
    cut = "é…é".encode()[1:-1]
    assert ids_text(cut, TOKENIZER) == "…"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("divergence", "texts"),
    [
        (None, ("", "", "")),
        (Divergence(3, tuple(b"abcde"), tuple(b"abcxy")), ("abc", "de", "xy")),
        (Divergence(0, tuple(b"de"), tuple(b"xy")), ("", "de", "xy")),
        (Divergence(20, tuple(b"abcdefghI"), tuple(b"abcdefghJ")), ("abcdefgh", "I", "J")),
        (Divergence(2, (*b"ab", -1, -2), (*b"ab", -101, -102)), ("ab", "[image]", "[image]")),
    ],
)
def test_both_sides_of_a_divergence(divergence: Divergence | None, texts: tuple) -> None:
    assert window_texts(divergence, TOKENIZER) == texts  # type: ignore[arg-type]


def test_a_conversation_is_told_by_who_asks_and_the_first_words_of_a_person() -> None:
    text = b"Be brief.user  How  many\nlegs has an ant, and why is that so? Tell me all."
    outline = (Turn(0, 9, "system", b""), Turn(9, len(text), "user", b""))
    request = GenerateRequest(Timeline.of(text), origin="agent", outline=outline)
    assert what_it_is(request, TOKENIZER) == "agent: How many legs has"  # type: ignore[arg-type]
    plain = GenerateRequest(Timeline.of(b"Once upon"), origin="person")
    assert what_it_is(plain, TOKENIZER) == "person: Once upon"  # type: ignore[arg-type]
