"""The bound is never above what encoding gives, and near it where texts are pathological."""

import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.least_tokens import LeastTokens
from ds4tui.engine.tokenizer import Tokenizer
from tests.engine.texts import random_texts
from tests.engine.vocabularies import (
    CONTROL,
    UNUSED,
    USER_DEFINED,
    sentence_tokenizer,
    tokenizer_of,
)
from tests.scale import scaled

SPECIALS = (
    ("<|im_start|>", CONTROL),
    ("x" * 99, CONTROL),
    ("y" * 99, UNUSED),
    ("<b>", USER_DEFINED),
)
MERGES = ("t h", "th e", "a a", "aa aa", "Ġ the")


@pytest.fixture(scope="module", params=["bytes", "sentence"])
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    folder = tmp_path_factory.mktemp("vocabulary")
    if request.param == "bytes":
        return tokenizer_of(folder, *SPECIALS, merges=MERGES)
    return sentence_tokenizer(folder, *SPECIALS)


texts = st.text() | st.lists(st.sampled_from(["the", " ", "aaaa", "<b>", "é", "漢"])).map("".join)


@settings(max_examples=scaled(100))
@given(text=texts)
@example("aaaa" * 9)
@example("\ud800")
def test_never_more_than_there_are(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.least_tokens(text) <= len(tokenizer.encode(text))


def test_control_and_unused_tokens_make_no_difference(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, *SPECIALS, merges=MERGES)
    assert tokenizer.least_tokens("x" * 50) == tokenizer.least_tokens("y" * 50) == 50
    assert tokenizer.least_tokens("a" * 40) == len(tokenizer.encode("a" * 40)) == 10
    assert tokenizer.least_tokens("<b>" * 40) == len(tokenizer.encode("<b>" * 40)) == 40


def test_bytes_that_may_be_left_out_do_not_count() -> None:
    every = [bytes((byte,)) for byte in range(256)]
    assert LeastTokens(every).of("aé") == 3
    assert LeastTokens([piece for piece in every if piece != b"a"]).of("aé") == 2
    assert LeastTokens([piece for piece in every if piece != b"\xa9"]).of("aé") == 1
    assert LeastTokens([]).of("aé") == 0


@pytest.mark.real_model
def test_smollm2_is_bounded_below(smollm2_path: Path) -> None:
    with GGUFFile.open(smollm2_path) as file:
        tokenizer = Tokenizer.from_gguf(file)
    for text in random_texts(scaled(200), seed=11):
        assert tokenizer.least_tokens(text) <= len(tokenizer.encode(text))
    began_s = time.perf_counter()
    assert tokenizer.least_tokens("a" * 6_000_000) > 200_000
    assert time.perf_counter() - began_s < 5  # to encode it takes minutes
