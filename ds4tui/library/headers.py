"""What the header of a model's file says about it, and what it would take to open it here.

Only headers are read; MLX is not needed. How matrices are held is assumed for this kind of
machine: as `engine/holding.py` counts for the path that `kernels/choice.py` would take.
"""

import os
import sys
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ds4tui.engine.capacity import RAW_SLACK_ROWS, window_capacity
from ds4tui.engine.indexes import own_indexes

if TYPE_CHECKING:
    from ds4tui.engine.gguf import GGUFFile
    from ds4tui.kernels.choice import ComputePath
    from ds4tui.kernels.cpu.native.build import Compiler

GLOBAL_EVERY = 6  # of a gemma3's layers sees all rows, as engine/models/gemma3.py has it

# The keys of engine/models/registry.py's FAMILIES, without importing MLX.
ARCHITECTURES = frozenset(
    "llama qwen2 qwen2vl qwen3 qwen3moe qwen3vl qwen3vlmoe "
    "gemma3 qwen3next qwen35 qwen35moe qwen4exp glm5-next deepseek2 deepseek32 "
    "deepseek4 glm-dsa".split()
)
OTHER_NAMES = {"glm5next": "glm5-next"}  # as there
INDEXED_LATENTS = ("deepseek32", "glm-dsa")  # engine/models/latent.py
LATENTS = ("deepseek2", *INDEXED_LATENTS)
FULL_ATTENTION_INTERVAL = 4  # of a hybrid's layers keeps rows, as engine/models/hybrid.py has it


@dataclass(frozen=True, slots=True)
class Facts:
    """Bytes are of the files (`file_bytes`) or of memory. `context_tokens` is the model's own;
    0 where the file does not say. A state of n tokens takes about n times `kv_bytes_per_token`,
    and `kv_fixed_bytes` for the layers that keep their last rows only, or no rows."""

    architecture: str
    quantisation: str
    parameters: int
    file_bytes: int
    context_tokens: int
    weights_bytes: int  # while they are loaded, at the peak
    resident_bytes: int  # of the weights, once they are loaded
    kv_bytes_per_token: int
    kv_fixed_bytes: int = 0
    width: int = 0  # numbers in the vector of a token
    # As weights_bytes, of experts only what a token picks; 0: all are held, or there are none.
    paged_bytes: int = 0

    @property
    def is_read(self) -> bool:
        return OTHER_NAMES.get(self.architecture, self.architecture) in ARCHITECTURES


def read_facts(path: Path) -> Facts:
    """Raises ModelNotFound and GGUFError as GGUFFile.open does."""
    from ds4tui.engine.gguf import GGUFFile
    from ds4tui.engine.holding import required_bytes, resident_bytes

    with GGUFFile.open(path) as gguf:
        assumed = assumed_path()
        path_taken = cast("ComputePath", assumed)
        growing, windowed_rows = _kv_layers(gguf)
        recurrent = _recurrent_layers(gguf)
        size = assumed.activations.size
        values = (_row_values(gguf) + _index_values(gguf)) * size + _position_bytes(gguf)
        return Facts(
            architecture=gguf.architecture,
            quantisation=gguf.quantisation_label,
            parameters=gguf.parameters,
            file_bytes=gguf.file_bytes,
            context_tokens=_number(gguf, ".context_length"),
            weights_bytes=required_bytes(gguf, path_taken),
            resident_bytes=resident_bytes(gguf, path_taken),
            kv_bytes_per_token=growing * values,
            kv_fixed_bytes=windowed_rows * values
            + recurrent * _recurrent_bytes(gguf)
            + _raw_bytes(gguf, size)
            + _ngram_bytes(gguf),
            width=_number(gguf, ".embedding_length"),
            paged_bytes=_paged_bytes(gguf, path_taken),
        )


def _paged_bytes(gguf: "GGUFFile", path: "ComputePath") -> int:
    from ds4tui.engine.holding import experts_bytes, picked_bytes, required_bytes

    experts = experts_bytes(gguf, path)
    if not experts or path.matrices == "host":
        return 0
    others = required_bytes(gguf, cast("ComputePath", replace(assumed_path(), is_short=True)))
    return others + picked_bytes(gguf, path)


def _row_values(gguf: "GGUFFile") -> int:
    """Numbers in the keys and values of one row of one layer, or in its latent row."""
    if _is_glm5_next(gguf):
        return _number(gguf, ".attention.kv_lora_rank")
    if gguf.architecture == "deepseek4":
        return _with_pools(gguf)
    if gguf.architecture in LATENTS:
        return _number(gguf, ".attention.kv_lora_rank") + _number(gguf, ".rope.dimension_count")
    width, heads = _number(gguf, ".embedding_length"), _number(gguf, ".attention.head_count")
    kv_heads = _number(gguf, ".attention.head_count_kv") or heads
    key = _number(gguf, ".attention.key_length") or (width // heads if heads else 0)
    value = _number(gguf, ".attention.value_length") or key
    return kv_heads * (key + value)


def _with_pools(gguf: "GGUFFile") -> int:
    """Of the pools of DeepSeek V4 (engine/models/deepseek4.py), of a row in a block on average."""
    size, key = (_number(gguf, f".attention.{n}key_length") for n in ("", "indexer."))
    of_ratio = {128: size / 128, 4: (size + key) / 4}
    ratios = _pool_ratios(gguf)
    return round(sum(of_ratio.get(r, 0.0) for r in ratios) / max(1, len(ratios)))


def _raw_bytes(gguf: "GGUFFile", number_bytes: int) -> int:
    """Of the last rows that DeepSeek V4 keeps of its window, and in float32 of what pools are made
    of; 0 for other families."""
    if gguf.architecture != "deepseek4":
        return 0
    size, key = (_number(gguf, f".attention.{n}key_length") for n in ("", "indexer."))
    window, held = _number(gguf, ".attention.sliding_window"), 0
    for ratio in _pool_ratios(gguf):
        values = {128: 2 * size, 4: 4 * (size + key)}.get(ratio, 0)
        reach = max(window, ratio if ratio == 128 else 2 * ratio)
        held += window_capacity(reach, RAW_SLACK_ROWS) * (size * number_bytes + values * 4)
    return held


def _pool_ratios(gguf: "GGUFFile") -> list[int]:
    ratios: Any = gguf.metadata.get("deepseek4.attention.compress_ratios")
    blocks = _number(gguf, ".block_count") - _number(gguf, ".nextn_predict_layers")
    return [int(ratio) for ratio in ratios[:blocks]] if hasattr(ratios, "dtype") else []


def _is_glm5_next(gguf: "GGUFFile") -> bool:
    return OTHER_NAMES.get(gguf.architecture, gguf.architecture) == "glm5-next"


def _index_values(gguf: "GGUFFile") -> int:
    """Numbers that one layer's index of pools keeps of a row, with the row's share of its pool
    (engine/models/qwen4exp.py, glm5_next.py); 0 for a layer without one."""
    key = _number(gguf, ".attention.indexer.key_length")
    if _is_glm5_next(gguf):
        return 2 * key + key // max(1, _number(gguf, ".attention.indexer.kpool"))
    if gguf.architecture in INDEXED_LATENTS:
        return round(key * _share_of_own_indexes(gguf))
    pool = _number(gguf, ".attention.compress_ratios") if gguf.architecture == "qwen4exp" else 0
    return key + key // pool if pool else 0


def _share_of_own_indexes(gguf: "GGUFFile") -> float:
    """Of the blocks of a model with an index of rows."""
    blocks = _number(gguf, ".block_count") - _number(gguf, ".nextn_predict_layers")
    if gguf.architecture != "glm-dsa" or blocks < 1:
        return 1.0
    types: Any = gguf.metadata.get("glm-dsa.attention.indexer.types")
    known = types if hasattr(types, "dtype") else None
    return sum(own_indexes(known, _number(gguf, ".context_length"), blocks)) / blocks


def _position_bytes(gguf: "GGUFFile") -> int:
    """Of where a row stands, in three directions, which such a layer has to know."""
    return 3 * 4 if gguf.architecture == "qwen4exp" else 0


def _ngram_bytes(gguf: "GGUFFile") -> int:
    """Of the last rows that a model's n-grams keep, in float32."""
    wide = _number(gguf, ".hyper_connection.count") * _number(gguf, ".embedding_length")
    rows = max(0, _number(gguf, ".ple.conv_kernel") - 1) * _number(gguf, ".ple.ngram_size")
    return 4 * rows * wide


def _kv_layers(gguf: "GGUFFile") -> tuple[int, int]:
    """How many layers keep all rows, with one more, which is there twice while its buffer grows;
    and how many rows the others keep in all."""
    blocks, windowed = _number(gguf, ".block_count"), windowed_layers(gguf)
    if windowed:
        rows = window_capacity(_number(gguf, ".attention.sliding_window"))
        return blocks - windowed + 1, windowed * rows
    left_out = _number(gguf, ".nextn_predict_layers")
    return max(0, blocks - left_out - _recurrent_layers(gguf)) + 1, 0


def _recurrent_layers(gguf: "GGUFFile") -> int:
    """Layers of a hybrid that keep a state that does not grow (engine/models/hybrid.py)."""
    if not (_number(gguf, ".ssm.inner_size") or _is_glm5_next(gguf)):
        return 0
    blocks = max(0, _number(gguf, ".block_count") - _number(gguf, ".nextn_predict_layers"))
    listed: Any = gguf.metadata.get(f"{gguf.architecture}.attention.recurrent_layers")
    if hasattr(listed, "dtype"):
        return int((listed[:blocks] != 0).sum())
    heads: Any = gguf.metadata.get(f"{gguf.architecture}.attention.head_count_kv")
    if hasattr(heads, "dtype"):  # none where a block keeps no rows (engine/models/glm5_next.py)
        return int((heads[:blocks] == 0).sum())
    interval = _number(gguf, ".full_attention_interval") or FULL_ATTENTION_INTERVAL
    return blocks - blocks // interval


def _recurrent_bytes(gguf: "GGUFFile") -> int:
    """Of the matrices and the convolution's last rows of one such layer, in float32."""
    if _is_glm5_next(gguf):
        size, kept = _number(gguf, ".kda.head_dim"), max(0, _number(gguf, ".ssm.conv_kernel") - 1)
        return 4 * _number(gguf, ".attention.head_count") * size * (size + 3 * kept)
    keys, values = _number(gguf, ".ssm.state_size"), _number(gguf, ".ssm.inner_size")
    channels = 2 * _number(gguf, ".ssm.group_count") * keys + values
    return 4 * (values * keys + max(0, _number(gguf, ".ssm.conv_kernel") - 1) * channels)


def windowed_layers(gguf: "GGUFFile") -> int:
    """Layers whose queries see the last rows only (engine/models/gemma3.py)."""
    if gguf.architecture != "gemma3" or not _number(gguf, ".attention.sliding_window"):
        return 0
    blocks = _number(gguf, ".block_count")
    pattern: Any = gguf.metadata.get("gemma3.attention.sliding_window_pattern", GLOBAL_EVERY)
    if hasattr(pattern, "dtype"):
        return min(blocks, int((pattern != 0).sum()))
    return blocks - blocks // pattern if type(pattern) is int and pattern > 0 else 0


def _number(gguf: "GGUFFile", name: str) -> int:
    """A key that is a whole number from 0 up, or of an array of them (a layer each) the largest;
    else 0."""
    value: Any = gguf.metadata.get(f"{gguf.architecture}{name}", 0)
    if hasattr(value, "dtype"):
        value = int(value.max()) if value.size and value.dtype.kind in "iu" else 0
    return value if type(value) is int and value >= 0 else 0


@dataclass(frozen=True, slots=True)
class _Activations:
    name: str
    size: int

    def __str__(self) -> str:
        return f"mlx.core.{self.name}"


@dataclass(frozen=True, slots=True)
class _AssumedPath:
    """The part of kernels.choice.ComputePath that engine.holding looks at."""

    matrices: str
    activations: _Activations
    policy: Any = field(default=None)
    experts: None = None
    is_short: bool = False


def assumed_path() -> _AssumedPath:
    """How this kind of machine holds matrices, with the kernels that DS4TUI_KERNELS asks for."""
    from ds4tui.kernels.policy import EXACT

    kernels = os.environ.get("DS4TUI_KERNELS", "")
    if sys.platform == "darwin":
        return _AssumedPath("quantised", _Activations("float16", 2), EXACT)
    if kernels == "reference":
        return _AssumedPath("dense", _Activations("float32", 4), EXACT)
    if kernels == "openblas":
        return _AssumedPath("host", _Activations("float32", 4), EXACT)
    matrices = "blocks" if _has_native_kernels() else "host"
    return _AssumedPath(matrices, _Activations("float32", 4), EXACT)


def _has_native_kernels() -> bool:
    """Whether they are compiled, or will be when a model is opened."""
    from ds4tui.kernels.cpu.native.build import can_be_built
    from ds4tui.kernels.cpu.native.variants import runnable

    compiler, variants = _compiler(), runnable()
    return compiler is not None and bool(variants) and can_be_built(variants[0], compiler)


@cache
def _compiler() -> "Compiler | None":
    """Asked for its version once a process."""
    from ds4tui.kernels.cpu.native.build import Unavailable, find_compiler

    try:
        return find_compiler()
    except Unavailable:
        return None
