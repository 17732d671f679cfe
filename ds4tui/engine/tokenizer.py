"""Text to token ids and back, from the vocabulary of a GGUF (byte-level BPE).

Plain text and special tokens are kept apart: BPE sees plain text only and has no way to a
control token, whatever people write. Special tokens are found by our own search (`split`), and
only when a caller trusts the text. Knows nothing of chats. Needs no mlx; may be shared by
threads.
"""

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import tokenizers
from gguf.constants import TokenType
from tokenizers.models import BPE

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.vocabulary import BYTE_CHARACTERS, Vocabulary, read_vocabulary

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

_BYTE_OF = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}


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
        self._bpe, self._lacks_bytes = _bpe(vocabulary)
        self._bytes: list[bytes | None] = [None] * self.vocab_size
        self._kinds: list[int] = vocabulary.kinds.tolist()

    @classmethod
    def from_gguf(cls, gguf: GGUFFile) -> "Tokenizer":
        """Raises GGUFError, see `read_vocabulary`."""
        return cls(read_vocabulary(gguf))

    def _end_ids(self) -> frozenset[int]:
        """Ids that end a turn or the text: those the file names and known control tokens."""
        named = (self.eos_id, self.eot_id, self._vocabulary.eom_id)
        known = (self.control_texts.get(text) for text in END_TEXTS)
        return frozenset(i for i in (*named, *known) if i is not None)

    def encode(self, text: str, *, add_bos: bool = False, special: bool = False) -> list[int]:
        """The ids of `text`.

        `special` recognises the literal texts of control and user-defined tokens (for text that
        is trusted, such as a template's); without it everything is plain text. `add_bos` puts
        a BOS first if the model wants one. Bytes that have no token in the vocabulary are left
        out, lone surrogates count as U+FFFD.
        """
        ids: list[int] = []
        if add_bos and self.add_bos and self.bos_id is not None:
            ids.append(self.bos_id)
        for part in self.split(text) if special else [text]:
            if isinstance(part, int):
                ids.append(part)
            else:
                ids.extend(self.encode_plain(part).tolist())
        return ids

    def encode_plain(self, text: str) -> Ids:
        """int64 [n]: `text` as plain text; no control token ever comes out."""
        # The batch call is twice as fast as the single one: it keeps no offsets.
        batch = self._bpe.encode_batch_fast([well_formed(text)], add_special_tokens=False)
        ids = np.array(batch[0].ids, dtype=np.int64)
        return ids[ids < self.vocab_size] if self._lacks_bytes else ids

    def split(self, text: str) -> list[str | int]:
        """`text` as runs of plain text and ids of special tokens, in order; no run is empty.
        At each position the longest special text counts."""
        parts: list[str | int] = []
        end = 0
        for match in self._special.finditer(text):
            if match.start() > end:
                parts.append(text[end : match.start()])
            parts.append(self._special_ids[match[0]])
            end = match.end()
        if end < len(text):
            parts.append(text[end:])
        return parts

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of `ids`; bytes that are no UTF-8 become U+FFFD. Control tokens give no text
        unless `skip_special` is False. Raises ValueError for an id outside the vocabulary."""
        pieces = (self.token_bytes(i) for i in ids if not (skip_special and self.is_control(i)))
        return b"".join(pieces).decode("utf-8", "replace")

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
        if kind not in (TokenType.NORMAL, TokenType.BYTE):
            return text.encode()
        return b"".join(bytes((_BYTE_OF[c],)) if c in _BYTE_OF else c.encode() for c in text)

    def is_control(self, token_id: int) -> bool:
        """Raises ValueError for an id outside the vocabulary."""
        self._check(token_id)
        return self._kinds[token_id] in (TokenType.CONTROL, TokenType.UNKNOWN)

    def _check(self, token_id: int) -> None:
        if not 0 <= token_id < self.vocab_size:
            raise ValueError(f"no token {token_id} in a vocabulary of {self.vocab_size:,}")

    def token_text(self, token_id: int | None) -> str:
        """The text as the file writes it, "" for None; what templates call `bos_token`."""
        return "" if token_id is None else self._vocabulary.texts[token_id]


def _bpe(vocabulary: Vocabulary) -> tuple[tokenizers.Tokenizer, bool]:
    """The BPE model, and whether it has ids beyond the vocabulary.

    A byte without a token gets such an id, to be dropped afterwards: left to the library, its
    neighbours would meet and merge, which they do not in llama.cpp.
    """
    plain = dict(vocabulary.plain)
    lacking = [c for c in BYTE_CHARACTERS if c not in plain]
    plain.update({c: len(vocabulary.texts) + n for n, c in enumerate(lacking)})
    model = BPE(plain, vocabulary.merges, ignore_merges=vocabulary.rule.ignore_merges)
    bpe = tokenizers.Tokenizer(model)
    bpe.pre_tokenizer = vocabulary.rule.pre_tokenizer()
    return bpe, bool(lacking)


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
