"""Tiny random llamas: a GGUF to read, and the same model again in plain float64 NumPy."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from ds4tui.engine.gguf import GGUFFile


@dataclass(frozen=True)
class Tiny:
    """`factors`: write rope_freqs.weight. `keys`: metadata that replaces or adds to ours,
    None leaves one out. `biases`: a bias beside every projection."""

    heads: int = 4
    kv_heads: int = 2
    key_size: int = 8
    value_size: int = 8
    rotary: int = 8
    width: int = 32
    inner: int = 48
    vocab: int = 64
    blocks: int = 3
    tied: bool = False
    factors: bool = False
    biases: bool = False
    epsilon: float = 1e-5
    base: float = 10_000.0
    scaling: float = 1.0
    seed: int = 0
    architecture: str = "llama"

    def metadata(self) -> dict[str, Any]:
        keys = {
            "block_count": self.blocks,
            "context_length": 4096,
            "embedding_length": self.width,
            "feed_forward_length": self.inner,
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.kv_heads,
            "attention.key_length": self.key_size,
            "attention.value_length": self.value_size,
            "attention.layer_norm_rms_epsilon": self.epsilon,
            "rope.dimension_count": self.rotary,
            "rope.freq_base": self.base,
        }
        if self.scaling != 1.0:
            keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": self.scaling}
        return keys

    def tensors(self) -> dict[str, np.ndarray]:
        """Drawn so that every token is felt: see `test_any_changed_token_moves_the_last_logits`."""
        random = np.random.default_rng(self.seed)

        def matrix(out: int, columns: int, gain: float = 1.0) -> np.ndarray:
            return random.standard_normal((out, columns)) * gain / np.sqrt(columns)

        def norm() -> np.ndarray:
            return 1 + 0.1 * random.standard_normal(self.width)

        q, k, v = (
            self.heads * self.key_size,
            self.kv_heads * self.key_size,
            self.kv_heads * self.value_size,
        )
        tensors = {"token_embd.weight": random.standard_normal((self.vocab, self.width))}
        for i in range(self.blocks):
            block = {
                "attn_norm.weight": norm(),
                "attn_q.weight": matrix(q, self.width, 1.5),
                "attn_k.weight": matrix(k, self.width, 1.5),
                "attn_v.weight": matrix(v, self.width),
                "attn_output.weight": matrix(self.width, self.heads * self.value_size),
                "ffn_norm.weight": norm(),
                "ffn_gate.weight": matrix(self.inner, self.width),
                "ffn_up.weight": matrix(self.inner, self.width),
                "ffn_down.weight": matrix(self.width, self.inner),
            }
            if self.biases:
                block |= {
                    name.replace("weight", "bias"): 0.2 * random.standard_normal(len(tensor))
                    for name, tensor in block.items()
                    if tensor.ndim == 2
                }
            tensors |= {f"blk.{i}.{name}": tensor for name, tensor in block.items()}
        tensors["output_norm.weight"] = norm()
        if not self.tied:
            tensors["output.weight"] = matrix(self.vocab, self.width)
        if self.factors:
            tensors["rope_freqs.weight"] = random.uniform(1, 8, self.rotary // 2)
        return {name: tensor.astype(np.float32) for name, tensor in tensors.items()}


def write(
    path: Path,
    tiny: Tiny,
    keys: dict[str, Any] | None = None,
    tensors: dict[str, np.ndarray | None] | None = None,
    matrices: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
) -> GGUFFile:
    """Write and open `tiny`; `keys` and `tensors` replace or add, None leaves one out.
    `matrices` is the type of all that have two axes."""
    writer = gguf.GGUFWriter(path, tiny.architecture)
    for name, value in (tiny.metadata() | (keys or {})).items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        if value is not None:
            add[type(value)](f"{tiny.architecture}.{name}", value)
    for name, tensor in (tiny.tensors() | (tensors or {})).items():
        if tensor is not None and tensor.ndim == 2:
            writer.add_tensor(name, gguf.quants.quantize(tensor, matrices), raw_dtype=matrices)
        elif tensor is not None:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GGUFFile.open(path)


def oracle(tiny: Tiny, ids: np.ndarray) -> np.ndarray:
    """Logits float64 [T, vocab], from the definition, one query at a time, no cache."""
    w = {name: tensor.astype(np.float64) for name, tensor in tiny.tensors().items()}
    return oracle_of_rows(tiny, w["token_embd.weight"][ids])


def oracle_of_rows(tiny: Tiny, x: np.ndarray) -> np.ndarray:
    w = {name: tensor.astype(np.float64) for name, tensor in tiny.tensors().items()}
    count, share = len(x), tiny.heads // tiny.kv_heads

    def norm(rows: np.ndarray, name: str) -> np.ndarray:
        return rows / np.sqrt((rows**2).mean(-1, keepdims=True) + tiny.epsilon) * w[name]

    def project(rows: np.ndarray, name: str) -> np.ndarray:
        return rows @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)

    def turn(rows: np.ndarray) -> np.ndarray:  # [T, heads, key_size]
        out = rows.copy()
        for j in range(tiny.rotary // 2):
            frequency = tiny.base ** (-2 * j / tiny.rotary) / tiny.scaling
            if tiny.factors:
                frequency /= w["rope_freqs.weight"][j]
            angle = np.arange(count)[:, None] * frequency
            a, b = rows[..., 2 * j], rows[..., 2 * j + 1]
            out[..., 2 * j] = a * np.cos(angle) - b * np.sin(angle)
            out[..., 2 * j + 1] = a * np.sin(angle) + b * np.cos(angle)
        return out

    for i in range(tiny.blocks):
        at = f"blk.{i}."
        n = norm(x, at + "attn_norm.weight")
        q = turn(project(n, at + "attn_q").reshape(count, tiny.heads, -1))
        k = turn(project(n, at + "attn_k").reshape(count, tiny.kv_heads, -1))
        v = project(n, at + "attn_v").reshape(count, tiny.kv_heads, -1)
        mixed = np.zeros((count, tiny.heads, tiny.value_size))
        for t in range(count):
            for h in range(tiny.heads):
                scores = k[: t + 1, h // share] @ q[t, h] / np.sqrt(tiny.key_size)
                weights = np.exp(scores - scores.max())
                mixed[t, h] = weights / weights.sum() @ v[: t + 1, h // share]
        x = x + project(mixed.reshape(count, -1), at + "attn_output")
        m = norm(x, at + "ffn_norm.weight")
        gate = project(m, at + "ffn_gate")
        x = x + project(gate / (1 + np.exp(-gate)) * project(m, at + "ffn_up"), at + "ffn_down")
    head = "token_embd.weight" if tiny.tied else "output.weight"
    return norm(x, "output_norm.weight") @ w[head].T
