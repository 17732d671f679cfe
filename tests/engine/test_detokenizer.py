"""What a stream gives is what decoding everything gives, up to the first stop string."""

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ds4tui.engine.detokenizer import StreamDetokenizer
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.tokenizer import Tokenizer
from tests.engine.texts import FIXED
from tests.engine.vocabularies import CONTROL, USER_DEFINED, sentence_tokenizer, tokenizer_of
from tests.scale import scaled

END, TAG = 258, 259


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("vocabulary")
    specials = (("<end>", CONTROL), ("<tag>", USER_DEFINED))
    return tokenizer_of(folder, *specials, merges=("a b", "ab a"))


def stream(tokenizer: Tokenizer, ids: list[int], stop: tuple[str, ...]) -> StreamDetokenizer:
    """A stream that was given `ids`; `given` are its pushes and finish."""
    made = StreamDetokenizer(tokenizer, stop)
    made.given = [*(made.push(i) for i in ids), made.finish()]  # type: ignore[attr-defined]
    return made


def cut(text: str, stop: tuple[str, ...]) -> str:
    return text[: min((at for s in stop if (at := text.find(s)) >= 0), default=len(text))]


# Few letters, so that stop strings happen; the rest are parts of é, €, 😀 and bytes of nothing.
LETTERS = [97, 98, 99, 256, 257, END, TAG]
BYTES = [0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0x80, 0xFF, 0xC0, 0xED, 0xF4]
ids = st.lists(st.sampled_from(LETTERS + BYTES), max_size=30)
stops = st.lists(st.text("abc<é€😀\ufffd", min_size=1, max_size=5), max_size=4).map(tuple)


@settings(max_examples=scaled(1500))
@given(ids=ids, stop=stops)
@example(ids=[97, 98, 98], stop=("b", "abc"))  # a stop string inside the beginning of another
@example(ids=[97, 98, 99], stop=("b", "abc"))
@example(ids=[97, 98], stop=("b", "abc"))
@example(ids=[0xE2, 0x82], stop=("\ufffd",))
def test_pushes_and_finish_are_the_decoded_text_up_to_the_first_stop(
    tokenizer: Tokenizer, ids: list[int], stop: tuple[str, ...]
) -> None:
    made = stream(tokenizer, ids, stop)
    text = tokenizer.decode(ids)
    assert "".join(made.given) == cut(text, stop)
    assert (made.stop_string is not None) == any(s in text for s in stop)
    if made.stop_string is not None:
        assert text.startswith(made.stop_string, len(cut(text, stop)))


@settings(max_examples=scaled(300))
@given(ids=ids, stop=stops)
def test_after_a_stop_string_nothing_more_is_given(
    tokenizer: Tokenizer, ids: list[int], stop: tuple[str, ...]
) -> None:
    made = StreamDetokenizer(tokenizer, stop)
    for token in ids:
        stopped = made.stop_string
        text = made.push(token)
        assert stopped is None or (text == "" and made.stop_string == stopped)
    if made.stop_string is not None:
        assert made.finish() == ""


@settings(max_examples=scaled(300))
@given(ids=ids)
def test_without_stop_strings_whole_characters_are_given_at_once(
    tokenizer: Tokenizer, ids: list[int]
) -> None:
    made = StreamDetokenizer(tokenizer)
    given = ""
    for count, token in enumerate(ids, start=1):
        given += made.push(token)
        so_far = tokenizer.decode(ids[:count])
        assert so_far.startswith(given) and so_far[len(given) :].strip("\ufffd") == ""
        # At most one unfinished character: Python's decoder waits for the third byte of an
        # encoded surrogate before it calls the first two wrong.
        assert len(so_far) - len(given) <= 2


@pytest.mark.parametrize(
    ("ids", "wanted"),
    [
        ([0xF0, 0x9F, 0x98, 0x80], ["", "", "", "😀", ""]),
        ([0xC3, 97], ["", "\ufffda", ""]),
        ([0xFF, 97], ["\ufffd", "a", ""]),
        ([0xC3], ["", "\ufffd"]),
        ([97, END, 0xC3, END, 0xA9], ["a", "", "", "", "é", ""]),
        ([TAG], ["<tag>", ""]),
    ],
)
def test_characters(tokenizer: Tokenizer, ids: list[int], wanted: list[str]) -> None:
    assert stream(tokenizer, ids, ()).given == wanted


def test_what_may_begin_a_stop_string_waits_and_is_given_if_it_does_not(
    tokenizer: Tokenizer,
) -> None:
    made = StreamDetokenizer(tokenizer, ("aba!", "x"))
    pushes = [made.push(i) for i in (99, 97, 98, 97, 98, 99)]
    assert pushes == ["c", "", "", "", "ab", "abc"]
    assert made.finish() == "" and made.stop_string is None


def test_a_stop_string_across_tokens(tokenizer: Tokenizer) -> None:
    made = StreamDetokenizer(tokenizer, ("bab",))
    assert [made.push(i) for i in (256, 256, 99)] == ["a", "", ""]  # ab|ab|c
    assert made.stop_string == "bab" and made.finish() == ""


def test_the_end_may_bring_a_stop_string_to_light(tokenizer: Tokenizer) -> None:
    made = StreamDetokenizer(tokenizer, ("b", "abc"))
    assert [made.push(i) for i in (97, 98)] == ["", ""]
    assert made.finish() == "a" and made.stop_string == "b"


def test_long_stop_strings_that_almost_come(tokenizer: Tokenizer) -> None:
    made = StreamDetokenizer(tokenizer, ("a" * 2000 + "!",))
    given = [made.push(97) for _ in range(2500)]
    assert "".join(given) == "a" * 500
    assert made.finish() == "a" * 2000


PIECES = ["▁", "▁the", "t", "é", "<0xC3>", "<0xA9>", "<0x20>", "<s>", "  ", "=="]


@settings(max_examples=scaled(300))
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=8), prefix=st.booleans())
def test_sentence_pieces_stream_as_they_decode(
    sentence_tokenizers: dict[bool, Tokenizer], pieces: list[str], prefix: bool
) -> None:
    made = sentence_tokenizers[prefix]
    ids = [made._vocabulary.texts.index(piece) for piece in pieces]
    assert "".join(stream(made, ids, ()).given) == made.decode(ids)


@pytest.fixture(scope="module")
def sentence_tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Tokenizer]:
    folder = tmp_path_factory.mktemp("sentence")
    blanks = ("  ", USER_DEFINED)
    return {on: sentence_tokenizer(folder, blanks, add_space_prefix=on) for on in (True, False)}


def test_the_blank_before_a_texts_first_word_is_left_out(
    sentence_tokenizers: dict[bool, Tokenizer],
) -> None:
    made = sentence_tokenizers[True]
    the = made.encode("the")
    assert stream(made, [*the, *the], ()).given == ["the", " the", ""]
    assert stream(sentence_tokenizers[False], [*the, *the], ()).given == [" the", " the", ""]
    blanks = [made.user_defined_texts["  "]]
    assert stream(made, [*blanks, *the], ()).given == ["  ", " the", ""]


def test_the_blank_of_a_text_that_goes_on_stays(sentence_tokenizers: dict[bool, Tokenizer]) -> None:
    made = sentence_tokenizers[True]
    going_on = StreamDetokenizer(made, continues=True)
    assert [going_on.push(i) for i in made.encode("the")] == [" the"]


@pytest.mark.real_model
def test_the_real_vocabulary_streams_every_script(smollm2_path: Path) -> None:
    with GGUFFile.open(smollm2_path) as file:
        tokenizer = Tokenizer.from_gguf(file)
    for text in FIXED:
        ids = tokenizer.encode(text)
        assert "".join(stream(tokenizer, ids, ()).given) == tokenizer.decode(ids)
