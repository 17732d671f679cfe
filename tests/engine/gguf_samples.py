"""Small GGUF files for tests: good ones by gguf's own writer, odd ones put together by hand."""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFValueType

RawTensor = tuple[npt.NDArray[Any], GGMLQuantizationType]

F32 = GGMLQuantizationType.F32


def random_blocks(
    rng: np.random.Generator, shape: tuple[int, ...], ggml_type: GGMLQuantizationType
) -> npt.NDArray[np.uint8]:
    """Random bytes of a tensor of `shape`: any bits, so scales may be inf or nan."""
    block_elements, block_bytes = gguf.GGML_QUANT_SIZES[ggml_type]
    row_bytes = shape[-1] // block_elements * block_bytes
    return rng.integers(0, 256, (*shape[:-1], row_bytes), np.uint8)


def write_gguf(
    path: Path,
    tensors: Mapping[str, RawTensor],
    keys: Mapping[str, Any] | None = None,
    architecture: str = "llama",
) -> Path:
    """Write tensors (as stored: uint8 [rows.., bytes of a row] when quantised) and keys."""
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in (keys or {}).items():
        writer.add_key_value(name, value, _value_type(value), _item_type(value))
    for name, (raw, ggml_type) in tensors.items():
        writer.add_tensor(name, raw, raw_dtype=ggml_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _value_type(value: Any) -> GGUFValueType:
    if isinstance(value, np.generic):
        return GGUFValueType[value.dtype.name.upper().replace("BOOL_", "BOOL")]
    return GGUFValueType.get_type(value)


def _item_type(value: Any) -> GGUFValueType | None:
    return _value_type(value[0]) if isinstance(value, list) else None


SAMPLE_KEYS: dict[str, Any] = {
    "llama.block_count": np.uint32(3),
    "llama.rope.freq_base": np.float32(10000.0),
    "llama.wide": np.uint64(2**60),
    "llama.negative": np.int64(-(2**60)),
    "llama.small": np.int8(-7),
    "llama.precise": np.float64(0.1),
    "llama.flag": True,
    "general.file_type": np.uint32(gguf.LlamaFileType.MOSTLY_Q4_K_M),
    "general.name": "Пример 猫",
    "tokenizer.ggml.tokens": ["a", "", "ü", "<|end|>"],
    "tokenizer.ggml.scores": [np.float32(0.5), np.float32(-1.0)],
    "tokenizer.ggml.token_type": [np.int32(1), np.int32(3)],
}


def sample_tensors() -> dict[str, RawTensor]:
    rng = np.random.default_rng(0)
    tensors: dict[str, RawTensor] = {
        "norm.weight": (rng.normal(size=8).astype(np.float32), F32),
        "half.weight": (rng.normal(size=(3, 5)).astype(np.float16), GGMLQuantizationType.F16),
    }
    for kind in ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "BF16"):
        ggml_type = GGMLQuantizationType[kind]
        raw = random_blocks(rng, (4, 256), ggml_type)
        tensors[f"{kind.lower()}.weight"] = (raw, ggml_type)
    q8_0 = GGMLQuantizationType.Q8_0
    tensors["experts.weight"] = (random_blocks(rng, (2, 3, 64), q8_0), q8_0)
    return tensors


def write_sample(path: Path) -> Path:
    """A file with a key of every kind and tensors of several."""
    return write_gguf(path, sample_tensors(), SAMPLE_KEYS)


# -- by hand -----------------------------------------------------------------------------------


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return u64(len(raw)) + raw


def key(name: str | bytes, kind: int, payload: bytes) -> bytes:
    return text(name) + u32(kind) + payload


def text_key(name: str | bytes, value: str | bytes) -> bytes:
    return key(name, GGUFValueType.STRING, text(value))


def array_key(name: str, kind: int, count: int, payload: bytes = b"") -> bytes:
    return key(name, GGUFValueType.ARRAY, u32(kind) + u64(count) + payload)


def tensor(name: str | bytes, lengths: Sequence[int], kind: int = F32, offset: int = 0) -> bytes:
    """A tensor's description; `lengths` in the file's order, the row's length first."""
    axes = u32(len(lengths)) + b"".join(u64(n) for n in lengths)
    return text(name) + axes + u32(kind) + u64(offset)


ARCHITECTURE = text_key("general.architecture", "llama")


def gguf_bytes(
    keys: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    version: int = 3,
    key_count: int | None = None,
    tensor_count: int | None = None,
    architecture: bytes = ARCHITECTURE,
) -> bytes:
    """A file with any counts; `data` begins at the first multiple of 32 behind the header."""
    all_keys = [architecture, *keys] if architecture else list(keys)
    counts = (
        len(tensors) if tensor_count is None else tensor_count,
        len(all_keys) if key_count is None else key_count,
    )
    header = b"GGUF" + u32(version) + u64(counts[0]) + u64(counts[1])
    header += b"".join(all_keys) + b"".join(tensors)
    return header + bytes(-len(header) % 32) + data if data else header
