"""A GGUF file being written, and the weights that go into it."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from tests.golden.make import tokens


class Weights:
    """A model's tensors as NumPy arrays; remembers what was taken, so nothing is forgotten."""

    def __init__(self, model: Any, skip: tuple[str, ...] = ()) -> None:
        self.all = {
            name: tensor.detach().float().numpy()
            if tensor.is_floating_point()
            else tensor.detach().numpy()
            for name, tensor in model.state_dict().items()
        }
        self.left = {name for name in self.all if not any(part in name for part in skip)}

    def __call__(self, name: str) -> np.ndarray:
        self.left.discard(name)
        return self.all[name]

    def has(self, name: str) -> bool:
        return name in self.all

    def check_all_written(self) -> None:
        if self.left:
            raise ValueError(f"not written: {sorted(self.left)[:8]} (of {len(self.left)})")


class TinyFile:
    """A GGUF file being written. Keys are given without the architecture prefix."""

    def __init__(self, path: Path, architecture: str, tokenizer: bool = True) -> None:
        self.architecture = architecture
        self.writer = gguf.GGUFWriter(path, architecture)
        self.writer.add_name(f"tiny-{architecture}")
        self.writer.add_file_type(gguf.LlamaFileType.ALL_F32)
        if tokenizer:
            self._add_tokenizer()

    def _add_tokenizer(self) -> None:
        kinds = [gguf.TokenType.NORMAL] * tokens.BOS
        kinds += [gguf.TokenType.CONTROL] * (tokens.VOCAB - tokens.BOS)
        # llama.cpp looks it up by its decoded text, and decodes bytes of NORMAL tokens only
        kinds[tokens.ID["\n\n"]] = gguf.TokenType.NORMAL
        writer = self.writer
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(tokens.vocabulary())
        writer.add_token_types(kinds)
        writer.add_token_merges([" ".join(tokens.MERGED)])
        writer.add_bos_token_id(tokens.BOS)
        writer.add_eos_token_id(tokens.EOS)
        writer.add_add_bos_token(False)

    def key(self, name: str, value: Any) -> None:
        """One key; its GGUF type follows the Python type, and None writes nothing."""
        name = f"{self.architecture}.{name}"
        writer = self.writer
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        elif value is not None:
            writer.add_array(name, list(value))

    def keys(self, **named: Any) -> None:
        """Keys with `__` for a dot: attention__head_count=4."""
        for name, value in named.items():
            self.key(name.replace("__", "."), value)

    def uint64_key(self, name: str, values: Any) -> None:
        kinds = gguf.GGUFValueType
        name = f"{self.architecture}.{name}"
        self.writer.add_key_value(name, [int(v) for v in values], kinds.ARRAY, kinds.UINT64)

    def put(self, name: str, array: np.ndarray) -> None:
        array = np.ascontiguousarray(array)
        if array.dtype not in (np.float32, np.int32):
            raise TypeError(f"{name}: {array.dtype}")
        self.writer.add_tensor(name, array)

    def block(self, layer: int, **named: np.ndarray) -> None:
        """Tensors of one layer, `weight` unless the name already ends in a suffix."""
        for name, array in named.items():
            name = name.replace("__", ".")
            if not name.endswith((".bias", ".weight", "ssm_a")):
                name += ".weight"
            self.put(f"blk.{layer}.{name}", array)

    def close(self) -> None:
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def decay(a_log: np.ndarray) -> np.ndarray:
    """The file's `ssm_a`: -exp(A_log), through float64 so that every libm agrees."""
    return (-np.exp(a_log.astype(np.float64))).astype(np.float32)


def to_torch(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))
