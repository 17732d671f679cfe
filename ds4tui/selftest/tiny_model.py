"""A small random model as a GGUF, written by the `gguf` package: the same numbers every time.

A llama of two blocks with a byte-level vocabulary and ChatML's tokens. Its tensors have the types
that people's files have most; blocks of the K types, which the package cannot make of numbers, are
random bits under scales of usual size.
"""

from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type
from gguf import TokenType

from ds4tui.engine.vocabulary import BYTE_CHARACTERS

WIDTH, INNER, HEADS, KV_HEADS, BLOCKS = 256, 512, 4, 2, 2
HEAD = WIDTH // HEADS
CONTEXT_TOKENS = 512

MERGES = ("t h", "th e", "Ġ the", "i n", "e r", "Ġ a", "0 0")
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

# The matrices of a block, [out, in], and their types.
MATRICES = {
    "attn_q": ((HEADS * HEAD, WIDTH), Type.Q4_K),
    "attn_k": ((KV_HEADS * HEAD, WIDTH), Type.Q8_0),
    "attn_v": ((KV_HEADS * HEAD, WIDTH), Type.Q6_K),
    "attn_output": ((WIDTH, HEADS * HEAD), Type.Q4_0),
    "ffn_gate": ((INNER, WIDTH), Type.Q4_1),
    "ffn_up": ((INNER, WIDTH), Type.Q5_0),
    "ffn_down": ((WIDTH, INNER), Type.F16),
}
# Where the float16 scales of a block are.
SCALES_AT = {Type.Q4_K: (0, 2), Type.Q6_K: (208,)}

Raw = npt.NDArray[np.uint8]


def write_tiny_model(path: Path) -> dict[str, tuple[Raw, Type]]:
    """Write it; the bytes and the type of each tensor."""
    writer = gguf.GGUFWriter(path, "llama")
    _add_keys(writer)
    _add_vocabulary(writer)
    tensors = _tensors()
    for name, (raw, kind) in tensors.items():
        writer.add_tensor(name, raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def _add_keys(writer: gguf.GGUFWriter) -> None:
    writer.add_name("ds4tui selftest")
    writer.add_context_length(CONTEXT_TOKENS)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_block_count(BLOCKS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(10_000.0)


def _add_vocabulary(writer: gguf.GGUFWriter) -> None:
    texts = [*BYTE_CHARACTERS, *(merge.replace(" ", "") for merge in MERGES), *SPECIALS]
    plain = len(texts) - len(SPECIALS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(texts)
    writer.add_token_types([TokenType.NORMAL] * plain + [TokenType.CONTROL] * len(SPECIALS))
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(plain)
    writer.add_eos_token_id(plain + 2)


def _tensors() -> dict[str, tuple[Raw, Type]]:
    random = np.random.default_rng(4)
    vocabulary = len(BYTE_CHARACTERS) + len(MERGES) + len(SPECIALS)
    drawn = {
        "token_embd.weight": _matrix(random, (vocabulary, WIDTH), Type.Q8_0),
        "output.weight": _matrix(random, (vocabulary, WIDTH), Type.Q6_K),
        "output_norm.weight": _norm(random),
    }
    for block in range(BLOCKS):
        for name, (shape, kind) in MATRICES.items():
            drawn[f"blk.{block}.{name}.weight"] = _matrix(random, shape, kind)
        for name in ("attn_norm", "ffn_norm"):
            drawn[f"blk.{block}.{name}.weight"] = _norm(random)
    return drawn


def _norm(random: np.random.Generator) -> tuple[Raw, Type]:
    return random.uniform(0.5, 1.5, WIDTH).astype(np.float32).view(np.uint8), Type.F32


def _matrix(random: np.random.Generator, shape: tuple[int, int], kind: Type) -> tuple[Raw, Type]:
    if kind in SCALES_AT:
        return _blocks(random, shape, kind), kind
    values = random.standard_normal(shape, np.float32) / np.sqrt(np.float32(shape[1]))
    return gguf.quants.quantize(values, kind).view(np.uint8), kind


def _blocks(random: np.random.Generator, shape: tuple[int, int], kind: Type) -> Raw:
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (shape[0], shape[1] // elements, size), np.uint8)
    for at in SCALES_AT[kind]:
        scales = random.uniform(1e-4, 3e-4, blocks.shape[:2]).astype(np.float16)
        blocks[..., at : at + 2] = scales[..., None].view(np.uint8)
    return blocks.reshape(shape[0], -1)
