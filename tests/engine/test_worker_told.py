"""Texts for ids: what stands around a divergence, and what a conversation is."""

from typing import Any

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


def what_of(text: bytes, **values: Any) -> str:
    return what_it_is(GenerateRequest(Timeline.of(text), **values), TOKENIZER)  # type: ignore[arg-type]


def test_a_conversation_is_told_by_who_asks_and_the_first_words_of_a_person() -> None:
    text = b"You are helpful.user Hi assistant"  # the template's own words around them
    outline = (Turn(0, 23, "user", b""), Turn(23, len(text), "opening", b""))
    words = "Hi \n there, how many legs has an ant, and why is that so? Tell me all of it."
    assert what_of(text, outline=outline, first_words="Hi") == "person: Hi"
    told = what_of(text, origin="agent", outline=outline, first_words=words)
    assert told == "agent: Hi there, how many legs has an ant, and why is t"
    assert what_of(text, outline=outline, first_words="a \ud800 half") == "person: a ? half"
    assert what_of(text, outline=outline, first_words="  ") == "person: (no words)"
    assert what_of(b"Once upon") == "person: Once upon"  # text that is no conversation
