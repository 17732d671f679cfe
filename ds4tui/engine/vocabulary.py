"""The `tokenizer.ggml.*` keys of a GGUF, read and checked once.

Three kinds of tokens matter: plain ones, control tokens (literal text, no part of what people
write) and user-defined ones (literal text that is recognised before words are cut). Plain texts
are written in GPT-2's byte characters ("gpt2", byte-level BPE) or with "▁" for blanks ("llama",
SentencePiece). Files hold doubtful things, met as llama.cpp meets them: of several plain tokens
with one text the last counts, and bytes may lack a token.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress

import numpy as np
import numpy.typing as npt
from gguf.constants import TokenType

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.pretokenizers import WORD_RULES, WordRule
from ds4tui.errors import GGUFError

_NEWER = "Another conversion of this model may work, or a newer ds4tui."
_DAMAGED = "The file is damaged or badly converted: get another conversion of this model."
_PREFIX = "tokenizer.ggml."
BLANK = "▁"  # how SentencePiece writes " "
_CONTROL_KINDS = (TokenType.CONTROL, TokenType.UNKNOWN)

# Marks inside a reply that whoever reads it must see. Some files call them control tokens, whose
# text is never shown; they are user-defined here, as most files have it.
SHOWN_MARKS = frozenset(
    "<think> </think> <tool_call> </tool_call> <tool_response> </tool_response> "
    "<arg_key> </arg_key> <arg_value> </arg_value> ｜DSML｜ <｜tool▁calls▁begin｜> "
    "<｜tool▁call▁begin｜> <｜tool▁sep｜> <｜tool▁call▁end｜> <｜tool▁calls▁end｜> "
    '<|tool_call> <tool_call|> <|"|> <|channel> <channel|>'.split()
)

# What other kinds of tokenizers are called by those who made them.
_OTHER_KINDS = {
    "bert": "WordPiece, of embedding models",
    "t5": "SentencePiece unigrams",
    "rwkv": "RWKV",
    "plamo2": "PLaMo-2",
    "gemma4": "Gemma 4",
}


def _byte_characters() -> str:
    """GPT-2's printable stand-in for each byte: itself where it is printable Latin-1, else the
    next free character from U+0100 on."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return "".join(chr(b if b in shown else next(spare)) for b in range(256))


BYTE_CHARACTERS = _byte_characters()


@dataclass(frozen=True, slots=True)
class BytePieces:
    """Byte-level BPE. `ranks` has "left right" of each merge whose texts are all plain."""

    rule: WordRule
    ranks: dict[str, int]


@dataclass(frozen=True, slots=True)
class SentencePieces:
    """`scores` are by id, higher ones merge first. With `space_prefix` a text begins with a
    blank of its own. `glued` as in Findings."""

    scores: npt.NDArray[np.float32]
    space_prefix: bool
    glued: str


@dataclass(frozen=True, slots=True)
class Findings:
    """What took long to find; a cache may keep it for the same file.

    `left_out` are ranks of merges that would make a control token out of what somebody wrote,
    `borrowed` ids of user-defined tokens that merges name: those count as plain too. `glued` are
    characters after which some token of SentencePiece goes on with a blank.
    """

    left_out: tuple[int, ...] = ()
    borrowed: tuple[int, ...] = ()
    glued: str = ""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Checked values. `plain` maps text, as the file spells it, to the id that what people
    write may give."""

    pieces: BytePieces | SentencePieces
    texts: Sequence[str]
    kinds: npt.NDArray[np.int32]
    plain: dict[str, int]
    control: dict[str, int]
    user_defined: dict[str, int]
    bos_id: int | None
    eos_id: int | None
    eot_id: int | None
    eom_id: int | None
    unknown_id: int | None
    padding_id: int | None
    add_bos: bool
    findings: Findings = field(default=Findings())


def read_vocabulary(gguf: GGUFFile, findings: Findings | None = None) -> Vocabulary:
    """`findings` are those of an earlier reading of the same file, which spare the long checks.

    Raises GGUFError for a tokenizer of another kind, for a word rule we do not know, and for
    faults: missing keys, wrong lengths, ids or merges that name no token.
    """
    model = gguf.key(_PREFIX + "model", str)
    if model not in ("gpt2", "llama"):
        made = f" ({_OTHER_KINDS[model]})" if model in _OTHER_KINDS else ""
        raise GGUFError(
            f"{gguf.path.name}: its tokenizer is of the kind {model!r}{made}; ds4tui reads "
            "'gpt2' (byte-level BPE) and 'llama' (SentencePiece).",
            "Choose another model.",
        )
    rule = _rule(gguf) if model == "gpt2" else None
    texts: list[str] = gguf.key(_PREFIX + "tokens", list)
    kinds = _with_shown_marks(_kinds(gguf, len(texts)), texts)
    plain = _plain(texts, kinds, with_bytes=rule is not None)
    pieces: BytePieces | SentencePieces
    if rule is None:
        findings = findings or Findings(glued=_glued(plain))
        pieces = _sentence_pieces(gguf, len(texts), findings.glued)
    else:
        lines: list[str] = gguf.key(_PREFIX + "merges", list)
        if findings is None:
            findings = _check_merges(gguf, lines, texts, kinds, plain)
        plain.update({texts[i]: i for i in findings.borrowed})
        pieces = BytePieces(rule, _ranks(lines, findings))
    ids = {name: _special_id(gguf, name, len(texts)) for name in _SPECIAL_IDS}
    return Vocabulary(
        pieces=pieces,
        texts=texts,
        kinds=kinds,
        plain=plain,
        control=_of_kinds(texts, kinds, _CONTROL_KINDS),
        user_defined=_of_kinds(texts, kinds, (TokenType.USER_DEFINED,)),
        add_bos=gguf.key(_PREFIX + "add_bos_token", bool, rule is None or rule.add_bos),
        findings=findings,
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


def _rule(gguf: GGUFFile) -> WordRule:
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
    _check_count(gguf, key, kinds, count)
    wrong = np.flatnonzero((kinds < 1) | (kinds > max(TokenType)))
    if wrong.size:
        raise GGUFError(
            f"{gguf.path.name}: token {wrong[0]:,} is of the unknown type {kinds[wrong[0]]}.",
            _DAMAGED,
        )
    return kinds


def _with_shown_marks(kinds: npt.NDArray[np.int32], texts: Sequence[str]) -> npt.NDArray[np.int32]:
    for token_id in np.flatnonzero(kinds == TokenType.CONTROL).tolist():
        if texts[token_id] in SHOWN_MARKS:
            kinds[token_id] = TokenType.USER_DEFINED
    return kinds


def _check_count(gguf: GGUFFile, key: str, values: npt.NDArray[np.generic], count: int) -> None:
    if values.shape != (count,):
        raise GGUFError(
            f"{gguf.path.name}: {key} has {values.size:,} entries for {count:,} tokens.", _DAMAGED
        )


def _plain(
    texts: Sequence[str], kinds: npt.NDArray[np.int32], *, with_bytes: bool
) -> dict[str, int]:
    """Text to id of the tokens that are not special. Byte tokens are plain in a byte-level
    vocabulary; in SentencePiece's their text is a name ("<0x0A>") that stands for no text."""
    wanted = kinds == TokenType.NORMAL
    if with_bytes:
        wanted |= kinds == TokenType.BYTE
    # The long way round, `{texts[i]: i for i in ...}`, takes twice as long: a third of a start.
    plain = dict(zip(compress(texts, wanted), np.flatnonzero(wanted).tolist(), strict=True))
    plain.pop("", None)
    return plain


def _glued(plain: dict[str, int]) -> str:
    inside = re.findall(rf"[^{BLANK}\0](?={BLANK})", "\0".join(plain))
    return "".join(sorted(set(inside)))


def _sentence_pieces(gguf: GGUFFile, count: int, glued: str) -> SentencePieces:
    key = _PREFIX + "scores"
    scores = gguf.key(key, np.ndarray).astype(np.float32)
    _check_count(gguf, key, scores, count)
    if not np.isfinite(scores).all():
        wrong = np.flatnonzero(~np.isfinite(scores))[0]
        raise GGUFError(f"{gguf.path.name}: the score of token {wrong:,} is no number.", _DAMAGED)
    space_prefix = gguf.key(_PREFIX + "add_space_prefix", bool, True)
    return SentencePieces(scores, space_prefix, glued)


def _ranks(lines: Sequence[str], findings: Findings) -> dict[str, int]:
    """Of merges that are there twice the first counts."""
    ranks = dict(zip(reversed(lines), range(len(lines) - 1, -1, -1), strict=True))
    for rank in findings.left_out:
        ranks.pop(lines[rank], None)
    return ranks


def _check_merges(
    gguf: GGUFFile,
    lines: Sequence[str],
    texts: Sequence[str],
    kinds: npt.NDArray[np.int32],
    plain: dict[str, int],
) -> Findings:
    """Raises GGUFError naming the first merge that is not two tokens, or makes none."""
    if _is_all_plain(lines, plain):
        return Findings()
    every = {text: i for i, text in enumerate(texts)}
    left_out: list[int] = []
    borrowed: dict[int, None] = {}
    for rank, line in enumerate(lines):
        middle = line.find(" ", 1)  # the first token of a pair may be a blank itself
        left, right = line[:middle], line[middle + 1 :]
        if middle < 0 or not right:
            raise GGUFError(
                f"{gguf.path.name}: merge {rank:,} ({line!r}) is not two tokens.", _DAMAGED
            )
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
                borrowed[every[text]] = None
            else:
                left_out.append(rank)
    return Findings(tuple(dict.fromkeys(left_out)), tuple(borrowed))


def _is_all_plain(lines: Sequence[str], plain: dict[str, int]) -> bool:
    """Whether all merges are pairs of plain tokens that make plain tokens; almost always so,
    and much quicker to see for all at once than for each."""
    pairs = [line.split(" ") for line in lines]
    if any(len(pair) != 2 for pair in pairs):
        return False
    made = {"".join(pair) for pair in pairs}
    named = {text for pair in pairs for text in pair}
    return plain.keys() >= made and plain.keys() >= named


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
