"""The `tokenizer.ggml.*` keys of a GGUF, read and checked once.

A vocabulary that passes here can be handed to the BPE library, which aborts on a bad one.
Three kinds of tokens matter: plain ones (their text is written in GPT-2's byte characters),
control tokens (literal text, no part of what people write) and user-defined ones (literal text
that is recognised before words are cut). Files hold doubtful things, met as llama.cpp meets
them: of several plain tokens with one text the last counts, and bytes may lack a token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from gguf.constants import TokenType

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.pretokenizers import WORD_RULES, WordRule
from ds4tui.errors import GGUFError

_NEWER = "Another conversion of this model may work, or a newer ds4tui."
_DAMAGED = "The file is damaged or badly converted: get another conversion of this model."
_PREFIX = "tokenizer.ggml."
_CONTROL_KINDS = (TokenType.CONTROL, TokenType.UNKNOWN)


def _byte_characters() -> str:
    """GPT-2's printable stand-in for each byte: itself where it is printable Latin-1, else the
    next free character from U+0100 on."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return "".join(chr(b if b in shown else next(spare)) for b in range(256))


BYTE_CHARACTERS = _byte_characters()


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Checked values. `plain` maps byte-character text to the id that BPE may give it;
    `merges` are in order of rank and name texts of `plain` only."""

    rule: WordRule
    texts: Sequence[str]
    kinds: npt.NDArray[np.int32]
    plain: dict[str, int]
    merges: list[tuple[str, str]]
    control: dict[str, int]
    user_defined: dict[str, int]
    bos_id: int | None
    eos_id: int | None
    eot_id: int | None
    eom_id: int | None
    unknown_id: int | None
    padding_id: int | None
    add_bos: bool


def read_vocabulary(gguf: GGUFFile) -> Vocabulary:
    """Raises GGUFError for a tokenizer that is not byte-level BPE, for a word rule we do not
    know, and for faults: missing keys, wrong lengths, ids or merges that name no token."""
    rule = _rule(gguf)
    texts: list[str] = gguf.key(_PREFIX + "tokens", list)
    kinds = _kinds(gguf, len(texts))
    plain = {t: i for i, (t, k) in enumerate(zip(texts, kinds.tolist(), strict=True)) if k in _BPE}
    plain.pop("", None)
    merges = _merges(gguf, texts, kinds, plain)
    ids = {name: _special_id(gguf, name, len(texts)) for name in _SPECIAL_IDS}
    add_bos = gguf.key(_PREFIX + "add_bos_token", bool, rule.add_bos)
    return Vocabulary(
        rule=rule,
        texts=texts,
        kinds=kinds,
        plain=plain,
        merges=merges,
        control=_of_kinds(texts, kinds, _CONTROL_KINDS),
        user_defined=_of_kinds(texts, kinds, (TokenType.USER_DEFINED,)),
        add_bos=add_bos,
        **ids,
    )


_SPECIAL_IDS = {
    "bos_id": "bos_token_id",
    "eos_id": "eos_token_id",
    "eot_id": "eot_token_id",
    "eom_id": "eom_token_id",
    "unknown_id": "unknown_token_id",
    "padding_id": "padding_token_id",
}
_BPE = (int(TokenType.NORMAL), int(TokenType.BYTE))


def _rule(gguf: GGUFFile) -> WordRule:
    model = gguf.key(_PREFIX + "model", str)
    if model != "gpt2":
        raise GGUFError(
            f"{gguf.path.name}: its tokenizer is of the kind {model!r}; ds4tui reads 'gpt2' "
            "(byte-level BPE).",
            "Choose another model.",
        )
    name = gguf.key(_PREFIX + "pre", str, "default")
    if name not in WORD_RULES:
        known = ", ".join(sorted(WORD_RULES))
        raise GGUFError(
            f"{gguf.path.name}: the pre-tokenizer {name!r} is not known; ds4tui knows {known}.",
            _NEWER,
        )
    return WORD_RULES[name]


def _kinds(gguf: GGUFFile, count: int) -> npt.NDArray[np.int32]:
    key = _PREFIX + "token_type"
    if key not in gguf.metadata:
        return np.full(count, TokenType.NORMAL, np.int32)
    kinds = gguf.key(key, np.ndarray).astype(np.int32)
    if kinds.shape != (count,):
        raise GGUFError(
            f"{gguf.path.name}: {key} has {kinds.size:,} entries for {count:,} tokens.", _DAMAGED
        )
    wrong = np.flatnonzero((kinds < 1) | (kinds > max(TokenType)))
    if wrong.size:
        raise GGUFError(
            f"{gguf.path.name}: token {wrong[0]:,} is of the unknown type {kinds[wrong[0]]}.",
            _DAMAGED,
        )
    return kinds


def _merges(
    gguf: GGUFFile, texts: Sequence[str], kinds: npt.NDArray[np.int32], plain: dict[str, int]
) -> list[tuple[str, str]]:
    """The merges as pairs. A user-defined token that merges name joins `plain`; merges that
    would make a control token out of what somebody wrote are left out."""
    every = {text: i for i, text in enumerate(texts)}
    pairs: list[tuple[str, str]] = []
    for rank, line in enumerate(gguf.key(_PREFIX + "merges", list)):
        middle = line.find(" ", 1)  # the first token of a pair may be a blank itself
        left, right = line[:middle], line[middle + 1 :]
        if middle < 0 or not right:
            raise GGUFError(
                f"{gguf.path.name}: merge {rank:,} ({line!r}) is not two tokens.", _DAMAGED
            )
        allowed = True
        for text in (left, right, left + right):
            if text in plain:
                continue
            if text not in every:
                raise GGUFError(
                    f"{gguf.path.name}: merge {rank:,} ({line!r}) names {text!r}, which is "
                    "no token.",
                    _DAMAGED,
                )
            if kinds[every[text]] == TokenType.USER_DEFINED:
                plain[text] = every[text]
            else:
                allowed = False
        if allowed:
            pairs.append((left, right))
    return list(dict.fromkeys(pairs))  # the library would take a repeated one's last rank


def _special_id(gguf: GGUFFile, name: str, count: int) -> int | None:
    key = _PREFIX + _SPECIAL_IDS[name]
    value = gguf.key(key, int, None)
    if value is not None and not 0 <= value < count:
        raise GGUFError(f"{gguf.path.name}: {key} is {value}, of {count:,} tokens.", _DAMAGED)
    return value


def _of_kinds(
    texts: Sequence[str], kinds: npt.NDArray[np.int32], wanted: tuple[TokenType, ...]
) -> dict[str, int]:
    """Literal text to id; of several tokens with one text the first."""
    ids = np.flatnonzero(np.isin(kinds, wanted)).tolist()
    return {texts[i]: i for i in reversed(ids) if texts[i]}
