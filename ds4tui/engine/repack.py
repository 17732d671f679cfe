"""Blocks of a GGUF as groups of MLX's quantised forms, for the types where nothing is lost.

MLX's affine form is w = scale * q + bias over groups along a row. With float32 scales and biases
it equals gguf's dequantisation bit by bit (but for the sign of zeros): a scale has at most 17
significant bits (a float16 times a 6-bit factor), q at most 8 of 5 (or 11 and 8), so a product
is exact, and a sum of it and the bias is rounded once, as in gguf. Float16 holds the scales of
some types exactly and those of others not (`short_scales`).

MXFP4 and NVFP4 are the same values in both, with elements in another order; a group's scale is
one byte. Types with groups of 16 (Q2_K, Q3_K, Q6_K) or codebooks have no such form.
Block layouts: ggml-common.h of https://github.com/ggml-org/ggml. Needs no mlx.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32] | npt.NDArray[np.float16]
Mode = Literal["affine", "mxfp4", "nvfp4"]


@dataclass(frozen=True, slots=True)
class Groups:
    """Repacked blocks. values: uint8 [blocks, bytes]; scales: float32, or uint8 in the modes
    that have codes for scales, [blocks, groups]; biases: float32 likewise, or None."""

    values: Bytes
    scales: Floats | Bytes
    biases: Floats | None = None

    def shortened(self) -> "Groups":
        """With scales and biases in float16, if all keep their values in it."""
        if self.biases is None:
            return self
        with np.errstate(over="ignore"):
            short = self.scales.astype(np.float16), self.biases.astype(np.float16)
        is_exact = np.array_equal(short[0], self.scales) and np.array_equal(short[1], self.biases)
        return Groups(self.values, *short) if is_exact else self

    @property
    def finite(self) -> bool:
        """Infinity less infinity is no number: such blocks have no affine form."""
        if self.biases is None:
            return True
        return bool(np.isfinite(self.scales).all() and np.isfinite(self.biases).all())


@dataclass(frozen=True, slots=True)
class NativeForm:
    """What one GGUF type becomes. `repack` takes blocks uint8 [n, bytes of a block] and returns
    None for blocks that the form cannot hold."""

    repack: Callable[[Bytes], Groups | None]
    bits: int
    mode: Mode = "affine"
    group_size: int = 32
    short_scales: bool = False

    def nbytes(self, elements: int, scale_bytes: int) -> int:
        """Bytes of `elements` in this form; `scale_bytes` of one affine scale."""
        pair = 2 * scale_bytes if self.mode == "affine" else 1
        return elements * self.bits // 8 + elements // self.group_size * pair


# -- elements to MLX's bit stream, which runs through a row with the first element lowest --------


def _packed(elements: Bytes, bits: int) -> Bytes:
    """uint8 [n, elements] to [n, bytes]."""
    if bits == 4:
        packed: Bytes = elements[:, 0::2] | elements[:, 1::2] << np.uint8(4)
        return packed
    words = np.zeros((len(elements), elements.shape[1] // 8), "<u8")
    for i in range(8):  # eight elements fill `bits` whole bytes
        words |= elements[:, i::8].astype("<u8") << np.uint64(bits * i)
    return words.view(np.uint8).reshape(*words.shape, 8)[..., :bits].reshape(len(elements), -1)


def _halves(nibbles: Bytes, run: int) -> Bytes:
    """Elements [n, ..] of bytes [n, ..]: in every run of bytes the low halves come first."""
    runs = nibbles.reshape(len(nibbles), -1, 1, run)
    both = np.concatenate([runs & np.uint8(0x0F), runs >> np.uint8(4)], axis=2)
    return both.reshape(len(nibbles), -1)


def _float16(blocks: Bytes, at: int) -> Floats:
    """The float16 at byte `at` of each block, as float32 [n, 1]."""
    halves: npt.NDArray[np.float16] = np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2")
    return halves.astype(np.float32)


# -- types with one scale a block ----------------------------------------------------------------


def _q4_0(blocks: Bytes) -> Groups:
    scale = _float16(blocks, 0)
    return Groups(_packed(_halves(blocks[:, 2:], 16), 4), scale, -8 * scale)


def _q4_1(blocks: Bytes) -> Groups:
    values = _packed(_halves(blocks[:, 4:], 16), 4)
    return Groups(values, _float16(blocks, 0), _float16(blocks, 2))


def _q5_elements(blocks: Bytes, high_at: int) -> Bytes:
    """Four bytes hold the fifth bits of 32 elements, sixteen bytes the rest."""
    high = np.unpackbits(blocks[:, high_at : high_at + 4], axis=1, bitorder="little")
    elements: Bytes = _halves(blocks[:, high_at + 4 :], 16) | high << np.uint8(4)
    return elements


def _q5_0(blocks: Bytes) -> Groups:
    scale = _float16(blocks, 0)
    return Groups(_packed(_q5_elements(blocks, 2), 5), scale, -16 * scale)


def _q5_1(blocks: Bytes) -> Groups:
    values = _packed(_q5_elements(blocks, 4), 5)
    return Groups(values, _float16(blocks, 0), _float16(blocks, 2))


def _q8_0(blocks: Bytes) -> Groups:
    scale = _float16(blocks, 0)
    return Groups(blocks[:, 2:] ^ np.uint8(0x80), scale, -128 * scale)  # int8 q as q + 128


# -- K types: 256 elements in eight groups of 32 -------------------------------------------------


def _k_scales(blocks: Bytes) -> tuple[Floats, Floats]:
    """Scales and biases [n, 8]: two float16 times 6-bit factors, which lie in twelve bytes."""
    low, middle, high = (blocks[:, at : at + 4] for at in (4, 8, 12))
    two = np.uint8(0x30)
    scales = [low & np.uint8(0x3F), high & np.uint8(0x0F) | low >> np.uint8(2) & two]
    minima = [middle & np.uint8(0x3F), high >> np.uint8(4) | middle >> np.uint8(2) & two]
    scale, least = _float16(blocks, 0), _float16(blocks, 2)
    return scale * np.concatenate(scales, axis=1), -(least * np.concatenate(minima, axis=1))


def _q4_k(blocks: Bytes) -> Groups:
    return Groups(_packed(_halves(blocks[:, 16:], 32), 4), *_k_scales(blocks))


def _q5_k(blocks: Bytes) -> Groups:
    """Byte i of the 32 with the fifth bits has those of elements i, 32 + i, .., lowest first."""
    high = np.unpackbits(blocks[:, 16:48, None], axis=2, bitorder="little").swapaxes(1, 2)
    elements = _halves(blocks[:, 48:], 32) | high.reshape(len(blocks), -1) << np.uint8(4)
    return Groups(_packed(elements, 5), *_k_scales(blocks))


# -- 4-bit floats --------------------------------------------------------------------------------

_MXFP4_NAN = 0xFF
_NVFP4_ZERO, _NVFP4_HUGE = 0x7F, 0xFF


def _mxfp4(blocks: Bytes) -> Groups | None:
    scales = blocks[:, :1]
    if (scales == _MXFP4_NAN).any():  # a huge number to gguf
        return None
    return Groups(_packed(_halves(blocks[:, 1:], 16), 4), scales)


def _nvfp4(blocks: Bytes) -> Groups | None:
    """Four groups of 16. gguf's scales have no sign, and one code more for zero."""
    scales = blocks[:, :4]
    if (scales == _NVFP4_HUGE).any():
        return None
    unsigned = np.where(scales == _NVFP4_ZERO, np.uint8(0), scales & np.uint8(0x7F))
    return Groups(_packed(_halves(blocks[:, 4:], 8), 4), unsigned)


NATIVE_FORMS = {
    GGMLQuantizationType.Q4_0: NativeForm(_q4_0, 4, short_scales=True),
    GGMLQuantizationType.Q4_1: NativeForm(_q4_1, 4, short_scales=True),
    GGMLQuantizationType.Q5_0: NativeForm(_q5_0, 5, short_scales=True),
    GGMLQuantizationType.Q5_1: NativeForm(_q5_1, 5, short_scales=True),
    GGMLQuantizationType.Q8_0: NativeForm(_q8_0, 8, short_scales=True),
    GGMLQuantizationType.Q4_K: NativeForm(_q4_k, 4),
    GGMLQuantizationType.Q5_K: NativeForm(_q5_k, 5),
    GGMLQuantizationType.MXFP4: NativeForm(_mxfp4, 4, "mxfp4"),
    GGMLQuantizationType.NVFP4: NativeForm(_nvfp4, 4, "nvfp4", group_size=16),
}


def repacked(
    raw: Bytes, ggml_type: GGMLQuantizationType, tile_elements: int, threads: int = 1
) -> Groups | None:
    """All blocks of a tensor (uint8, any shape), a tile at a time on each of `threads`; None if
    there is no form."""
    form = NATIVE_FORMS[ggml_type]
    elements, block_bytes = GGML_QUANT_SIZES[ggml_type]
    blocks = raw.reshape(-1, block_bytes)
    whole = _empty(form, len(blocks), elements)
    step = max(1, tile_elements // elements)

    def fill(start: int) -> bool:
        part = slice(start, start + step)
        tile = form.repack(blocks[part])
        if tile is None or not tile.finite:
            return False
        whole.values[part], whole.scales[part] = tile.values, tile.scales
        if whole.biases is not None and tile.biases is not None:
            whole.biases[part] = tile.biases
        return True

    starts = range(0, len(blocks), step)
    if threads == 1 or len(starts) == 1:
        return whole if all(map(fill, starts)) else None
    with ThreadPoolExecutor(threads, thread_name_prefix="ds4tui-repack") as pool:
        return whole if all(pool.map(fill, starts)) else None


def _empty(form: NativeForm, blocks: int, elements: int) -> Groups:
    groups = (blocks, elements // form.group_size)
    values = np.empty((blocks, elements * form.bits // 8), np.uint8)
    if form.mode == "affine":
        return Groups(values, np.empty(groups, np.float32), np.empty(groups, np.float32))
    return Groups(values, np.empty(groups, np.uint8))
