"""Images for tests of the chat: files of a few bytes, a vision that tells them apart without
decoding, a vocabulary with the markers of real families, and templates in their manner."""

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import numpy as np

from ds4tui.chat.messages import Image
from ds4tui.engine.tokenizer import Tokenizer
from ds4tui.engine.vision.layout import ImageBlock
from ds4tui.engine.vision.preprocess import Prepared, Shape
from ds4tui.engine.vision.recognition import Picture
from ds4tui.errors import PictureError
from tests.chat import formats
from tests.engine.vocabularies import CONTROL, USER_DEFINED, tokenizer_of

MARKERS = (
    "<fake_token_around_image>",
    "<global-img>",
    "<image>",
    "<start_of_image>",
    "<end_of_image>",
    "<image_soft_token>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<end_of_utterance>",
    *(f"<row_{row}_col_{column}>" for row in (1, 2, 3) for column in (1, 2, 3)),
)
NEWLINES = ("\n\n\n", "\n\n\n\n")
# transformers' tokenizer has each text once, and "¤" is that of a byte, too.
SPECIALS = (
    *(special for special in formats.SPECIALS if "¤" not in special[0]),
    *((marker, CONTROL) for marker in MARKERS),
    *((lines, USER_DEFINED) for lines in NEWLINES),
)
ID = {text: 257 + number for number, (text, _) in enumerate(SPECIALS)}


def tokenizer(folder: Path) -> Tokenizer:
    return tokenizer_of(folder, *SPECIALS, bos_token_id=ID["<s>"], eos_token_id=ID["</s>"])


def block(family: str, vectors: int) -> ImageBlock:
    opening, placeholder, closing, around = _BLOCKS[family]
    ids = [*(ID[t] for t in opening), *[ID[placeholder]] * vectors, *(ID[t] for t in closing)]
    is_vector = np.array([token == ID[placeholder] for token in ids])
    return ImageBlock(tuple(ids), is_vector, len(ids), around=around)


_FAKE = "<fake_token_around_image>"
_BLOCKS = {
    "idefics3": ((_FAKE, "<global-img>"), "<image>", (_FAKE,), ""),
    "gemma3": (("<start_of_image>",), "<image_soft_token>", ("<end_of_image>",), "\n\n"),
    "qwen": (("<|vision_start|>",), "<|image_pad|>", ("<|vision_end|>",), ""),
    "stand-in": (("<b>",), "</think>", ("<b>",), ""),
}


@dataclass
class FakeVision:
    """A file is the name of its picture, `!` and anything: the way in which it is written. Those
    that begin with "bad" are no pictures."""

    family: str = "idefics3"
    vectors: int = 4
    name: str = "mmproj-fake.gguf"
    decoded: list[bytes] = field(default_factory=list)
    known: dict[bytes, Picture] = field(default_factory=dict)

    def __call__(self, data: bytes, name: str = "The picture", digest: bytes = b"") -> Picture:
        key = digest or blake2b(data, digest_size=16).digest()
        if key not in self.known:
            self.decoded.append(data)
            if data.startswith(b"bad"):
                raise PictureError(f"{name} is no picture that can be read.", name, "Send a PNG.")
            fingerprint = blake2b(data.partition(b"!")[0], digest_size=16).digest()
            shape = Shape((8, 8), 1, (0, 0))
            self.known[key] = Picture(
                fingerprint, shape, block(self.family, self.vectors), _not_encoded
            )
        return self.known[key]

    def tokens_of(self, size: tuple[int, int]) -> int:
        return block(self.family, self.vectors).rows

    def of(self, image: Image) -> Picture:
        return self(image.data, image.name, image.digest)


def _not_encoded() -> Prepared:
    raise AssertionError("nothing is encoded here")


# In the manners of SmolVLM, Gemma 3, Qwen2.5-VL and Qwen3-VL.
SMOLVLM = """<|im_start|>
{%- for m in messages %}
{{- m.role | capitalize ~ (':' if m.content[0].type == 'image' else ': ') }}
{%- for part in m.content %}
{{- part.text if part.type == 'text' else '<image>' }}
{%- endfor %}
{{- '<|end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"""

GEMMA3 = """{{- bos_token }}
{%- if messages[0].role == 'system' %}
{%- set first = messages[0].content ~ '\n\n' %}{% set told = messages[1:] %}
{%- else %}{% set first = '' %}{% set told = messages %}{% endif %}
{%- for m in told %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate') }}
{%- endif %}
{{- '<|im_start|>' ~ ('model' if m.role == 'assistant' else m.role) ~ '\n' }}
{{- first if loop.first else '' }}
{%- if m.content is string %}{{ m.content | trim }}
{%- else %}
{%- for part in m.content %}
{%- if part.type == 'image' %}{{ '<start_of_image>' }}{% else %}{{ part.text | trim }}{% endif %}
{%- endfor %}
{%- endif %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>model\n' }}{% endif %}"""

_QWEN_CONTENT = """{%- macro said(content) %}
{%- if content is string %}{{ content }}
{%- else %}
{%- for part in content %}
{%- if part.type == 'image' or 'image' in part %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- elif 'text' in part %}{{ part.text }}
{%- endif %}
{%- endfor %}
{%- endif %}
{%- endmacro %}"""

QWEN2_5_VL = (
    _QWEN_CONTENT
    + """
{%- for m in messages %}
{%- if loop.first and m.role != 'system' %}
{{- '<|im_start|>system\nYou help.<|im_end|>\n' }}
{%- endif %}
{{- '<|im_start|>' ~ m.role ~ '\n' ~ said(m.content) ~ '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
)

QWEN3_VL = _QWEN_CONTENT + formats.HERMES.replace("m.content ~", "said(m.content) ~")

TYPED = {"smolvlm": SMOLVLM, "gemma3": GEMMA3, "qwen2.5vl": QWEN2_5_VL, "qwen3vl": QWEN3_VL}
FAMILY = {"smolvlm": "idefics3", "gemma3": "gemma3", "qwen2.5vl": "qwen", "qwen3vl": "qwen"}

PictureOf = Callable[[Image], Picture]
