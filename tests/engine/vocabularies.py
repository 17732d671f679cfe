"""Small vocabularies as GGUF files without tensors, and the real one under other names."""

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, TokenType

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.tokenizer import Tokenizer
from ds4tui.engine.vocabulary import BYTE_CHARACTERS
from tests.engine.gguf_samples import write_gguf

PREFIX = "tokenizer.ggml."

NORMAL, CONTROL = TokenType.NORMAL, TokenType.CONTROL
UNKNOWN, USER_DEFINED, UNUSED = TokenType.UNKNOWN, TokenType.USER_DEFINED, TokenType.UNUSED


def byte_keys(
    *specials: tuple[str, TokenType], merges: tuple[str, ...] = ("t h",), pre: str = "gpt-2"
) -> dict[str, Any]:
    """Token i is byte i; then the products of `merges`; then `specials`, in that order."""
    texts = [*BYTE_CHARACTERS, *(m.replace(" ", "", 1) for m in merges), *(t for t, _ in specials)]
    kinds = [NORMAL] * (256 + len(merges)) + [kind for _, kind in specials]
    return {
        PREFIX + "model": "gpt2",
        PREFIX + "pre": pre,
        PREFIX + "tokens": texts,
        PREFIX + "token_type": [int(kind) for kind in kinds],
        PREFIX + "merges": list(merges),
    }


def vocabulary_file(path: Path, keys: dict[str, Any]) -> GGUFFile:
    return GGUFFile.open(write_gguf(path, {}, keys))


def tokenizer_of(folder: Path, *specials: tuple[str, TokenType], **more: Any) -> Tokenizer:
    """A byte tokenizer; `more` as for byte_keys, or further keys after "tokenizer.ggml."."""
    shape = {name: more.pop(name) for name in ("merges", "pre") if name in more}
    keys = byte_keys(*specials, **shape)
    keys.update({PREFIX + name: value for name, value in more.items()})
    with vocabulary_file(folder / "vocabulary.gguf", keys) as file:
        return Tokenizer.from_gguf(file)


def enriched_keys(real: GGUFFile, pre: str) -> dict[str, Any]:
    """The real vocabulary for another pre-tokenizer, with the tokens added that tell where it
    cuts digits, contractions and blanks (the real one has none: each digit is a word)."""
    keys = {n: _writable(real.metadata[n]) for n in real.metadata if n.startswith("tokenizer.")}
    digits = "0123456789"
    merges = [f"{a} {b}" for a in (*digits, "Ġ", "'") for b in digits]
    merges += [f"{a}{b} {c}" for a in digits for b in digits for c in digits]
    merges += [f"{a}{b}{c} 7" for a in digits for b in digits for c in digits]
    merges += ["' S", "' T", "' V", "'V E", "' L", "'L L", "' D", "! Ċ", "Ċ !", "Ġ Ċ", "ĉ a"]
    merges += ["Ì ģ", "e Ìģ", "it 's"]  # a combining mark at its letter, a word's ending
    known = set(keys[PREFIX + "tokens"])
    added = [text for m in merges if (text := m.replace(" ", "")) not in known]
    keys[PREFIX + "tokens"] = [*keys[PREFIX + "tokens"], *added]
    keys[PREFIX + "token_type"] = [*keys[PREFIX + "token_type"], *[int(NORMAL)] * len(added)]
    keys[PREFIX + "merges"] = [*keys[PREFIX + "merges"], *merges]
    return {**keys, PREFIX + "pre": pre}


def relabelled(path: Path, real: GGUFFile, pre: str) -> Path:
    """A llama file that can be loaded, with `enriched_keys` and tiny weights."""
    return loadable(path, enriched_keys(real, pre))


def loadable(path: Path, keys: dict[str, Any]) -> Path:
    """A llama file with a vocabulary and tiny weights, for llama.cpp to tokenise with."""
    keys = {**keys, **{f"llama.{name}": value for name, value in _TINY.items()}}
    keys = {name: _writable(value) for name, value in keys.items()}
    count, width = len(keys[PREFIX + "tokens"]), 32
    shapes = {"token_embd": (count, width), "output_norm": (width,)}
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        shapes[f"blk.0.{name}"] = (width, width)
    for name in ("attn_norm", "ffn_norm"):
        shapes[f"blk.0.{name}"] = (width,)
    f32 = GGMLQuantizationType.F32
    tensors = {f"{n}.weight": (np.zeros(s, np.float32), f32) for n, s in shapes.items()}
    return write_gguf(path, tensors, keys)


def _writable(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return list(value) if value.dtype == np.float32 else value.tolist()
    return np.uint32(value) if type(value) is int else value


_TINY: dict[str, Any] = {
    "block_count": np.uint32(1),
    "context_length": np.uint32(256),
    "embedding_length": np.uint32(32),
    "feed_forward_length": np.uint32(32),
    "attention.head_count": np.uint32(1),
    "attention.layer_norm_rms_epsilon": np.float32(1e-5),
}


def sentence_keys(*specials: tuple[str, TokenType], **more: Any) -> dict[str, Any]:
    """A SentencePiece vocabulary: unknown and BOS; a token for each byte; words of letters,
    blanks and repetitions, the longer ones with better scores now and then; then `specials`.
    `more` are further keys after "tokenizer.ggml."."""
    words = [*"▁abcdehlnorst=>é漢", *SENTENCE_WORDS]
    texts = ["<unk>", "<s>", *(f"<0x{b:02X}>" for b in range(256)), *words]
    kinds = [UNKNOWN, CONTROL, *[TokenType.BYTE] * 256, *[NORMAL] * len(words)]
    scores = [0.0] * 258 + [-float(7 * n % 31) for n in range(len(words))]
    keys: dict[str, Any] = {
        "model": "llama",
        "tokens": [*texts, *(text for text, _ in specials)],
        "token_type": [int(kind) for kind in (*kinds, *(kind for _, kind in specials))],
        "scores": [*map(np.float32, scores), *[np.float32(0)] * len(specials)],
        "bos_token_id": 1,
        "unknown_token_id": 0,
        **more,
    }
    return {PREFIX + name: value for name, value in keys.items()}


SENTENCE_WORDS = (
    *("aa", "aaa", "aaaa", "ba", "ab", "aba", "th", "the", "▁t", "▁th", "▁the", "he", "▁▁", "▁▁▁▁"),
    *(
        "==",
        "===",
        "====",
        ">▁=",
        "▁=",
        ">▁",
        "s▁t",
        "no",
        "on",
        "non",
        "▁non",
        "▁on",
        "▁a",
        "漢漢",
    ),
)


def sentence_tokenizer(folder: Path, *specials: tuple[str, TokenType], **more: Any) -> Tokenizer:
    with vocabulary_file(folder / "sentence.gguf", sentence_keys(*specials, **more)) as file:
        return Tokenizer.from_gguf(file)
