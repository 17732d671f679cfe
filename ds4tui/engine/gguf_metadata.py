"""The key-value pairs of a GGUF header: walked and checked at once, decoded at the first look.

Walking 100,000 vocabulary texts takes milliseconds, making Python strings of them takes longer,
and a list of models needs none of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGUFValueType

from ds4tui.engine.gguf_cursor import DAMAGED, U64, Buffer, Cursor, shown
from ds4tui.errors import GGUFError

# Real files have some dozens of keys and vocabularies of at most some 100,000 texts. The limits
# keep the walk over a huge hostile file to seconds and its books to megabytes.
MAX_KEYS = 2**16
MAX_TEXTS = 2**24
MAX_NESTED_ARRAYS = 2**16
MAX_ARRAY_DEPTH = 4  # no known file nests arrays; the format allows it

_MIN_KEY_BYTES = 8 + 4 + 1  # name length, value type, smallest value
_MIN_STRING_BYTES = 8
_MIN_ARRAY_BYTES = 4 + 8

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
class _Text:
    """A string that was not decoded: it lies in [start, end)."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Array:
    """An array that was walked but not decoded: `count` items in [start, end)."""

    kind: GGUFValueType
    count: int
    start: int
    end: int
    children: tuple["_Array", ...] = ()  # of an array of arrays


class Metadata(Mapping[str, Any]):
    """Read-only mapping from keys to values.

    Scalars are Python values, arrays of numbers and bools read-only numpy arrays, arrays of
    strings lists of str, arrays of arrays lists. Looking up a text that is not UTF-8 raises
    GGUFError: such a text matters only to who asks for it.
    """

    def __init__(self, source: Buffer, file_name: str, values: dict[str, Any]) -> None:
        self._source = source
        self._file_name = file_name
        self._values = values

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        if isinstance(value, _Text | _Array):
            try:
                value = self._decode(value)
            except UnicodeDecodeError as exc:
                raise GGUFError(
                    f"{self._file_name}: the key {shown(key)} holds text that is not UTF-8.",
                    DAMAGED,
                ) from exc
            self._values[key] = value
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def _decode(self, value: _Text | _Array) -> Any:
        raw = self._source[value.start : value.end]
        if isinstance(value, _Text):
            return raw.decode()
        if value.kind is GGUFValueType.ARRAY:
            return [self._decode(child) for child in value.children]
        if value.kind is GGUFValueType.STRING:
            return _strings(raw, value.count)
        numbers: npt.NDArray[Any] = np.frombuffer(raw, _DTYPES[value.kind])
        return numbers.view(np.bool_) if value.kind is GGUFValueType.BOOL else numbers


def _strings(raw: bytes, count: int) -> list[str]:
    texts: list[str] = []
    start, length_at = 0, U64.unpack_from
    for _ in range(count):
        start += 8
        end = start + length_at(raw, start - 8)[0]
        texts.append(raw[start:end].decode())
        start = end
    return texts


def read_metadata(cursor: Cursor, key_count: int) -> Metadata:
    """Read `key_count` pairs. Raises GGUFError; `cursor.source` must outlive the result."""
    cursor.check_count(key_count, _MIN_KEY_BYTES, "keys")
    if key_count > MAX_KEYS:
        cursor.fail(f"it has {key_count:,} keys; at most {MAX_KEYS:,} are read.")
    return Metadata(cursor.source, cursor.file_name, _Reader(cursor).keys(key_count))


class _Reader:
    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._texts_left = MAX_TEXTS
        self._arrays_left = MAX_NESTED_ARRAYS

    def keys(self, count: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for number in range(1, count + 1):
            key = self._cursor.name(f"key number {number}")
            if key in values:
                self._cursor.fail(f"the key {shown(key)} stands in it twice.")
            values[key] = self._value(key)
        return values

    def _kind(self, key: str) -> GGUFValueType:
        number = self._cursor.u32(f"the type of {shown(key)}")
        try:
            return GGUFValueType(number)
        except ValueError:
            self._cursor.fail(f"the key {shown(key)} has the unknown value type {number}.")

    def _value(self, key: str) -> Any:
        cursor, what = self._cursor, f"the value of {shown(key)}"
        kind = self._kind(key)
        if kind is GGUFValueType.ARRAY:
            return self._array(key, depth=1)
        if kind is GGUFValueType.STRING:
            length = cursor.u64(what)
            return _Text(cursor.skip(length, what), cursor.at)
        raw = cursor.take(_DTYPES[kind].itemsize, what)
        if kind is GGUFValueType.BOOL:
            if raw[0] > 1:
                cursor.fail(f"{what} is {raw[0]}, not true or false.")
            return raw[0] == 1
        return np.frombuffer(raw, _DTYPES[kind])[0].item()

    def _array(self, key: str, depth: int) -> _Array:
        cursor = self._cursor
        if depth > MAX_ARRAY_DEPTH:
            cursor.fail(f"the arrays of {shown(key)} are nested more than {MAX_ARRAY_DEPTH} deep.")
        kind = self._kind(key)
        count = cursor.u64(f"the length of {shown(key)}")
        start = cursor.at
        if kind is GGUFValueType.ARRAY:
            children = self._children(key, count, depth)
            return _Array(kind, count, start, cursor.at, children)
        if kind is GGUFValueType.STRING:
            self._skip_texts(key, count)
        else:
            self._skip_numbers(key, kind, count)
        return _Array(kind, count, start, cursor.at)

    def _children(self, key: str, count: int, depth: int) -> tuple[_Array, ...]:
        self._cursor.check_count(count, _MIN_ARRAY_BYTES, f"arrays in {shown(key)}")
        self._arrays_left -= count
        if self._arrays_left < 0:
            self._cursor.fail(f"{shown(key)} nests more than {MAX_NESTED_ARRAYS:,} arrays.")
        return tuple([self._array(key, depth + 1) for _ in range(count)])

    def _skip_texts(self, key: str, count: int) -> None:
        self._cursor.check_count(count, _MIN_STRING_BYTES, f"texts in {shown(key)}")
        self._texts_left -= count
        if self._texts_left < 0:
            self._cursor.fail(f"up to {shown(key)} it has more than {MAX_TEXTS:,} texts.")
        self._cursor.skip_strings(count, f"the texts of {shown(key)}")

    def _skip_numbers(self, key: str, kind: GGUFValueType, count: int) -> None:
        itemsize = _DTYPES[kind].itemsize
        self._cursor.check_count(count, itemsize, f"numbers in {shown(key)}")
        start = self._cursor.skip(count * itemsize, f"the numbers of {shown(key)}")
        if kind is GGUFValueType.BOOL and count:
            if np.frombuffer(self._cursor.source, np.uint8, count, start).max() > 1:
                self._cursor.fail(f"the values of {shown(key)} are not all true or false.")
