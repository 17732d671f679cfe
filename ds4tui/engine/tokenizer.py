"""Text to token ids and back, from the vocabulary of a GGUF.

Plain text and special tokens are kept apart: an encoder (encoders.py) sees plain text only and
has no way to a control token, whatever people write. Special tokens are found by our own search
(`split`), control tokens only when a caller trusts the text. Knows nothing of chats. Needs no
mlx; may be shared by threads.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import chain
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
from gguf.constants import TokenType

from ds4tui.engine.encoders import encoder_of
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.least_tokens import LeastTokens
from ds4tui.engine.tokenizer_cache import VocabularyCache
from ds4tui.engine.vocabulary import Vocabulary, read_vocabulary

Ids = npt.NDArray[np.int64]

# Control tokens that end a turn or a text in the models people run; files name one or two of
# theirs (eos, eot) and instruction tuning often ends turns with another.
END_TEXTS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
    "</s>",
)

_PLAIN_KINDS = (TokenType.NORMAL, TokenType.BYTE)
_SILENT_KINDS = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.UNUSED)


class Tokenizer:
    """Built by `from_gguf`. `vocab_size` counts ids, [0, vocab_size)."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.vocab_size = len(vocabulary.texts)
        self.bos_id = vocabulary.bos_id
        self.eos_id = vocabulary.eos_id
        self.eot_id = vocabulary.eot_id
        self.unknown_id = vocabulary.unknown_id
        self.padding_id = vocabulary.padding_id
        self.add_bos = vocabulary.add_bos and vocabulary.bos_id is not None
        self.control_texts: Mapping[str, int] = MappingProxyType(vocabulary.control)
        self.user_defined_texts: Mapping[str, int] = MappingProxyType(vocabulary.user_defined)
        self.end_ids = self._end_ids()
        self._special_ids = {**vocabulary.user_defined, **vocabulary.control}
        self._special = literal_pattern(self._special_ids)
        self._user_defined = literal_pattern(vocabulary.user_defined)
        self._encoder = encoder_of(vocabulary)
        self.space_prefix = self._encoder.space_prefix
        self._bytes: list[bytes | None] = [None] * self.vocab_size
        self._kinds: list[int] = vocabulary.kinds.tolist()
        self._silent = frozenset(np.flatnonzero(np.isin(vocabulary.kinds, _SILENT_KINDS)).tolist())

    @classmethod
    def from_gguf(cls, gguf: GGUFFile, cache: VocabularyCache | None = None) -> "Tokenizer":
        """With a cache a file is checked thoroughly once. Raises GGUFError, see
        `read_vocabulary`."""
        if cache is None:
            return cls(read_vocabulary(gguf))
        return cls(cache.read(gguf))

    def _end_ids(self) -> frozenset[int]:
        """Ids that end a turn or the text: those the file names and known control tokens."""
        named = (self.eos_id, self.eot_id, self._vocabulary.eom_id)
        known = (self.control_texts.get(text) for text in END_TEXTS)
        return frozenset(i for i in (*named, *known) if i is not None)

    def encode(self, text: str, *, add_bos: bool = False, special: bool = False) -> list[int]:
        """The ids of `text`.

        `special` recognises the literal texts of control tokens (for text that is trusted, such
        as a template's); those of user-defined tokens always count, as for whoever trained the
        model. `add_bos` puts a BOS first if the model wants one. Lone surrogates count as
        U+FFFD.
        """
        ids: list[int] = []
        if add_bos and self.add_bos and self.bos_id is not None:
            ids.append(self.bos_id)
        for part in self.split(text, control=special):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._encode(part, continues=False)
        return ids

    def encode_plain(self, text: str, *, continues: bool = False) -> Ids:
        """int64 [n]: `text` as nothing but text; no special token ever comes out. `continues`
        says that other text stands right before it."""
        return np.array(self._encode(text, continues=continues), dtype=np.int64)

    def _encode(self, text: str, *, continues: bool) -> list[int]:
        prefix = " " if self.space_prefix and text and not continues else ""
        return self._encoder.encode(prefix + well_formed(text))

    def least_tokens(self, text: str) -> int:
        """A number of tokens that `text` has at the least, told without encoding it."""
        return self._least.of(text)

    @cached_property
    def _least(self) -> LeastTokens:
        texts, spelt = self._vocabulary.texts, self._encoder.token_bytes
        plain = (spelt(texts[i], k) for i, k in enumerate(self._kinds) if k in _PLAIN_KINDS)
        # Merges may make user-defined tokens too, of the text that they spell.
        user_defined = list(self._vocabulary.user_defined)
        literal = (text.encode() for text in user_defined)
        return LeastTokens(
            chain(plain, literal, (spelt(text, TokenType.NORMAL) for text in user_defined))
        )

    def split(self, text: str, *, control: bool = True) -> list[str | int]:
        """`text` as runs of plain text and ids of special tokens, in order; no run is empty.
        At each position the longest special text counts. Without `control` only user-defined
        tokens are looked for."""
        parts: list[str | int] = []
        end = 0
        for match in (self._special if control else self._user_defined).finditer(text):
            if match.start() > end:
                parts.append(text[end : match.start()])
            parts.append(self._special_ids[match[0]])
            end = match.end()
        if end < len(text):
            parts.append(text[end:])
        return parts

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of `ids`; bytes that are no UTF-8 become U+FFFD. Control tokens give no text
        unless `skip_special` is False. Where texts are encoded with a blank of their own before
        them, one at the beginning is left out. Raises ValueError for an id outside the
        vocabulary."""
        pieces: list[bytes] = []
        for position, token_id in enumerate(ids):
            if not (skip_special and self.is_control(token_id)):
                read = self.token_bytes if position else self.first_bytes
                pieces.append(read(token_id))
        return b"".join(pieces).decode("utf-8", "replace")

    def first_bytes(self, token_id: int) -> bytes:
        """`token_bytes` of a token that begins a text: without the blank that encoding puts
        there for models that want one."""
        piece = self.token_bytes(token_id)
        if self.space_prefix and self._kinds[token_id] in _PLAIN_KINDS:
            return piece.removeprefix(b" ")
        return piece

    def token_bytes(self, token_id: int) -> bytes:
        """What a token stands for, which may be half a character; a control or user-defined
        token's literal text. Raises ValueError for an id outside the vocabulary."""
        self._check(token_id)
        found = self._bytes[token_id]
        if found is None:
            found = self._bytes[token_id] = self._compute_bytes(token_id)
        return found

    def _compute_bytes(self, token_id: int) -> bytes:
        kind, text = self._kinds[token_id], self._vocabulary.texts[token_id]
        if kind == TokenType.UNUSED:
            return b""
        if kind not in _PLAIN_KINDS:
            return text.encode()
        return self._encoder.token_bytes(text, kind)

    def is_control(self, token_id: int) -> bool:
        """Raises ValueError for an id outside the vocabulary."""
        self._check(token_id)
        return self._kinds[token_id] in (TokenType.CONTROL, TokenType.UNKNOWN)

    def has_silent(self, ids: Iterable[int]) -> bool:
        """Whether a reply of `ids` holds more than its text shows: control tokens and unused ones,
        which give no text."""
        return not self._silent.isdisjoint(ids)

    def _check(self, token_id: int) -> None:
        if not 0 <= token_id < self.vocab_size:
            raise ValueError(f"no token {token_id} in a vocabulary of {self.vocab_size:,}")

    def token_text(self, token_id: int | None) -> str:
        """The text as the file writes it, "" for None; what templates call `bos_token`."""
        return "" if token_id is None else self._vocabulary.texts[token_id]


def well_formed(text: str) -> str:
    """`text` itself, or with surrogate pairs joined and lone surrogates made U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def literal_pattern(texts: Iterable[str]) -> re.Pattern[str]:
    """A pattern that finds any of `texts`, the longest at each position; nothing for none.

    Common beginnings are shared: thousands of alternatives that begin with "<" would all be
    tried at every "<".
    """
    known = sorted(t for t in texts if t)
    return re.compile(_trie(known) if known else r"(?!)")


def _trie(texts: list[str]) -> str:
    """A pattern for sorted, distinct texts, "" among them meaning that the rest is optional."""
    optional = texts[0] == ""
    branches: dict[str, list[str]] = {}
    for text in texts[optional:]:
        branches.setdefault(text[0], []).append(text)
    alternatives = [_branch(branch) for branch in branches.values()]
    if len(alternatives) == 1 and not optional:
        return alternatives[0]
    return f"(?:{'|'.join(alternatives)})" + ("?" if optional else "")


def _branch(texts: list[str]) -> str:
    """A pattern for sorted, distinct texts that begin with one character."""
    first, last = texts[0], texts[-1]
    shared = next((n for n, c in enumerate(first) if last[n : n + 1] != c), len(first))
    rest = [text[shared:] for text in texts]
    return re.escape(first[:shared]) + (_trie(rest) if rest != [""] else "")
