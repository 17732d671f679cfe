"""The GGUF header: what it declares, checked against the bytes that are really there.

Nothing in a file is believed. Every declared count, length and offset is compared with the file
before anything is allocated or walked, so a hostile or torn header costs no more memory than a
small multiple of its own size. Format: versions 2 and 3, little-endian, of
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Knows a buffer and a name for messages;
knows nothing about files nor about models.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from ds4tui.engine.gguf_cursor import TRUNCATED, Buffer, Cursor, shown
from ds4tui.engine.gguf_metadata import Metadata, read_metadata
from ds4tui.errors import GGUFError

MAGIC = b"GGUF"
OLDEST_VERSION, NEWEST_VERSION = 2, 3
DEFAULT_ALIGNMENT = 32
MAX_AXES = 4  # GGML_MAX_DIMS
MAX_TENSORS = 2**16  # real files have some thousands: experts are fused
MAX_PARTS = 1000  # real models have some dozens; each costs an open file

_MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8  # name length, axes, one axis, type, offset


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies. `shape` is in numpy order (rows first, the reverse of the file's);
    `offset` counts from the start of the file; `nbytes` are bytes in the file. `part` counts
    from 0: which of the files of a split model."""

    name: str
    shape: tuple[int, ...]
    ggml_type: GGMLQuantizationType
    offset: int
    nbytes: int
    part: int = 0


@dataclass(frozen=True, slots=True)
class Header:
    """`part` (from 0) of `parts`: 0 of 1 unless the file is one of a split model."""

    version: int
    metadata: Metadata
    tensors: Mapping[str, TensorInfo]
    part: int
    parts: int


def read_header(source: Buffer, file_name: str) -> Header:
    """Read and check the header at the start of `source`, which is the whole file.

    Raises GGUFError for anything that is not a GGUF whose every tensor lies in the file without
    touching another. `source` must outlive the metadata.
    """
    cursor = Cursor(source, file_name)
    version = _read_version(cursor)
    tensor_count = cursor.u64("the number of tensors")
    key_count = cursor.u64("the number of keys")
    cursor.check_count(tensor_count, _MIN_TENSOR_BYTES, "tensors")
    if tensor_count > MAX_TENSORS:
        cursor.fail(f"it has {tensor_count:,} tensors; at most {MAX_TENSORS:,} are read.")
    metadata = read_metadata(cursor, key_count)
    part, parts = _part(cursor, metadata)
    tensors = _read_tensors(cursor, tensor_count, _alignment(cursor, metadata))
    _check_places(cursor, sorted(tensors.values(), key=lambda t: t.offset))
    return Header(version, metadata, MappingProxyType(tensors), part, parts)


def _read_version(cursor: Cursor) -> int:
    if cursor.take(len(MAGIC), "its first word") != MAGIC:
        cursor.fail("it does not begin like a GGUF file.")
    version = cursor.u32("the version")
    if version and not version & 0xFFFF:
        cursor.fail(
            "it is a big-endian GGUF, which is not read here.",
            "Get the little-endian file of this model.",
        )
    if version < OLDEST_VERSION:
        cursor.fail(
            f"it is GGUF version {version}; the oldest that is read is {OLDEST_VERSION}.",
            "Get a newer conversion of this model.",
        )
    if version > NEWEST_VERSION:
        cursor.fail(
            f"it is GGUF version {version}; the newest that is read is {NEWEST_VERSION}.",
            "Update ds4tui, or get another conversion of this model.",
        )
    return version


def _part(cursor: Cursor, metadata: Metadata) -> tuple[int, int]:
    """Which part this file is, and of how many; llama-gguf-split writes both into each part."""
    number, count = metadata.get("split.no", 0), metadata.get("split.count", 1)
    if not (type(count) is int and type(number) is int):
        cursor.fail("split.count and split.no are not whole numbers.")
    if count in (0, 1) and number == 0:  # not split
        return 0, 1
    if not (0 <= number < count <= MAX_PARTS):
        cursor.fail(f"it says that it is part {number + 1:,} of {count:,}, which cannot be.")
    return number, count


def _alignment(cursor: Cursor, metadata: Metadata) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int:
        cursor.fail("general.alignment is not a whole number.")
    if alignment <= 0 or alignment & (alignment - 1):
        cursor.fail(f"general.alignment is {alignment}, not a power of two.")
    return alignment


def _read_tensors(cursor: Cursor, count: int, alignment: int) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for number in range(1, count + 1):
        info = _read_tensor(cursor, number)
        if info.name in tensors:
            cursor.fail(f"the tensor {shown(info.name)} stands in it twice.")
        if info.offset % alignment:
            cursor.fail(
                f"the tensor {shown(info.name)} does not begin at a multiple of {alignment} bytes."
            )
        tensors[info.name] = info
    # Offsets in the file count from the first aligned byte behind the header.
    start = -(-cursor.at // alignment) * alignment
    return {name: replace(t, offset=start + t.offset) for name, t in tensors.items()}


def _read_tensor(cursor: Cursor, number: int) -> TensorInfo:
    name = cursor.name(f"tensor number {number}")
    what = f"the description of the tensor {shown(name)}"
    axes = cursor.u32(what)
    if not 1 <= axes <= MAX_AXES:
        cursor.fail(f"the tensor {shown(name)} has {axes:,} axes; 1 to {MAX_AXES} are possible.")
    shape = tuple([cursor.u64(what) for _ in range(axes)][::-1])
    ggml_type = _tensor_type(cursor, name)
    return TensorInfo(
        name, shape, ggml_type, cursor.u64(what), _tensor_bytes(cursor, name, shape, ggml_type)
    )


def _tensor_type(cursor: Cursor, name: str) -> GGMLQuantizationType:
    number = cursor.u32(f"the type of the tensor {shown(name)}")
    try:
        return GGMLQuantizationType(number)
    except ValueError:
        cursor.fail(
            f"the tensor {shown(name)} has the unknown quantisation type {number}.",
            "Get another quantisation of this model, or update ds4tui.",
        )


def _tensor_bytes(
    cursor: Cursor, name: str, shape: tuple[int, ...], ggml_type: GGMLQuantizationType
) -> int:
    elements = math.prod(shape)
    if not 0 < elements < 2**63:  # ggml counts in int64
        cursor.fail(f"the tensor {shown(name)} has the impossible shape {list(shape)}.")
    block_elements, block_bytes = GGML_QUANT_SIZES[ggml_type]
    if shape[-1] % block_elements:
        cursor.fail(
            f"a row of the tensor {shown(name)} has {shape[-1]:,} elements, no multiple of "
            f"{ggml_type.name}'s block of {block_elements}."
        )
    return elements // block_elements * block_bytes


def _check_places(cursor: Cursor, by_offset: list[TensorInfo]) -> None:
    end = max((t.offset + t.nbytes for t in by_offset), default=0)
    if end > cursor.size:
        raise GGUFError(
            f"{cursor.file_name} is truncated: {end - cursor.size:,} of {end:,} bytes are missing.",
            TRUNCATED,
        )
    for before, after in pairwise(by_offset):
        if before.offset + before.nbytes > after.offset:
            cursor.fail(f"the tensors {shown(before.name)} and {shown(after.name)} overlap.")
