"""Varied texts to tokenise: scripts, blanks, digits, code, emoji, and any characters at all."""

import random
from collections.abc import Iterator

FIXED = (
    "",
    " ",
    "\n",
    "Hello, world!",
    "  two  spaces   three\t\ttabs\n\n\nlines\r\nand\rreturns \n ",
    "1 12 123 1234 3.14159 1,000,000 0x1F -7 2nd x10 10x",
    "it's we'll THEY'VE I'd don'T he's' 'tis 's's",
    "def f(x: int) -> str:\n\treturn f'{x!r:>8}'  # café\n",
    'for (let i=0;i<n;++i){a[i]="\\n"+b?.c??d;}',
    "SELECT * FROM t WHERE a<>'b' AND c>=1;--",
    "Grüße, señor, naïve café, Ærøskøbing, Łódź, İstanbul ſtraße",
    "Съешь ещё этих мягких французских булок",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία",
    "שלום עולם, مرحبا بالعالم ١٢٣",
    "हिन्दी में १२३ लिखो, বাংলা ভাষা, தமிழ்",
    "ภาษาไทยไม่มีช่องว่าง ລາວ ខ្មែរ",
    "汉字與漢字，日本語のテキスト。カタカナ　全角１２３",
    "한국어 문장입니다 ㅋㅋㅋ",
    "👩‍👩‍👧‍👦 👍🏽 🇩🇪🇫🇷 🏳️‍🌈 ☺️ 5️⃣ 🫠",
    "e\u0301 a\u0308\u0323 Z\u0351\u036b\u0343 o\u20dd",
    "½ ² Ⅷ ① 𝟙𝟚 𝔘𝔫𝔦 ﬁ Ǆ",
    "\u00a0nbsp\u2003em\u3000ideographic\u200bzero\u2060joiner\ufeff",
    "\x01\x04\x06\x13\x1b[31mred\x1b[0m\x1c\x1f\x7f\x85\u2028\u2029",
    "\U0010ffff\ufffd\ue000\U000f0000\U00040000\U000c0000\u0378",
    "“quoted” ‘single’ — dash … «guillemets» ¿qué? ¡sí!",
    "a" * 300 + " " * 70 + "b" + "\n" * 40 + "=" * 90,
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|>",
    "<|im_start|><|im_start|> <|im_end|>x<|im_end",
    "<|im_start <|im_start|| |im_start|> <||im_end|>>",
    "<file_sep><filename>a.py<repo_name>b<jupyter_start><gh_stars>5 <empty_output>",
    "漢字かなカナ漢字abc 漢 字 中文１２３４５六 한국어漢字 ا漢b #include @user _name a_b $x",
    "हिन्दी e\u0301e\u0301 \u0301x क्षि123 (e\u0301) .\u0301 !a\u0308\u0323b ñ\u0303\u0303",
    "text<file_sep>text</file_sep><file<file_sep>",
)

_ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyz",
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "éèêëàâçñüößÆØŁž",
    "абвгдежзийклмнопрст",
    "αβγδεζηθικλ",
    "אבגדהוזחט",
    "ابتثجحخدذ",
    "कखगघङचछिीु्",
    "ขคฆงจฉั่้",
    "漢字仮名交文",
    "ひらがなカタカナー",
    "한국어조선말",
    "0123456789",
    "٠١٢٣४५६½²³Ⅷ①",
    "😀👩👧🇩🇪👍🏽\u200d\ufe0f",
    "\u0301\u0308\u20dd\u0e31",
    " \u00a0\u2003\u3000\t",
    "\r\n\x0b\x0c\x85\u2028",
    "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
    "“”‘’—…«»¿",
    "\x01\x02\x04\x06\x1c\x1f\x7f\u200b\ufeff",
)
_WORDS = (" ", "  ", "    ", "\n", "\n\n", "\r\n", "\t", "word", "Word", "12345", "it's", "x'LL")
_WORDS += ("def f(x):", "->", "==", "<|", "|>", "<|im_end|>", "<|im_start|>", "im_end", "<file")


def random_texts(count: int, seed: int) -> Iterator[str]:
    """No NUL and no surrogates: llama.cpp takes C strings of UTF-8."""
    draw = random.Random(seed)
    for number in range(count):
        length = draw.randint(1, 40)
        yield "".join(_MAKERS[number % len(_MAKERS)](draw) for _ in range(length))


def _mixed(draw: random.Random) -> str:
    return draw.choice(draw.choice(_ALPHABETS)) * draw.choice((1, 1, 1, 2, 3))


def _any(draw: random.Random) -> str:
    code = draw.randrange(1, draw.choice((0x500, 0xD800, 0x110000)))
    return chr(code) if not 0xD800 <= code < 0xE000 else "\ufffd"


_MAKERS = (_mixed, lambda draw: draw.choice(_WORDS), _any)
