"""A mixture of experts whose experts are copied on demand, beside the same one held whole.

    python benchmarks/experts.py [--blocks 16] [--experts 128] [--used 8] [--width 2048]
                                 [--inner 768] [--folder DIR] [--json]

A file of random Q4_K experts (qwen3moe) is written, and walked with all experts held and with
caches of some shares of them: load, a prompt of 512 tokens, the decode of 64 more. Where products
read the file's own blocks (C++ on CPUs) nothing is copied: DS4TUI_KERNELS=reference then.
"""

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import gguf
import mlx.core as mx
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.holding import experts_bytes
from ds4tui.engine.models.registry import Model, family_of, load_model, path_for
from ds4tui.engine.models.rows import Rows
from ds4tui.engine.paging import LoadWish
from ds4tui.kernels.expert_cache import ExpertStats
from ds4tui.kernels.policy import EXACT

PROMPT_TOKENS, DECODE_TOKENS, CONTEXT_TOKENS = 512, 64, 1024
SHARES = (0.75, 0.5, 0.25)
VOCABULARY, HEADS, KV_HEADS, HEAD = 32_000, 16, 4, 128
BLOCK_ELEMENTS, BLOCK_BYTES = 256, 144

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Size:
    blocks: int
    experts: int
    used: int
    width: int
    inner: int


def write_mixture(path: Path, size: Size) -> None:
    """Values of about 0.02 about 0, so that rows stay within float16."""
    writer, random = gguf.GGUFWriter(path, "qwen3moe"), np.random.default_rng(0)
    pool = random.integers(0, 256, (1 << 16, BLOCK_BYTES), dtype=np.uint8)
    pool[:, 0:2] = np.array([1e-4], "<f2").view(np.uint8)
    pool[:, 2:4] = np.array([7.5e-4], "<f2").view(np.uint8)

    def matrix(name: str, *shape: int) -> None:
        picked = random.integers(0, len(pool), int(np.prod(shape)) // BLOCK_ELEMENTS)
        raw = pool[picked].reshape(*shape[:-1], -1)
        writer.add_tensor(f"{name}.weight", raw, raw_dtype=Type.Q4_K)

    def norm(name: str, count: int) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(count, np.float32))

    _add_keys(writer, size)
    matrix("token_embd", VOCABULARY, size.width)
    matrix("output", VOCABULARY, size.width)
    norm("output_norm", size.width)
    for i in range(size.blocks):
        at = f"blk.{i}."
        norm(at + "attn_norm", size.width)
        norm(at + "ffn_norm", size.width)
        norm(at + "attn_q_norm", HEAD)
        norm(at + "attn_k_norm", HEAD)
        matrix(at + "attn_q", HEADS * HEAD, size.width)
        matrix(at + "attn_k", KV_HEADS * HEAD, size.width)
        matrix(at + "attn_v", KV_HEADS * HEAD, size.width)
        matrix(at + "attn_output", size.width, HEADS * HEAD)
        router = random.standard_normal((size.experts, size.width)).astype(np.float32)
        writer.add_tensor(at + "ffn_gate_inp.weight", router * np.float32(0.02))
        matrix(at + "ffn_gate_exps", size.experts, size.inner, size.width)
        matrix(at + "ffn_up_exps", size.experts, size.inner, size.width)
        matrix(at + "ffn_down_exps", size.experts, size.width, size.inner)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_keys(writer: gguf.GGUFWriter, size: Size) -> None:
    writer.add_block_count(size.blocks)
    writer.add_context_length(CONTEXT_TOKENS)
    writer.add_embedding_length(size.width)
    writer.add_feed_forward_length(size.inner)
    writer.add_expert_count(size.experts)
    writer.add_expert_used_count(size.used)
    writer.add_expert_feed_forward_length(size.inner)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)


@dataclass(frozen=True)
class Walk:
    """`share` of the experts that the cache may hold; 1: all are held, without a cache. Decode is
    the median of its steps; hits and what is read are of decoding alone."""

    share: float
    load_s: float
    prefill_s: float
    decode_ms: float
    weights_gb: float
    peak_gb: float
    hits: float = 1.0
    read_mb_per_token: float = 0.0
    read_mb_per_s: float = 0.0
    worst_gap: float = 0.0  # of a logit, as a share of the largest


def walked(path: Path, share: float, budget_bytes: int, ids: Ids) -> tuple[Walk, list[np.ndarray]]:
    mx.clear_cache()
    mx.reset_peak_memory()
    began = time.perf_counter()
    with GGUFFile.open(path) as file:
        model = load_model(file, LoadWish(CONTEXT_TOKENS, budget_bytes))
    load_s, state = time.perf_counter() - began, model.new_state()

    def step(start: int, end: int) -> tuple[np.ndarray, float]:
        began = time.perf_counter()
        logits = model.forward(Rows.of_ids(ids[start:end], start, "last"), state)
        return np.array(logits), time.perf_counter() - began

    logits, prefill_s = step(0, PROMPT_TOKENS)
    before = model.experts.stats if model.experts is not None else None
    steps = [step(at, at + 1) for at in range(PROMPT_TOKENS, len(ids))]
    decode_ms = statistics.median(took for _, took in steps) * 1e3
    sizes = (model.weights_bytes / 1e9, mx.get_peak_memory() / 1e9)
    walk = Walk(share, load_s, prefill_s, decode_ms, *sizes, *_cache_part(model, before))
    return walk, [logits, *(row for row, _ in steps)]


def _cache_part(model: Model, before: ExpertStats | None) -> tuple[float, float, float]:
    stats = model.experts.stats if model.experts is not None else None
    if stats is None or before is None:
        return 1.0, 0.0, 0.0
    hits, misses = stats.hits - before.hits, stats.misses - before.misses
    read = (stats.read_bytes - before.read_bytes) / 1e6
    return (
        hits / max(1, hits + misses),
        read / DECODE_TOKENS,
        stats.read_bytes / 1e3 / max(stats.read_ms, 1e-9),
    )


def measured(path: Path) -> list[Walk]:
    ids = np.random.default_rng(1).integers(0, VOCABULARY, PROMPT_TOKENS + DECODE_TOKENS)
    walked(path, 1.0, 0, ids)  # kernels are compiled
    whole, wanted = walked(path, 1.0, 0, ids)
    with GGUFFile.open(path) as file:
        config = family_of(file).config(file)
        every = experts_bytes(file, path_for(EXACT, config.is_hybrid))
    walks = [whole]
    for share in SHARES:
        walk, got = walked(path, share, int(every * share), ids)
        gap = max(
            float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(got, wanted, strict=True)
        )
        walks.append(Walk(**{**asdict(walk), "worst_gap": gap}))
    return walks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, usual in asdict(Size(16, 128, 8, 2048, 768)).items():
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--folder", type=Path, help="where the file is written")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    size = Size(asked.blocks, asked.experts, asked.used, asked.width, asked.inner)
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        path = Path(folder) / "mixture.gguf"
        write_mixture(path, size)
        file_gb = path.stat().st_size / 1e9
        walks = measured(path)
    if asked.json:
        print(json.dumps({"file_gb": file_gb, "walks": [asdict(walk) for walk in walks]}))
        return
    print(
        f"{mx.default_device()}, a file of {file_gb:.2f} GB, {asked.used} of {asked.experts} picked"
    )
    for walk in walks:
        print(
            f"{walk.share:4.0%} held: load {walk.load_s:5.1f} s, prefill {walk.prefill_s:6.2f} s "
            f"({walk.prefill_s / walks[0].prefill_s:.1f} times), decode {walk.decode_ms:6.1f} ms "
            f"({walk.decode_ms / walks[0].decode_ms:.1f} times), weights {walk.weights_gb:.2f} GB, "
            f"peak {walk.peak_gb:.2f} GB, hits {walk.hits:.0%}, read {walk.read_mb_per_token:.0f} "
            f"MB a token at {walk.read_mb_per_s:,.0f} MB/s, gap {walk.worst_gap:.1g}"
        )


if __name__ == "__main__":
    main()
