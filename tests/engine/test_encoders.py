"""SentencePiece vocabularies: words are cut where no token reaches, bytes stand in, blanks."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ds4tui.engine import encoders
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.merging import merge
from ds4tui.engine.tokenizer import Tokenizer
from ds4tui.errors import GGUFError
from tests.engine.vocabularies import (
    CONTROL,
    PREFIX,
    SENTENCE_WORDS,
    USER_DEFINED,
    loadable,
    sentence_keys,
    sentence_tokenizer,
    tokenizer_of,
    vocabulary_file,
)
from tests.llama_server import LlamaServer
from tests.scale import scaled

SPECIALS = (("<end>", CONTROL), ("  ", USER_DEFINED), ("\n", USER_DEFINED))
PLAIN = (("the<end>", CONTROL), ("th▁e", CONTROL))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return sentence_tokenizer(tmp_path_factory.mktemp("v"), add_space_prefix=False)


def ids_by_definition(text: str) -> list[int]:
    """The whole text at once, by scores, without words."""
    keys = sentence_keys()
    texts: list[str] = keys[PREFIX + "tokens"]
    scores = [float(score) for score in keys[PREFIX + "scores"]]
    ids = {t: i for i, t in enumerate(texts) if i >= 258}

    def rank(left: str, right: str) -> float | None:
        return -scores[ids[left + right]] if left + right in ids else None

    found: list[int] = []
    for symbol in merge(list(text.replace(" ", "▁")), rank):
        found += [ids[symbol]] if symbol in ids else [2 + byte for byte in symbol.encode()]
    return found


letters = st.text(" ▁abcdehlnorst=>é漢x😀\n\0", max_size=30)


@settings(max_examples=scaled(500))
@given(text=letters)
@example(text="s t> = the  the")
@example(text=">  =>    => =")
def test_cut_into_words_or_not_the_ids_are_the_same(made: Tokenizer, text: str) -> None:
    for _ in range(2):  # the second time from memory
        assert made.encode_plain(text).tolist() == ids_by_definition(text)


@settings(max_examples=scaled(300))
@given(text=letters, prefix=st.booleans())
def test_text_comes_back(tmp_path_factory: pytest.TempPathFactory, text: str, prefix: bool) -> None:
    key = "with" if prefix else "without"
    tokenizer = _MADE.get(key)
    if tokenizer is None:
        folder = tmp_path_factory.mktemp(key)
        tokenizer = _MADE[key] = sentence_tokenizer(folder, *SPECIALS, add_space_prefix=prefix)
    plain = tokenizer.encode_plain(text).tolist()
    assert tokenizer.decode(plain) == text.replace("▁", " ")
    if not prefix:  # with one, every piece between special tokens has a blank of its own
        assert tokenizer.decode(tokenizer.encode(text)) == text.replace("▁", " ")


_MADE: dict[str, Tokenizer] = {}


@pytest.mark.parametrize("prefix", [True, False])
def test_ids_are_those_of_llama_cpp(tmp_path: Path, prefix: bool) -> None:
    keys = sentence_keys(*SPECIALS, ("==<x>", CONTROL), add_space_prefix=prefix)
    path = loadable(tmp_path / "model.gguf", keys)
    with GGUFFile.open(path) as file:
        tokenizer = Tokenizer.from_gguf(file)
    draw = random.Random(31)
    letters = [*" ▁abcdehlnorst=>é漢x😀\n", *SENTENCE_WORDS, "<end>", "==<x>", "  "]
    with LlamaServer(path, tmp_path / "log") as llama:
        for _ in range(scaled(300)):
            text = "".join(draw.choices(letters, k=draw.randint(0, 30)))
            for special in (True, False):
                wanted = llama.tokenize(text, special=special, add_bos=True)
                ids = tokenizer.encode(text, special=special, add_bos=True)
                assert ids == wanted, repr(text)


def test_characters_without_a_token_are_written_in_bytes(made: Tokenizer) -> None:
    assert made.encode("a😀") == [made.encode("a")[0], *(2 + b for b in "😀".encode())]
    assert made.token_bytes(2 + 0xF0) == b"\xf0"
    assert made.decode([2 + 0xC3, 2 + 0xA9, 2 + 0xC3]) == "é\ufffd"


def test_without_byte_tokens_they_are_unknown(tmp_path: Path) -> None:
    keys = sentence_keys(add_space_prefix=False)
    keys[PREFIX + "token_type"][2:258] = [5] * 256
    with vocabulary_file(tmp_path / "v.gguf", keys) as file:
        tokenizer = Tokenizer.from_gguf(file)
    assert tokenizer.encode("a😀a")[1] == 0
    assert tokenizer.is_control(0)


def test_the_name_of_a_byte_is_text_when_somebody_writes_it(made: Tokenizer) -> None:
    assert made.decode(made.encode("<0x0A>")) == "<0x0A>"


def test_no_control_token_is_made_by_merging(tmp_path: Path) -> None:
    tokenizer = sentence_tokenizer(tmp_path, *PLAIN, add_space_prefix=False)
    for text in ("the<end>", "th e"):
        assert not any(map(tokenizer.is_control, tokenizer.encode(text)))
        assert any(map(tokenizer.is_control, tokenizer.encode("the<end>", special=True)))


def test_user_defined_tokens_are_taken_before_words(tmp_path: Path) -> None:
    tokenizer = sentence_tokenizer(tmp_path, *SPECIALS, add_space_prefix=False)
    blanks, line = tokenizer.user_defined_texts["  "], tokenizer.user_defined_texts["\n"]
    the = tokenizer.encode("the")
    assert tokenizer.encode("the  the\nthe") == [*the, blanks, *the, line, *the]
    assert blanks not in tokenizer.encode_plain("the  the").tolist()


def test_a_text_begins_with_a_blank_where_the_model_wants_it(tmp_path: Path) -> None:
    tokenizer = sentence_tokenizer(tmp_path, *SPECIALS)  # the default
    the = tokenizer.encode_plain(" the", continues=True).tolist()
    end = tokenizer.control_texts["<end>"]
    assert tokenizer.encode("the") == the
    assert tokenizer.encode("the", add_bos=True) == [1, *the]
    # after a special token too, but not in the middle of a text
    assert tokenizer.encode("the<end>the", special=True) == [*the, end, *the]
    assert tokenizer.encode_plain("the", continues=True).tolist() != the
    assert tokenizer.encode("") == []
    assert tokenizer.decode(the) == "the" and tokenizer.decode([end, *the]) == " the"


def test_remembered_words_are_bounded(
    made: Tokenizer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(encoders, "_KNOWN_WORDS", 10)
    for tokenizer in (made, tokenizer_of(tmp_path)):
        for number in range(100):
            tokenizer.encode(f"{number} " * 30 + "a" * 100)
            known = tokenizer._encoder._known  # type: ignore[attr-defined]
            assert len(known) <= 10 and not any(len(word) > 64 for word in known)


BAD_KEYS: dict[str, tuple[dict[str, Any], str]] = {
    "no scores": ({"scores": None}, "tokenizer.ggml.scores' is missing"),
    "few scores": ({"scores": [np.float32(0)] * 3}, "3 entries for"),
    "a score that is none": (
        {"scores": [np.float32(0)] * 260 + [np.float32("nan")] * 43},
        "score of token 260 is no number",
    ),
    "prefix is a text": ({"add_space_prefix": "x"}, "add_space_prefix"),
}


@pytest.mark.parametrize("case", BAD_KEYS)
def test_faults_are_named(tmp_path: Path, case: str) -> None:
    changes, words = BAD_KEYS[case]
    keys = sentence_keys()
    keys.update({PREFIX + name: value for name, value in changes.items()})
    keys = {name: value for name, value in keys.items() if value is not None}
    with vocabulary_file(tmp_path / "odd.gguf", keys) as file:
        with pytest.raises(GGUFError, match=words) as caught:
            Tokenizer.from_gguf(file)
    assert "odd.gguf" in caught.value.message and caught.value.hint
