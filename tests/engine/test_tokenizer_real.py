"""Real vocabularies against llama.cpp: SmolLM2, Qwen2.5-Coder and Gemma 3."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from gguf.constants import TokenType
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

from ds4tui.engine.detokenizer import StreamDetokenizer
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.tokenizer import Tokenizer
from ds4tui.engine.vocabulary import BYTE_CHARACTERS, BytePieces
from tests.engine.corpus import corpus
from tests.engine.texts import FIXED, random_texts
from tests.llama_server import LlamaServer
from tests.scale import scaled

MODELS = [
    pytest.param("smollm2", marks=pytest.mark.real_model),
    pytest.param("qwen", marks=pytest.mark.dev_models),
    pytest.param("gemma", marks=pytest.mark.dev_models),
]


@pytest.fixture(scope="module", params=MODELS)
def path(request: pytest.FixtureRequest) -> Path:
    if request.param == "smollm2":
        found: Path = request.getfixturevalue("smollm2_path")
        return found
    dev_model: Callable[[str], Path] = request.getfixturevalue("dev_model")
    return dev_model(request.param)


@pytest.fixture(scope="module")
def made(path: Path) -> Tokenizer:
    with GGUFFile.open(path) as file:
        return Tokenizer.from_gguf(file)


@pytest.fixture(scope="module")
def llama(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    with LlamaServer(path, tmp_path_factory.mktemp("llama") / "log") as server:
        yield server


def test_a_large_corpus_is_tokenised_as_by_llama_cpp(made: Tokenizer, llama: LlamaServer) -> None:
    for text in corpus(source_bytes=scaled(400_000), random_count=scaled(300), seed=21):
        for special in (False, True):
            wanted = llama.tokenize(text, special=special, add_bos=True)
            assert made.encode(text, special=special, add_bos=True) == wanted, repr(text[:500])


def test_texts_of_tokens_are_tokenised_as_by_llama_cpp(made: Tokenizer, llama: LlamaServer) -> None:
    """Random tokens one after the other: what random characters seldom make, such as long
    words, repetitions, and pieces of special tokens."""
    draw = random.Random(22)
    for _ in range(scaled(300)):
        ids = [draw.randrange(made.vocab_size) for _ in range(draw.randint(1, 30))]
        if draw.random() < 0.5:
            ids = [i for i in ids[:4] for _ in range(draw.randint(1, 6))]
        text = made.decode(ids, skip_special=False).replace("\0", "")
        for special in (False, True):
            wanted = llama.tokenize(text, special=special)
            assert made.encode(text, special=special) == wanted, repr(text)


def test_plain_text_gives_no_control_token_and_comes_back(made: Tokenizer) -> None:
    for text in (*FIXED, *random_texts(scaled(300), seed=23)):
        for ids in (made.encode(text), made.encode_plain(text).tolist()):
            assert not any(map(made.is_control, ids))
            assert made.decode(ids) == kept(made, text)
            stream = StreamDetokenizer(made)
            assert "".join([*map(stream.push, ids), stream.finish()]) == kept(made, text)


def kept(made: Tokenizer, text: str) -> str:
    """`text` without bytes that have no token, and with blanks for what stands for them."""
    if not isinstance(made._vocabulary.pieces, BytePieces):
        return text.replace("▁", " ")
    lacking = {b for b, c in enumerate(BYTE_CHARACTERS) if c not in made._vocabulary.plain}
    return bytes(b for b in text.encode() if b not in lacking).decode("utf-8", "replace")


def test_tokens_stand_for_the_bytes_that_llama_cpp_says(
    made: Tokenizer, llama: LlamaServer
) -> None:
    draw = np.random.default_rng(24)
    some = draw.integers(made.vocab_size, size=scaled(400)).tolist()
    for token in [*range(400), *some, *made.user_defined_texts.values()]:
        text = made.decode([token], skip_special=False)
        if "\ufffd" not in text:
            assert llama.detokenize([token]) == text, token
    for text in (*FIXED, *random_texts(scaled(100), seed=25)):
        ids = made.encode(text, special=True)
        assert llama.detokenize(ids) == made.decode(ids, skip_special=False)


def test_byte_level_words_merge_as_the_library_merges_them(made: Tokenizer) -> None:
    """The same vocabulary in another BPE, on more text than can be sent to llama.cpp."""
    vocabulary = made._vocabulary
    if not isinstance(vocabulary.pieces, BytePieces):
        assert (vocabulary.kinds == TokenType.BYTE).sum() == 256  # SentencePiece's
        return
    size = made.vocab_size
    lacking = [c for c in BYTE_CHARACTERS if c not in vocabulary.plain]
    plain = {**vocabulary.plain, **{c: size + n for n, c in enumerate(lacking)}}
    ranks = vocabulary.pieces.ranks
    merges = [tuple(line.split(" ")) for line in sorted(ranks, key=ranks.__getitem__)]
    rule = vocabulary.pieces.rule
    library = tokenizers.Tokenizer(BPE(plain, merges, ignore_merges=rule.ignore_merges))
    cuts = [Split(tokenizers.Regex(p), "isolated") for p in rule.patterns]
    library.pre_tokenizer = Sequence([*cuts, ByteLevel(add_prefix_space=False, use_regex=False)])
    for text in corpus(source_bytes=scaled(2_000_000), random_count=scaled(1000), seed=26):
        ids = library.encode(text, add_special_tokens=False).ids
        assert made.encode_plain(text).tolist() == [i for i in ids if i < size], repr(text[:500])
