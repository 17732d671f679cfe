"""How text is cut into words before byte-level BPE, by the name in `tokenizer.ggml.pre`.

The name stands for the regular expressions that the model's authors trained with; llama.cpp
keeps the list of names. Every entry here is compared with llama.cpp, token for token, by
tests/engine/test_tokenizer.py: add a line only together with its name in that test.
"""

from dataclasses import dataclass

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Sequence, Split


@dataclass(frozen=True, slots=True)
class WordRule:
    """`patterns` cut one after the other, each inside the pieces of the one before; text between
    matches is a piece too. With `ignore_merges` a word that is a token is taken whole.
    `add_bos` holds for files that do not say whether they want a BOS.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False

    def pre_tokenizer(self) -> PreTokenizer:
        cuts: list[PreTokenizer] = [Split(Regex(p), "isolated") for p in self.patterns]
        return Sequence([*cuts, ByteLevel(add_prefix_space=False, use_regex=False)])


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_LINES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

WORD_RULES: dict[str, WordRule] = {
    "default": WordRule((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": WordRule((_GPT2,)),
    "smollm": WordRule((r"\p{N}", _GPT2)),
    "llama-bpe": WordRule(
        (rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_LINES}",),
        ignore_merges=True,
        add_bos=True,
    ),
    "qwen2": WordRule((rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_LINES}",)),
}
