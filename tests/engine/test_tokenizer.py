"""Tokens are llama.cpp's; plain text never becomes a control token; faults are named."""

import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.pretokenizers import WORD_RULES
from ds4tui.engine.tokenizer import Tokenizer, literal_pattern
from ds4tui.engine.vocabulary import BYTE_CHARACTERS
from ds4tui.errors import GGUFError
from tests.engine.texts import FIXED, random_texts
from tests.engine.vocabularies import (
    CONTROL,
    NORMAL,
    PREFIX,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    byte_keys,
    enriched_keys,
    relabelled,
    tokenizer_of,
    vocabulary_file,
)
from tests.llama_server import LlamaServer
from tests.scale import scaled

SPECIALS = (
    ("<|a|>", CONTROL),
    ("<|a|>b", CONTROL),
    ("<u>", USER_DEFINED),
    ("<unk>", UNKNOWN),
    ("<spare>", UNUSED),
    ("<norm>", NORMAL),
)
A, AB, U, UNK, SPARE, NORM = range(257, 263)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tokenizer_of(tmp_path_factory.mktemp("vocabulary"), *SPECIALS)


pieces = st.one_of(st.text(max_size=5), st.sampled_from([text for text, _ in SPECIALS]))
texts = st.lists(pieces, max_size=8).map("".join)


@settings(max_examples=scaled(200))
@given(text=texts)
def test_plain_text_comes_back_and_holds_no_special_id(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode_plain(text).tolist()
    assert tokenizer.decode(ids) == text
    assert all(i < 257 for i in ids)  # bytes and their merge


@pytest.mark.parametrize("special", [True, False])
@settings(max_examples=scaled(200))
@given(text=texts)
def test_special_texts_are_found_where_a_simple_search_finds_them(
    tokenizer: Tokenizer, special: bool, text: str
) -> None:
    known = {"<|a|>b": AB, "<|a|>": A, "<u>": U, "<unk>": UNK} if special else {"<u>": U}
    wanted: list[int] = []
    rest = text
    while rest:
        found = next((t for t in known if rest.startswith(t)), None)
        if found:
            wanted.append(known[found])
            rest = rest[len(found) :]
        else:
            end = min((at for t in known if (at := rest.find(t)) > 0), default=len(rest))
            wanted += tokenizer.encode_plain(rest[:end]).tolist()
            rest = rest[end:]
    assert tokenizer.encode(text, special=special) == wanted


@settings(max_examples=scaled(300))
@given(
    known=st.sets(st.text("ab|", min_size=1, max_size=5), max_size=8),
    text=st.text("ab|c", max_size=30),
)
def test_literal_pattern_takes_the_longest_at_each_place(known: set[str], text: str) -> None:
    wanted, at = [], 0
    while at < len(text):
        longest = max((t for t in known if text.startswith(t, at)), key=len, default="")
        wanted += [longest] if longest else []
        at += len(longest) or 1
    assert literal_pattern(known).findall(text) == wanted


def test_literal_pattern_takes_long_texts_and_many() -> None:
    known = ["x" * 5000, *(f"<unused{n}>" for n in range(5000))]
    assert literal_pattern(known).findall("<unused4999><unused5000>" + "x" * 5000) == [
        "<unused4999>",
        "x" * 5000,
    ]


def test_words_are_merged_but_special_tokens_are_literal(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("the") == [256, ord("e")]
    assert tokenizer.encode("<norm>", special=True) == list(b"<norm>")  # a plain token by type
    assert tokenizer.encode("x<u>th", special=True) == [ord("x"), U, 256]


def test_token_bytes(tokenizer: Tokenizer) -> None:
    assert [tokenizer.token_bytes(i) for i in range(256)] == [bytes([i]) for i in range(256)]
    assert tokenizer.token_bytes(256) == b"th"
    assert tokenizer.token_bytes(A) == b"<|a|>"
    assert tokenizer.token_bytes(SPARE) == b""


def test_decode_leaves_control_tokens_out_unless_asked(tokenizer: Tokenizer) -> None:
    ids = [A, 104, U, 105, UNK]
    assert tokenizer.decode(ids) == "h<u>i"
    assert tokenizer.decode(ids, skip_special=False) == "<|a|>h<u>i<unk>"
    assert tokenizer.decode([0xC3, A, 0xA9, 0xC3]) == "é\ufffd"


@pytest.mark.parametrize("token", [-1, 263, 2**40])
def test_ids_outside_the_vocabulary_are_refused(tokenizer: Tokenizer, token: int) -> None:
    for call in (tokenizer.token_bytes, tokenizer.is_control, lambda i: tokenizer.decode([i])):
        with pytest.raises(ValueError, match=str(token)):
            call(token)


def test_surrogates_are_joined_or_replaced(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("a\ud83d\ude00b") == list("a😀b".encode())
    assert tokenizer.encode("a\ud800b\udfff") == list("a\ufffdb\ufffd".encode())


def test_nul_is_a_character_like_any_other(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("a\0b") == [97, 0, 98]


@pytest.mark.parametrize(
    ("add_bos", "bos", "wanted"), [(True, A, [A, 120]), (False, A, [120]), (True, None, [120])]
)
def test_bos_is_added_if_the_model_wants_it(
    tmp_path: Path, add_bos: bool, bos: int | None, wanted: list[int]
) -> None:
    keys = {} if bos is None else {"bos_token_id": bos}
    made = tokenizer_of(tmp_path, *SPECIALS, add_bos_token=add_bos, **keys)
    assert made.encode("x", add_bos=True) == wanted
    assert made.encode("x") == [120]


def test_marks_inside_replies_are_shown_even_if_a_file_calls_them_control(tmp_path: Path) -> None:
    made = tokenizer_of(tmp_path, ("<tool_call>", CONTROL), ("</think>", CONTROL), ("<x>", CONTROL))
    assert dict(made.control_texts) == {"<x>": 259}
    assert made.decode([257, 120, 258, 259]) == "<tool_call>x</think>"
    marks = ("<｜tool▁sep｜>", "<｜tool▁calls▁end｜>", "<|tool_call>", "<channel|>", '<|"|>')
    made = tokenizer_of(tmp_path, *((mark, CONTROL) for mark in marks))
    assert made.decode(range(257, 262)) == "".join(marks) and not made.control_texts


def test_end_ids_are_what_the_file_names_and_known_control_tokens(tmp_path: Path) -> None:
    specials = (("<|im_end|>", CONTROL), ("<end_of_turn>", NORMAL), ("<|eot_id|>", CONTROL))
    made = tokenizer_of(tmp_path, *specials, eos_token_id=5, eot_token_id=6, eom_token_id=7)
    assert made.end_ids == {5, 6, 7, 257, 259}


def test_of_plain_tokens_with_one_text_the_last_counts(tmp_path: Path) -> None:
    made = tokenizer_of(tmp_path, ("x", NORMAL), ("<d>", CONTROL), ("<d>", CONTROL))
    assert made.encode("x") == [257]
    assert made.encode("<d>", special=True) == [258]
    assert made.token_bytes(120) == made.token_bytes(257) == b"x"


def test_a_plain_and_a_control_token_with_one_text_stay_apart(tmp_path: Path) -> None:
    made = tokenizer_of(tmp_path, ("x", CONTROL))
    assert made.encode("x") == [120]
    assert made.encode("x", special=True) == [257]


def test_bytes_without_a_token_are_left_out_and_keep_their_neighbours_apart(
    tmp_path: Path,
) -> None:
    keys = byte_keys()
    keys[PREFIX + "tokens"][ord("z")] = "<no z>"
    keys[PREFIX + "token_type"][ord("z")] = int(CONTROL)
    with vocabulary_file(tmp_path / "v.gguf", keys) as file:
        made = Tokenizer.from_gguf(file)
    assert made.encode("tzh th") == [ord("t"), ord("h"), ord(" "), 256]


def test_merges_make_no_control_token(tmp_path: Path) -> None:
    merges = ("t h", "a b", "ab c")
    keys = byte_keys(merges=merges)
    keys[PREFIX + "token_type"][257] = int(CONTROL)  # "ab"
    with vocabulary_file(tmp_path / "v.gguf", keys) as file:
        made = Tokenizer.from_gguf(file)
    assert made.encode("abc") == list(b"abc")
    assert made.encode("th") == [256]


def test_a_user_defined_token_that_merges_name_is_a_step_of_theirs(tmp_path: Path) -> None:
    keys = byte_keys(merges=("t h", "th e"))
    keys[PREFIX + "token_type"][256] = int(USER_DEFINED)
    with vocabulary_file(tmp_path / "v.gguf", keys) as file:
        assert Tokenizer.from_gguf(file).encode_plain("the").tolist() == [257]


def test_of_repeated_merges_the_first_rank_counts(tmp_path: Path) -> None:
    made = tokenizer_of(tmp_path, merges=("a b", "b c", "a b"))
    assert made.encode("abc") == [258, ord("c")]  # "ab", whose last id is 258, not "bc"


def test_an_empty_token_is_no_obstacle(tmp_path: Path) -> None:
    made = tokenizer_of(tmp_path, ("", NORMAL), ("", CONTROL))
    assert made.encode("ab", special=True) == [97, 98]
    assert made.token_bytes(257) == b""


def test_without_types_all_tokens_are_plain(tmp_path: Path) -> None:
    keys = byte_keys()
    del keys[PREFIX + "token_type"]
    with vocabulary_file(tmp_path / "v.gguf", keys) as file:
        assert Tokenizer.from_gguf(file).encode("th!") == [256, ord("!")]


BAD_KEYS: dict[str, tuple[dict[str, Any], str]] = {
    "no model": ({"model": None}, "tokenizer.ggml.model' is missing"),
    "other model": ({"model": "plamo2"}, r"'plamo2' \(PLaMo-2\); ds4tui reads 'gpt2'.*'llama'"),
    "unigrams": ({"model": "t5"}, r"'t5' \(SentencePiece unigrams"),
    "embedding": ({"model": "bert"}, r"'bert' \(WordPiece"),
    "a kind nobody knows": ({"model": "x\ny"}, "kind 'x.+ny'; ds4tui"),
    "other pre": ({"pre": "klingon"}, "'klingon'.*smollm"),
    "pre of another type": ({"pre": 3}, "tokenizer.ggml.pre"),
    "no tokens": ({"tokens": None}, "tokenizer.ggml.tokens' is missing"),
    "tokens are numbers": ({"tokens": [1, 2]}, "tokenizer.ggml.tokens"),
    "no merges": ({"merges": None}, "tokenizer.ggml.merges' is missing"),
    "merge of one": ({"merges": ["t h", "th"]}, "merge 1 .*not two tokens"),
    "merge without a second": ({"merges": ["t "]}, "merge 0 .*not two tokens"),
    "merge of unknown": ({"merges": ["t h", "t ?!"]}, "merge 1 .*'\\?!'.*no token"),
    "merge to unknown": ({"merges": ["h t"]}, "merge 0 .*'ht'.*no token"),
    "few types": ({"token_type": [1, 1]}, "2 entries for 257 tokens"),
    "odd type": ({"token_type": [9] * 257}, "token 0 .*type 9"),
    "bos outside": ({"bos_token_id": 257}, "bos_token_id is 257, of 257"),
    "eos negative": ({"eos_token_id": -1}, "eos_token_id is -1"),
    "eot is text": ({"eot_token_id": "x"}, "eot_token_id"),
    "add_bos is a number": ({"add_bos_token": 1}, "add_bos_token"),
}


@pytest.mark.parametrize("case", BAD_KEYS)
def test_faults_are_named(tmp_path: Path, case: str) -> None:
    changes, words = BAD_KEYS[case]
    keys = byte_keys()
    keys.update({PREFIX + name: value for name, value in changes.items()})
    keys = {name: value for name, value in keys.items() if value is not None}
    with vocabulary_file(tmp_path / "odd.gguf", keys) as file:
        with pytest.raises(GGUFError, match=words) as caught:
            Tokenizer.from_gguf(file)
    assert "odd.gguf" in caught.value.message
    assert caught.value.hint


def test_byte_characters_are_one_for_each_byte() -> None:
    assert len(set(BYTE_CHARACTERS)) == 256
    assert BYTE_CHARACTERS[ord(" ")] == "Ġ" and BYTE_CHARACTERS[ord("\n")] == "Ċ"


# --- the real vocabulary, against llama.cpp --------------------------------

COUNT = scaled(300)


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Iterator[GGUFFile]:
    with GGUFFile.open(smollm2_path) as file:
        yield file


@pytest.mark.real_model
@pytest.mark.parametrize("pre", WORD_RULES)
def test_each_word_rule_cuts_as_llama_cpp_does(smollm2: GGUFFile, tmp_path: Path, pre: str) -> None:
    path = relabelled(tmp_path / "model.gguf", smollm2, pre)
    with GGUFFile.open(path) as file, LlamaServer(path, tmp_path / "log") as llama:
        made = Tokenizer.from_gguf(file)
        for text in (*FIXED, *random_texts(COUNT, seed=4)):
            if pre == "kimi-k2" and kimi_differs(text):
                continue
            assert made.encode(text) == llama.tokenize(text, special=False), repr(text)


def kimi_differs(text: str) -> bool:
    """Whether Moonshot's own pattern and llama.cpp's Kimi K2 cut differently: where small
    letters are followed by capitals, and before combining marks."""
    kinds = [unicodedata.category(character) for character in text]
    small = False
    for kind in kinds:
        if kind[0] == "M" or (small and kind in ("Lu", "Lt")):
            return True
        small = kind == "Ll" or (small and kind[0] == "L")
    return False


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("getUserName", ["get", "User", "Name"]),
        (" iPhone's USAToday", [" i", "Phone's", " USAToday"]),
        ("e\u0301e\u0301 x", ["e\u0301e\u0301", " x"]),
        ("漢字ABCdef漢", ["漢字", "ABCdef", "漢"]),
        ("x1234 !\n\n  y", ["x", "123", "4", " !\n\n", " ", " y"]),
    ],
)
def test_kimi_words_are_cut_as_its_authors_cut_them(text: str, words: list[str]) -> None:
    assert WORD_RULES["kimi-k2"].cutter().cut(text) == words


@pytest.mark.real_model
def test_the_texts_tell_the_word_rules_apart(smollm2: GGUFFile, tmp_path: Path) -> None:
    sequences = {}
    rules = {(rule.patterns, rule.ignore_merges): pre for pre, rule in WORD_RULES.items()}
    for pre in rules.values():
        keys = enriched_keys(smollm2, pre)
        with vocabulary_file(tmp_path / f"{pre}.gguf", keys) as file:
            made = Tokenizer.from_gguf(file)
        sequences[pre] = [made.encode(text) for text in FIXED]
    distinct = {str(ids) for ids in sequences.values()}
    assert len(distinct) == len(rules) == len(sequences)
