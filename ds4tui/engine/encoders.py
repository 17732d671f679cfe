"""Plain text to ids, one class for each way in which vocabularies are made.

Both cut text into words over whose ends no token reaches, so that words may be merged apart and
remembered. Nothing here knows special tokens: whatever is written is text.
"""

import re
from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
from gguf.constants import TokenType

from ds4tui.engine.merging import merge
from ds4tui.engine.vocabulary import (
    BLANK,
    BYTE_CHARACTERS,
    BytePieces,
    SentencePieces,
    Vocabulary,
)

# Words repeat, long runs do not; when the memory is full it is begun anew.
_KNOWN_WORDS = 2**16
_KNOWN_LENGTH = 64

_BYTE_OF = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}
_CHARACTER_OF = dict(enumerate(BYTE_CHARACTERS))  # for str.translate


class Encoder(Protocol):
    """May be shared by threads."""

    space_prefix: bool  # whether a text gets a blank before it

    def encode(self, text: str) -> list[int]:
        """`text` has no lone surrogates."""

    def token_bytes(self, text: str, kind: int) -> bytes:
        """What a plain or byte token of this text stands for."""


def encoder_of(vocabulary: Vocabulary) -> Encoder:
    if isinstance(vocabulary.pieces, BytePieces):
        return ByteLevelEncoder(vocabulary, vocabulary.pieces)
    return SentencePieceEncoder(vocabulary, vocabulary.pieces)


class ByteLevelEncoder:
    """GPT-2's BPE: words of bytes, pairs ranked by the file. Bytes that have no token are left
    out, as llama.cpp leaves them out; their neighbours do not meet."""

    space_prefix = False

    def __init__(self, vocabulary: Vocabulary, pieces: BytePieces) -> None:
        self._ids = vocabulary.plain
        self._whole_words = pieces.rule.ignore_merges
        self._cutter = pieces.rule.cutter()
        self._known: dict[str, list[int]] = {}
        ranks = pieces.ranks
        self._rank = lambda left, right: ranks.get(f"{left} {right}")

    def encode(self, text: str) -> list[int]:
        words = self._cutter.cut(text) if text else ()
        return _encoded(words, self._known, self._encode_word)

    def _encode_word(self, word: str) -> list[int]:
        spelt = word.encode().decode("latin-1").translate(_CHARACTER_OF)
        if self._whole_words and spelt in self._ids:
            return [self._ids[spelt]]
        symbols = merge(list(spelt), self._rank)
        return [self._ids[symbol] for symbol in symbols if symbol in self._ids]

    def token_bytes(self, text: str, kind: int) -> bytes:
        return b"".join(bytes((_BYTE_OF[c],)) if c in _BYTE_OF else c.encode() for c in text)


class SentencePieceEncoder:
    """SentencePiece's BPE: any neighbours that make a token merge, those of the highest score
    first. Characters without a token are written in byte tokens or, if a file has none, as its
    unknown token."""

    def __init__(self, vocabulary: Vocabulary, pieces: SentencePieces) -> None:
        self.space_prefix = pieces.space_prefix
        self._ids = vocabulary.plain
        self._unknown = [] if vocabulary.unknown_id is None else [vocabulary.unknown_id]
        self._bytes = _byte_ids(vocabulary)
        self._words = _word_pattern(pieces.glued)
        self._known: dict[str, list[int]] = {}
        ids, costs = vocabulary.plain, (-pieces.scores).tolist()

        def rank(left: str, right: str) -> float | None:
            made = ids.get(left + right)
            return None if made is None else costs[made]

        self._rank = rank

    def encode(self, text: str) -> list[int]:
        words = self._words.findall(text.replace(" ", BLANK))
        return _encoded(words, self._known, self._encode_word)

    def _encode_word(self, word: str) -> list[int]:
        ids: list[int] = []
        for symbol in merge(list(word), self._rank):
            found = self._ids.get(symbol)
            ids += self._fallback(symbol) if found is None else [found]
        return ids

    def _fallback(self, character: str) -> list[int]:
        bytes_ = [self._bytes.get(byte) for byte in character.encode()]
        known = [i for i in bytes_ if i is not None]
        return known if len(known) == len(bytes_) else self._unknown

    def token_bytes(self, text: str, kind: int) -> bytes:
        if kind == TokenType.BYTE:
            byte = _byte_of_name(text)
            return text.encode() if byte is None else bytes((byte,))
        return text.replace(BLANK, " ").encode()


def _encoded(
    words: Iterable[str], known: dict[str, list[int]], encode_word: Callable[[str], list[int]]
) -> list[int]:
    """The ids of `words`, each encoded once and then taken from `known`."""
    ids: list[int] = []
    for word in words:
        found = known.get(word)
        if found is None:
            found = encode_word(word)
            _remember(known, word, found)
        ids += found
    return ids


def _remember(known: dict[str, list[int]], word: str, ids: list[int]) -> None:
    if len(word) <= _KNOWN_LENGTH:
        if len(known) >= _KNOWN_WORDS:
            known.clear()
        known[word] = ids


def _byte_ids(vocabulary: Vocabulary) -> dict[int, int]:
    """Byte to the id of its token."""
    ids: dict[int, int] = {}
    for token_id in np.flatnonzero(vocabulary.kinds == TokenType.BYTE).tolist():
        byte = _byte_of_name(vocabulary.texts[token_id])
        if byte is not None:
            ids.setdefault(byte, token_id)
    return ids


def _byte_of_name(text: str) -> int | None:
    found = re.fullmatch("<0x([0-9A-Fa-f]{2})>", text)
    return int(found[1], 16) if found else None


def _word_pattern(glued: str) -> re.Pattern[str]:
    """Words: blanks and what follows them up to the next blanks. Not cut are blanks after a
    character of `glued`, over which a token may reach."""
    stuck = rf"(?:(?<=[{re.escape(glued)}]){BLANK}+[^{BLANK}]*)*" if glued else ""
    return re.compile(rf"{BLANK}*[^{BLANK}]+{stuck}|{BLANK}+")
