"""How text is cut into words before byte-level BPE, by the name in `tokenizer.ggml.pre`.

The name stands for the regular expressions that the model's authors trained with; llama.cpp
keeps the list of names. Every entry here is compared with llama.cpp, token for token, by
tests/engine/test_tokenizer.py: add a line only together with its name in that test.
"""

import re
from dataclasses import dataclass

from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import PreTokenizer, Sequence, Split


@dataclass(frozen=True, slots=True)
class WordRule:
    """`patterns` cut one after the other, each inside the pieces of the one before; text between
    matches is a piece too. With `ignore_merges` a word that is a token is taken whole.
    `add_bos` holds for files that do not say whether they want a BOS.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False

    def cutter(self) -> "WordCutter":
        return WordCutter(self)


class WordCutter:
    """The regular expressions of a rule, compiled. May be shared by threads."""

    def __init__(self, rule: WordRule) -> None:
        # A model that knows no word: only where words begin and end is asked of it, since that
        # call works without the interpreter's lock and the plain one for cutting does not.
        self._library = Tokenizer(WordLevel({"": 0}, unk_token=""))
        cuts: list[PreTokenizer] = [Split(Regex(p), "isolated") for p in rule.patterns]
        self._library.pre_tokenizer = Sequence(cuts)

    def cut(self, text: str) -> list[str]:
        """The words of `text` (which has no lone surrogates); joined they are `text`."""
        found = self._library.encode_batch([text], add_special_tokens=False)[0]
        return [text[begin:end] for begin, end in found.offsets]


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LINES = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_BLANKS}"
_WORDS = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+"

_TRIPLES = rf"{_WORDS}|\p{{N}}{{1,3}}|{_LINES}"

# DeepSeek's: digits by three, Chinese and Japanese apart, then words.
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_BLANKS}",
)

# Letters with cases, as DeepSeek's authors listed them (an old Unicode's Lu, Ll and Lt).
_CASED_CODES = (
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F "
    "386 388-38A 38C 38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD "
    "1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 "
    "1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 "
    "1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 "
    "2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 "
    "2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B A722-A76F A771-A787 "
    "A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 "
    "104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943"
)
_CASED = re.sub("[0-9A-F]+", r"\\x{\g<0>}", _CASED_CODES).replace(" ", "")

_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_CASED}]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+\z",
    "[一-龥ࠀ-一가-퟿]+",
    r"\p{N}+",
)

_HAN = r"[\p{Han}]+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_KIMI = (
    rf"{_HAN}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_LINES}"
)

_LLAMA3 = WordRule((_TRIPLES,), ignore_merges=True, add_bos=True)
_QWEN2 = WordRule((rf"{_WORDS}|\p{{N}}|{_LINES}",))

WORD_RULES: dict[str, WordRule] = {
    "default": WordRule((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": WordRule((_GPT2,)),
    "smollm": WordRule((r"\p{N}", _GPT2)),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "qwen35": WordRule(
        (
            rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
            rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_BLANKS}",
        )
    ),
    "glm4": WordRule((_TRIPLES,), ignore_merges=True),
    "chatglm-bpe": WordRule((_TRIPLES,)),
    "deepseek-llm": WordRule(_DEEPSEEK_LLM),
    "deepseek-coder": WordRule(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")
    ),
    "deepseek-v3": WordRule(_DEEPSEEK_V3),
    "joyai-llm": WordRule(_DEEPSEEK_V3),
    "kimi-k2": WordRule((_KIMI,)),
}
