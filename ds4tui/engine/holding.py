"""How the tensors of a file are held on a device and what that takes, told from the header alone.

The words are those that a loaded model says of itself (`Linear.form`). Needs no mlx itself.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, assert_never

from gguf.constants import GGMLQuantizationType

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.gguf_format import TensorInfo
from ds4tui.engine.repack import NATIVE_FORMS
from ds4tui.kernels.cpu.native.formats import BLOCK_TYPES
from ds4tui.kernels.policy import LoadedWeightsPolicy

if TYPE_CHECKING:
    from ds4tui.kernels.choice import ComputePath

Way = Literal[
    "blocks", "values", "rounded values", "native form", "native form, rounded", "re-quantised"
]

# Types whose values are plain numbers already.
PLAIN = frozenset(GGMLQuantizationType[name] for name in "F64 F32 F16 BF16 I8 I16 I32 I64".split())
# Types whose values are exact in a dtype of 16 bits; the last two are a scale, its negative or 0.
_SHORT = {
    GGMLQuantizationType.F16: "float16",
    GGMLQuantizationType.BF16: "bfloat16",
    GGMLQuantizationType.TQ1_0: "float16",
    GGMLQuantizationType.TQ2_0: "float16",
}

# Bits of a policy to bits and elements under one scale: 8.5 and 5 bits a weight.
_REQUANTISED = {"8": (8, 64), "4": (4, 32)}


# Tables larger than the rest of a model: a few rows a token are read where the file is mapped.
LOOKED_UP = "per_layer_token_embd.weight"


@dataclass(frozen=True, slots=True)
class Holding:
    """`nbytes` of memory. `exact`: all numbers are those of the file. `wide_scales`: the form's
    scales are float32 where rows are not."""

    form: str
    nbytes: int
    way: Way
    wide_scales: bool = False

    @property
    def exact(self) -> bool:
        return self.way in ("blocks", "values", "native form")


def requantised_groups(info: TensorInfo, policy: LoadedWeightsPolicy) -> tuple[int, int] | None:
    """Bits and group size that a matrix (or several along a first axis) is quantised to anew by
    `policy`; None if it is not."""
    wanted = _REQUANTISED.get(policy.requantise)
    known = info.ggml_type in PLAIN or info.ggml_type in NATIVE_FORMS
    if wanted is None or known or len(info.shape) not in (2, 3) or info.shape[-1] % wanted[1]:
        return None
    return wanted


def vector_holding(info: TensorInfo) -> Holding:
    if info.name == LOOKED_UP:
        return Holding("rows read from the file when they are wanted", 0, "blocks")
    return Holding("float32 in MLX", 4 * math.prod(info.shape), "values")


def matrix_holding(info: TensorInfo, path: "ComputePath") -> Holding:
    """As ComputePath.linear and .stack hold it; damaged scales (not finite) aside."""
    if info.name == LOOKED_UP:
        return vector_holding(info)
    elements = math.prod(info.shape)
    match path.matrices:
        case "blocks":
            if info.ggml_type in BLOCK_TYPES:
                return Holding(f"{info.ggml_type.name} blocks of the file", info.nbytes, "blocks")
            return Holding(f"float32, read from {info.ggml_type.name}", 4 * elements, "values")
        case "host":
            return Holding("float32 in NumPy", 4 * elements, "values")
        case "dense":
            return _dense(info, path)
        case "quantised":
            return _native(info, path) or _requantised(info, path) or _dense(info, path)
    assert_never(path.matrices)


def _dense(info: TensorInfo, path: "ComputePath") -> Holding:
    dtype = str(path.activations).removeprefix("mlx.core.")
    same = dtype == "float32" or _SHORT.get(info.ggml_type) == dtype
    way: Way = "values" if same else "rounded values"
    return Holding(f"{dtype} in MLX", math.prod(info.shape) * path.activations.size, way)


def _native(info: TensorInfo, path: "ComputePath") -> Holding | None:
    native, elements = NATIVE_FORMS.get(info.ggml_type), math.prod(info.shape)
    if native is None or len(info.shape) not in (2, 3):
        return None
    if native.mode != "affine":
        form = f"{native.mode} groups of {native.group_size}"
        return Holding(form, native.nbytes(elements, 1), "native form")
    rounded = path.policy.scales == "float16" and not native.short_scales
    short = path.activations.size == 2 and (native.short_scales or rounded)
    form = _affine_words(native.bits, native.group_size, short)
    way: Way = "native form, rounded" if rounded else "native form"
    wide = path.activations.size == 2 and not short
    return Holding(form, native.nbytes(elements, 2 if short else 4), way, wide)


def _requantised(info: TensorInfo, path: "ComputePath") -> Holding | None:
    groups = requantised_groups(info, path.policy)
    if groups is None:
        return None
    (bits, size), elements = groups, math.prod(info.shape)
    short = path.activations.size == 2
    nbytes = elements * bits // 8 + elements // size * (4 if short else 8)
    return Holding(_affine_words(bits, size, short), nbytes, "re-quantised")


def _affine_words(bits: int, group_size: int, short: bool) -> str:
    return f"{bits}-bit groups of {group_size}, scales float{16 if short else 32}"


def is_experts(info: TensorInfo) -> bool:
    """Whether a tensor is matrices stacked along a first axis, one an expert."""
    return len(info.shape) == 3 and "_exps." in info.name


def required_bytes(gguf: GGUFFile, path: "ComputePath") -> int:
    """Memory that loading all tensors takes at its peak: all of them, and the largest twice, but
    for blocks, which stay where the file is mapped (and count, though the system may drop them).
    Of experts that are not all held it is what is held of them."""
    held = _held(gguf, path)
    return sum(held) + _experts_kept(path) + _loaded_twice(held, path)


def resident_bytes(gguf: GGUFFile, path: "ComputePath") -> int:
    """What all tensors take once they are loaded."""
    return sum(_held(gguf, path)) + _experts_kept(path)


def experts_bytes(gguf: GGUFFile, path: "ComputePath") -> int:
    """What all experts would take."""
    stacks = (info for info in gguf.tensors.values() if is_experts(info))
    return sum(matrix_holding(info, path).nbytes for info in stacks)


def picked_bytes(gguf: GGUFFile, path: "ComputePath") -> int:
    """What a token picks of all experts, as they are held."""
    used = gguf.key(".expert_used_count", int, 1)
    stacks = [info for info in gguf.tensors.values() if is_experts(info)]
    return sum(
        matrix_holding(info, path).nbytes * min(used, info.shape[0]) // info.shape[0]
        for info in stacks
    )


def _loaded_twice(held: list[int], path: "ComputePath") -> int:
    return 0 if path.matrices == "blocks" else max(held, default=0)


def _experts_kept(path: "ComputePath") -> int:
    """Of experts that are not all held; what the system maps of them it drops when it must."""
    return 0 if path.experts is None else path.experts.stats.budget_bytes


def _held(gguf: GGUFFile, path: "ComputePath") -> list[int]:
    """Of each tensor that is held whole."""
    in_part = path.experts is not None or path.is_short
    return [
        (vector_holding(info) if len(info.shape) < 2 else matrix_holding(info, path)).nbytes
        for info in gguf.tensors.values()
        if not (in_part and is_experts(info))
    ]
