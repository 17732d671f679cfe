"""The GGUF header as bytes: reads and checks everything before the tensor data.

Nothing in a file is believed. Every declared count, length and offset is compared with the bytes
that are really there before anything is allocated or walked, so a hostile or torn header costs
no more memory than a small multiple of its own size. Format:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian).
Knows nothing about files (a buffer and a name for messages are passed in) nor about models.
"""

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from ds4tui.errors import GGUFError

Buffer = bytes | mmap.mmap

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4  # GGML_MAX_DIMS
MAX_NAME_BYTES = 65_535  # the format's own limit for keys
MAX_ARRAY_DEPTH = 4  # no known file nests arrays; the format allows it
# Real files have some dozens of keys and a few thousand tensors (experts are fused). The limits
# keep the walk over a huge hostile file to seconds.
MAX_KEYS = 2**16
MAX_TENSORS = 2**16
MAX_ARRAY_ITEMS = 2**24  # strings and nested arrays in the whole header: each takes a step

DAMAGED = "The file is damaged: download it again."

_MIN_KEY_BYTES = 8 + 4 + 1  # name length, value type, smallest value
_MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8  # name length, axes, one axis, type, offset
_MIN_ITEM_BYTES = {GGUFValueType.STRING: 8, GGUFValueType.ARRAY: 12}

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_DTYPES: dict[GGUFValueType, np.dtype[Any]] = {
    GGUFValueType.UINT8: np.dtype("u1"),
    GGUFValueType.INT8: np.dtype("i1"),
    GGUFValueType.UINT16: np.dtype("<u2"),
    GGUFValueType.INT16: np.dtype("<i2"),
    GGUFValueType.UINT32: np.dtype("<u4"),
    GGUFValueType.INT32: np.dtype("<i4"),
    GGUFValueType.FLOAT32: np.dtype("<f4"),
    GGUFValueType.BOOL: np.dtype("u1"),
    GGUFValueType.UINT64: np.dtype("<u8"),
    GGUFValueType.INT64: np.dtype("<i8"),
    GGUFValueType.FLOAT64: np.dtype("<f8"),
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies. `shape` is in numpy order (rows first, the reverse of the file's);
    `offset` counts from the start of the file; `nbytes` are bytes in the file."""

    name: str
    shape: tuple[int, ...]
    ggml_type: GGMLQuantizationType
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class _Array:
    """An array that was walked but not decoded: its items lie in [start, end)."""

    key: str
    kind: GGUFValueType
    count: int
    start: int
    end: int
    children: tuple["_Array", ...] = ()


class Metadata(Mapping[str, Any]):
    """The key-value pairs of a header, read-only.

    Scalars are Python values, arrays of numbers and bools are read-only numpy arrays, arrays of
    strings are lists of str. Strings are decoded at the first look: GGUFError is raised there
    for one that is not UTF-8.
    """

    def __init__(self, source: Buffer, file_name: str, values: dict[str, Any]) -> None:
        self._source = source
        self._file_name = file_name
        self._values = values

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        if isinstance(value, _Array):
            value = self._values[key] = self._decode(value)
        elif isinstance(value, bytes):
            value = self._values[key] = self._text(value, key)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def _text(self, raw: bytes, key: str) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as exc:
            raise GGUFError(
                f"{self._file_name}: the text of {shown(key)} is not UTF-8.", DAMAGED
            ) from exc

    def _decode(self, array: _Array) -> Any:
        if array.kind is GGUFValueType.ARRAY:
            return [self._decode(child) for child in array.children]
        if array.kind is GGUFValueType.STRING:
            return self._strings(array)
        raw = self._source[array.start : array.end]
        numbers = np.frombuffer(raw, _DTYPES[array.kind])
        return numbers.view(np.bool_) if array.kind is GGUFValueType.BOOL else numbers

    def _strings(self, array: _Array) -> list[str]:
        raw = self._source[array.start : array.end]
        texts: list[str] = []
        start, length_at = 0, _U64.unpack_from
        try:
            for _ in range(array.count):
                start += 8
                end = start + length_at(raw, start - 8)[0]
                texts.append(raw[start:end].decode())
                start = end
        except UnicodeDecodeError as exc:
            raise GGUFError(
                f"{self._file_name}: text number {len(texts):,} of {shown(array.key)} "
                "is not UTF-8.",
                DAMAGED,
            ) from exc
        return texts


@dataclass(frozen=True, slots=True)
class Header:
    version: int
    metadata: Metadata
    tensors: Mapping[str, TensorInfo]


def shown(name: str) -> str:
    """`name` for a message: quoted, control characters escaped, of bounded length."""
    return repr(name if len(name) <= 80 else name[:77] + "...")


def read_header(source: Buffer, file_name: str) -> Header:
    """Read and check the header at the start of `source`, which is the whole file.

    Raises GGUFError (a sentence that begins with `file_name`) for anything that is not a GGUF
    file whose every tensor lies in it. `source` must outlive the metadata.
    """
    return _Reader(source, file_name).header()


class _Reader:
    """A cursor over the header. Every method leaves it behind what it read."""

    def __init__(self, source: Buffer, file_name: str) -> None:
        self._source = source
        self._size = len(source)
        self._at = 0
        self._file_name = file_name
        self._items_left = MAX_ARRAY_ITEMS

    def header(self) -> Header:
        version = self._version()
        tensor_count = self._u64("the number of tensors")
        key_count = self._u64("the number of keys")
        self._check_count(tensor_count, _MIN_TENSOR_BYTES, MAX_TENSORS, "tensors")
        self._check_count(key_count, _MIN_KEY_BYTES, MAX_KEYS, "keys")
        values = self._keys(key_count)
        metadata = Metadata(self._source, self._file_name, values)
        self._refuse_split(values)
        alignment = self._alignment(values)
        tensors = self._tensors(tensor_count, alignment)
        return Header(version, metadata, MappingProxyType(tensors))

    # -- bytes ---------------------------------------------------------------------------------

    def _fail(self, problem: str, hint: str = DAMAGED) -> NoReturn:
        raise GGUFError(f"{self._file_name}: {problem}", hint)

    def _need(self, length: int, what: str) -> None:
        missing = self._at + length - self._size
        if missing > 0:
            raise GGUFError(
                f"{self._file_name} is truncated: it ends in its header, inside {what}; "
                f"at least {missing:,} bytes are missing.",
                "Download it again.",
            )

    def _check_count(self, count: int, item_bytes: int, limit: int, what: str) -> None:
        left = self._size - self._at
        if count > left // item_bytes:
            self._fail(f"it declares {count:,} {what}, which {left:,} bytes cannot hold.")
        if count > limit:
            self._fail(f"it declares {count:,} {what}; at most {limit:,} are read.")

    def _u32(self, what: str) -> int:
        self._need(4, what)
        self._at += 4
        value: int = _U32.unpack_from(self._source, self._at - 4)[0]
        return value

    def _u64(self, what: str) -> int:
        self._need(8, what)
        self._at += 8
        value: int = _U64.unpack_from(self._source, self._at - 8)[0]
        return value

    def _take(self, length: int, what: str) -> bytes:
        self._need(length, what)
        self._at += length
        return self._source[self._at - length : self._at]

    def _name(self, what: str) -> str:
        length = self._u64(f"the name of {what}")
        if not 0 < length <= MAX_NAME_BYTES:
            self._fail(f"the name of {what} is said to be {length:,} bytes long.")
        raw = self._take(length, f"the name of {what}")
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self._fail(f"the name of {what} is not UTF-8.")

    def _version(self) -> int:
        self._need(len(MAGIC) + 4, "the version")
        self._at = len(MAGIC)
        version = self._u32("the version")
        if version in VERSIONS:
            return version
        if version & 0xFFFF == 0:
            self._fail(
                "it is a big-endian GGUF, which is not read here.",
                "Download the little-endian file of this model.",
            )
        self._fail(
            f"it is GGUF version {version}; versions {VERSIONS[0]} and {VERSIONS[1]} are read.",
            "Get a newer conversion of this model."
            if version < VERSIONS[0]
            else "Update this program, or get another conversion of this model.",
        )

    # -- metadata ------------------------------------------------------------------------------

    def _keys(self, count: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for number in range(count):
            key = self._name(f"key number {number + 1}")
            if key in values:
                self._fail(f"the key {shown(key)} stands in it twice.")
            values[key] = self._value(key)
        return values

    def _value_type(self, key: str) -> GGUFValueType:
        number = self._u32(f"the type of {shown(key)}")
        try:
            return GGUFValueType(number)
        except ValueError:
            self._fail(f"the key {shown(key)} has the unknown value type {number}.")

    def _value(self, key: str) -> Any:
        kind = self._value_type(key)
        if kind is GGUFValueType.ARRAY:
            return self._array(key, depth=1)
        if kind is GGUFValueType.STRING:
            what = f"the text of {shown(key)}"
            return self._take(self._u64(what), what)
        dtype = _DTYPES[kind]
        raw = self._take(dtype.itemsize, f"the value of {shown(key)}")
        if kind is GGUFValueType.BOOL:
            if raw[0] > 1:
                self._fail(f"the value of {shown(key)} is {raw[0]}, not true or false.")
            return raw == b"\1"
        return np.frombuffer(raw, dtype)[0].item()

    def _array(self, key: str, depth: int) -> _Array:
        if depth > MAX_ARRAY_DEPTH:
            self._fail(f"the arrays of {shown(key)} are nested more than {MAX_ARRAY_DEPTH} deep.")
        kind = self._value_type(key)
        count = self._u64(f"the length of {shown(key)}")
        item_bytes = _MIN_ITEM_BYTES.get(kind) or _DTYPES[kind].itemsize
        left = self._size - self._at
        if count > left // item_bytes:
            self._fail(
                f"the key {shown(key)} is said to hold {count:,} items, "
                f"which {left:,} bytes cannot hold."
            )
        start = self._at
        children: tuple[_Array, ...] = ()
        if kind in _MIN_ITEM_BYTES:
            self._spend(count, key)
        if kind is GGUFValueType.ARRAY:
            children = tuple(self._array(key, depth + 1) for _ in range(count))
        elif kind is GGUFValueType.STRING:
            self._skip_strings(count, key)
        else:
            self._skip_numbers(kind, count, key)
        return _Array(key, kind, count, start, self._at, children)

    def _spend(self, count: int, key: str) -> None:
        self._items_left -= count
        if self._items_left < 0:
            self._fail(
                f"with {shown(key)} its arrays hold more than {MAX_ARRAY_ITEMS:,} texts.",
                "No known model has so many: is it the right file?",
            )

    def _skip_strings(self, count: int, key: str) -> None:
        # The one loop that a real header spends its time in: 100,000 to 500,000 turns.
        at, end, source, length_at = self._at, self._size - 8, self._source, _U64.unpack_from
        for _ in range(count):
            if at > end:
                break
            at += 8 + length_at(source, at)[0]
        else:
            if at <= self._size:
                self._at = at
                return
        self._at = min(at, self._size)
        self._need(at + 8 - self._at, f"the texts of {shown(key)}")

    def _skip_numbers(self, kind: GGUFValueType, count: int, key: str) -> None:
        start = self._at
        self._at += count * _DTYPES[kind].itemsize
        if kind is GGUFValueType.BOOL:
            flags = np.frombuffer(self._source, np.uint8, count, start)
            if count and flags.max() > 1:
                self._fail(f"the values of {shown(key)} are not all true or false.")

    def _refuse_split(self, values: dict[str, Any]) -> None:
        count = values.get("split.count", 1)
        if isinstance(count, int) and count > 1:
            number = values.get("split.no", 0)
            part = f"part {number + 1}" if isinstance(number, int) else "one part"
            self._fail(
                f"it is {part} of {count} of a split model; split models are not read yet.",
                "Get the model as one file, or join the parts with llama-gguf-split --merge.",
            )

    def _alignment(self, values: dict[str, Any]) -> int:
        alignment = values.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or isinstance(alignment, bool):
            self._fail("general.alignment is not a whole number.")
        if alignment <= 0 or alignment & (alignment - 1):
            self._fail(f"general.alignment is {alignment}, not a power of two.")
        return alignment

    # -- tensors -------------------------------------------------------------------------------

    def _tensors(self, count: int, alignment: int) -> dict[str, TensorInfo]:
        tensors: dict[str, TensorInfo] = {}
        for number in range(count):
            info = self._tensor(number + 1, alignment)
            if info.name in tensors:
                self._fail(f"the tensor {shown(info.name)} stands in it twice.")
            tensors[info.name] = info
        data_start = -(-self._at // alignment) * alignment
        placed = {
            name: TensorInfo(name, t.shape, t.ggml_type, data_start + t.offset, t.nbytes)
            for name, t in tensors.items()
        }
        self._check_places(sorted(placed.values(), key=lambda t: t.offset))
        return placed

    def _tensor(self, number: int, alignment: int) -> TensorInfo:
        name = self._name(f"tensor number {number}")
        what = f"the description of tensor {shown(name)}"
        axes = self._u32(what)
        if not 1 <= axes <= MAX_DIMENSIONS:
            self._fail(f"the tensor {shown(name)} has {axes:,} axes, not 1 to {MAX_DIMENSIONS}.")
        shape = tuple(self._u64(what) for _ in range(axes))[::-1]
        ggml_type = self._tensor_type(self._u32(what), name)
        offset = self._u64(what)
        if offset % alignment:
            self._fail(f"the tensor {shown(name)} does not begin at a multiple of {alignment}.")
        return TensorInfo(
            name, shape, ggml_type, offset, self._tensor_bytes(name, shape, ggml_type)
        )

    def _tensor_type(self, number: int, name: str) -> GGMLQuantizationType:
        try:
            return GGMLQuantizationType(number)
        except ValueError:
            self._fail(
                f"the tensor {shown(name)} has the unknown quantisation type {number}.",
                "Get another quantisation of this model, or update this program.",
            )

    def _tensor_bytes(self, name: str, shape: tuple[int, ...], kind: GGMLQuantizationType) -> int:
        elements = 1
        for length in shape:
            elements *= length
        if not 0 < elements < 2**63:
            self._fail(f"the tensor {shown(name)} has the impossible shape {list(shape)}.")
        block_elements, block_bytes = GGML_QUANT_SIZES[kind]
        if shape[-1] % block_elements:
            self._fail(
                f"a row of the tensor {shown(name)} has {shape[-1]:,} elements, which is no "
                f"multiple of {kind.name}'s block of {block_elements}."
            )
        return elements // block_elements * block_bytes

    def _check_places(self, by_offset: list[TensorInfo]) -> None:
        end = max((t.offset + t.nbytes for t in by_offset), default=0)
        if end > self._size:
            raise GGUFError(
                f"{self._file_name} is truncated: {end - self._size:,} of {end:,} bytes "
                "are missing.",
                "Download it again.",
            )
        for before, after in pairwise(by_offset):
            if before.offset + before.nbytes > after.offset:
                self._fail(f"the tensors {shown(before.name)} and {shown(after.name)} overlap.")
