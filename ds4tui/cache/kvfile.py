"""Bytes of KV records: written so that a file is whole or not there, read so that what comes
back is what was written, or nothing. It knows no policy; the layout is `cache.kvformat`'s.

A record is written to a temporary file, synced, renamed to its name, and the folder synced: once
`write_record` has returned, neither a kill nor a power cut takes it back. It is read with plain
reads, not mapped: a file that is cut short while it is read is a CorruptRecord, not a dead
process. Checksums are verified on the reading thread, while the bytes are still near.
"""

import errno
import os
import stat
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from itertools import chain, count
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt
import xxhash

from ds4tui.cache.kvarrays import (
    DTYPES,
    Array,
    HostBounded,
    HostPage,
    HostRoom,
    HostRows,
    HostSnapshot,
    Pooled,
    dtype_name,
)
from ds4tui.cache.kvformat import (
    ALIGNMENT,
    FIXED,
    LOGITS,
    ArrayPlace,
    CorruptRecord,
    Fault,
    RecordHead,
    decoded,
    encoded,
    rest_bytes,
)

TEMPORARY_PREFIX = ".writing-"

# Large enough that calls do not count, small enough to be cached when it is hashed, and to stop
# between two when a deadline has passed.
_PIECE_BYTES = 4 << 20
_FILE_MODE = 0o600
_RUNS_MAX = 1024  # that the system fills in one call: IOV_MAX of Linux and macOS
_PADDING = bytes(ALIGNMENT)

_Bytes = npt.NDArray[np.uint8]
_temporary_numbers = count()


class WritingStopped(Exception):
    """`write_record` was asked to stop; nothing is left of the file."""


# -- writing ---------------------------------------------------------------------------------------


def record_parts(record: HostPage | HostSnapshot) -> tuple[list[ArrayPlace], list[Array]]:
    """The arrays of a page or a snapshot with their places, for `write_record`."""
    found: list[tuple[ArrayPlace, Array]] = []
    for layer, held in enumerate(record.layers):
        if held is None:
            continue
        axes = held.axes if isinstance(held, HostRows) else (None,) * len(held.arrays)
        pooled = held.pooled if isinstance(held, HostRows) else None
        pool = 1 if pooled is None else pooled.size
        for array, axis, dtype in zip(held.arrays, axes, held.dtypes, strict=True):
            found.append((ArrayPlace(layer, dtype, array.shape, axis, 0, pool), array))
    logits = record.logits if isinstance(record, HostSnapshot) else None
    if logits is not None:
        found.append((ArrayPlace(LOGITS, dtype_name(logits), logits.shape, None, 0), logits))
    return [place for place, _ in found], [array for _, array in found]


def write_record(
    folder: Path,
    head: RecordHead,
    arrays: Sequence[Array],
    is_stopped: Callable[[], bool] = lambda: False,
) -> RecordHead:
    """Write one record under its name into `folder`; the head with its checksums. `arrays` are
    those of `head.arrays`, which may lie in any order in memory.

    Raises ValueError for arrays that do not fit the head, OSError (and no file is there) if the
    system refuses, WritingStopped.
    """
    flat = [_flat(array, place) for array, place in zip(arrays, head.arrays, strict=True)]
    places = tuple(
        replace(place, checksum=_checksum(data))
        for place, data in zip(head.arrays, flat, strict=True)
    )
    head = replace(head, arrays=places)
    begin = np.frombuffer(encoded(head), np.uint8)
    path = folder / head.name
    with _temporary_file(folder) as (file, temporary):
        for data in (begin, *flat):
            _write(file, data, is_stopped)
            _write(file, np.frombuffer(_PADDING[: -data.nbytes % ALIGNMENT], np.uint8), is_stopped)
        os.fsync(file)
        os.replace(temporary, path)
    try:
        sync_folder(folder)
    except OSError:
        with suppress(OSError):  # what is left then is adopted when the folder is looked at
            path.unlink()
        raise
    return head


def sync_folder(folder: Path) -> None:
    """Make renames and removals in it last. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _temporary_file(folder: Path) -> Iterator[tuple[int, Path]]:
    """A new file, gone afterwards if it has not been renamed."""
    name = f"{TEMPORARY_PREFIX}{os.getpid()}-{threading.get_ident()}-{next(_temporary_numbers)}"
    path = folder / name
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(path, flags, _FILE_MODE)
    try:
        yield file, path
    finally:
        os.close(file)
        path.unlink(missing_ok=True)


def _write(file: int, data: _Bytes, is_stopped: Callable[[], bool]) -> None:
    at = 0
    while at < data.nbytes:
        if is_stopped():
            raise WritingStopped
        at += os.write(file, data[at : at + _PIECE_BYTES].data)


def _flat(array: Array, place: ArrayPlace) -> _Bytes:
    if array.shape != place.shape or array.dtype != DTYPES.get(place.dtype):
        raise ValueError(f"an array {array.dtype} {array.shape} is not {place}")
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _checksum(data: _Bytes) -> int:
    hasher = xxhash.xxh3_64(data.data)
    hasher.update(_PADDING[: -data.nbytes % ALIGNMENT])
    return int(hasher.intdigest())


# -- reading ---------------------------------------------------------------------------------------


class RecordFile:
    """An open record: its head, and its arrays as they are asked for. Once it is open nobody can
    take it away. One thread at a time. Every way to read raises CorruptRecord."""

    def __init__(self, path: Path) -> None:
        """Open `path` and read its head."""
        self.path = path
        self._file = _opened(path)
        try:
            self.file_bytes = self._size()
            self.head = self._read_head()
            if self.head.name != path.name:
                raise CorruptRecord("misplaced", f"It is the record {self.head.name}.")
        except BaseException:
            self.close()
            raise
        self._begin = self.file_bytes - self.head.payload_bytes

    def __enter__(self) -> "RecordFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def read_ahead(self) -> None:
        """Ask the system to fetch all of it, and do not wait."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._file, 0, self.file_bytes, os.POSIX_FADV_WILLNEED)

    def page(self) -> HostPage:
        """All rows, verified. ValueError if it is a snapshot."""
        head = self._head_of("page")
        arrays = self._arrays(0, len(head.arrays))
        layers = self._by_layer(arrays)
        rows = tuple(
            _host_rows(head, layers[layer]) if layer in layers else None
            for layer in range(head.layer_count)
        )
        return HostPage(head.start, head.end, rows)

    def layer_rows(self, layer: int) -> HostRows | None:
        """The rows of one layer, verified; None for a layer that has none."""
        head = self._head_of("page")
        mine = [i for i, place in enumerate(head.arrays) if place.layer == layer]
        if not mine:
            return None
        arrays = self._arrays(mine[0], mine[-1] + 1)
        return _host_rows(self.head, [pair for pair in arrays if pair[0].layer == layer])

    def layer_into(self, layer: int, rooms: Sequence[HostRoom]) -> None:
        """Read the rows of one layer straight to where they shall lie, one room an array, and
        verify them there. Whatever is raised, what lies in the rooms then is not to be used.
        ValueError for rooms of other shapes."""
        mine = [(place, start) for place, start in self._page_extents if place.layer == layer]
        wanted = [(place.shape, DTYPES[place.dtype]) for place, _ in mine]
        if wanted != [(room.shape, room.array.dtype) for room in rooms]:
            raise ValueError(f"The rooms of layer {layer} are not those of its arrays.")
        for (place, start), room in zip(mine, rooms, strict=True):
            padding = memoryview(bytearray(place.stored_bytes - place.nbytes))
            self._scatter([*room.runs(), padding], self._begin + start, place)

    @cached_property
    def _page_extents(self) -> list[tuple[ArrayPlace, int]]:
        return [(p, start) for p, start, _ in _extents(self._head_of("page").arrays)]

    def _scatter(self, runs: Sequence[memoryview], offset: int, place: ArrayPlace) -> None:
        """One array from `offset` on, its padding included, into `runs`; verified."""
        hasher = xxhash.xxh3_64()
        os.lseek(self._file, offset, os.SEEK_SET)
        for first in range(0, len(runs), _RUNS_MAX):
            some = runs[first : first + _RUNS_MAX]
            self._fill(some)
            for run in some:
                hasher.update(run)
        if hasher.intdigest() != place.checksum:
            raise _flipped()

    def _fill(self, runs: Sequence[memoryview]) -> None:
        """Bytes from where the file stands."""
        left = [run for run in runs if len(run)]
        while left:
            got = self._readv(left)
            while left and got >= len(left[0]):
                got -= len(left.pop(0))
            if got:
                left[0] = left[0][got:]

    def _readv(self, buffers: Sequence[memoryview]) -> int:
        try:
            got = os.readv(self._file, buffers)
        except OSError as exc:
            raise _as_corrupt(exc) from exc
        if not got:
            at = os.lseek(self._file, 0, os.SEEK_CUR)
            raise CorruptRecord("cut", f"It was cut to {at:,} bytes while being read.")
        return got

    def snapshot(self) -> HostSnapshot:
        """The bounded parts and logits, verified. ValueError if it is a page."""
        head = self._head_of("snapshot")
        layers = self._by_layer(self._arrays(0, len(head.arrays)))
        logits = layers.pop(LOGITS, None)
        bounded = tuple(
            _host_bounded(layers[layer]) if layer in layers else None
            for layer in range(head.layer_count)
        )
        return HostSnapshot(head.end, bounded, None if logits is None else logits[0][1])

    def verify(self) -> None:
        """Read everything."""
        self._arrays(0, len(self.head.arrays))

    def _head_of(self, kind: str) -> RecordHead:
        if self.head.kind != kind:
            raise ValueError(f"a {self.head.kind} is not a {kind}")
        return self.head

    def _size(self) -> int:
        found = os.fstat(self._file)
        if not stat.S_ISREG(found.st_mode):
            raise CorruptRecord("foreign", "It is not a file.")
        return found.st_size

    def _read_head(self) -> RecordHead:
        fixed = self._read(0, min(FIXED.size, self.file_bytes)).tobytes()
        rest = rest_bytes(fixed, self.file_bytes)
        return decoded(fixed, self._read(FIXED.size, rest).tobytes(), self.file_bytes)

    def _arrays(self, first: int, end: int) -> list[tuple[ArrayPlace, Array]]:
        """Arrays [first, end), which lie one behind the other in one new buffer."""
        places = self.head.arrays[first:end]
        before = sum(place.stored_bytes for place in self.head.arrays[:first])
        total = sum(place.stored_bytes for place in places)
        buffer = _new_buffer(total)
        unverified = deque(_extents(places))
        for filled in chain(self._filling(buffer, self._begin + before), (total,)):
            while unverified and unverified[0][2] <= filled:
                _verify(buffer, *unverified.popleft())
        return [(p, _array(buffer, start, p)) for p, start, _ in _extents(places)]

    def _read(self, offset: int, nbytes: int) -> _Bytes:
        buffer = _new_buffer(nbytes)
        for _ in self._filling(buffer, offset):
            pass
        return buffer

    def _filling(self, buffer: _Bytes, offset: int) -> Iterator[int]:
        """Read a buffer full from `offset` on, telling how many bytes are there."""
        at = 0
        os.lseek(self._file, offset, os.SEEK_SET)
        while at < len(buffer):
            at += self._readv([buffer[at : at + _PIECE_BYTES].data])
            yield at

    @staticmethod
    def _by_layer(
        arrays: Iterable[tuple[ArrayPlace, Array]],
    ) -> dict[int, list[tuple[ArrayPlace, Array]]]:
        layers: dict[int, list[tuple[ArrayPlace, Array]]] = {}
        for place, array in arrays:
            layers.setdefault(place.layer, []).append((place, array))
        return layers


def read_head(path: Path) -> tuple[RecordHead, int]:
    """The head of a record and the length of its file. Raises CorruptRecord."""
    with RecordFile(path) as file:
        return file.head, file.file_bytes


def _opened(path: Path) -> int:
    # Not through a link; and a pipe in the folder must not make us wait for its writer.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except OSError as exc:
        raise _as_corrupt(exc) from exc


def _as_corrupt(exc: OSError) -> CorruptRecord:
    faults: dict[int | None, Fault] = {
        errno.ENOENT: "gone",
        errno.ENOTDIR: "gone",
        errno.ESTALE: "gone",
        errno.ELOOP: "foreign",
        errno.EISDIR: "foreign",
        errno.ENXIO: "foreign",
    }
    fault = faults.get(exc.errno, "unreadable")
    return CorruptRecord(fault, f"It cannot be read: {exc.strerror or exc}.")


def _new_buffer(nbytes: int) -> _Bytes:
    try:
        return np.empty(nbytes, np.uint8)
    except MemoryError as exc:
        raise CorruptRecord("memory", f"There is no memory for its {nbytes:,} bytes.") from exc


def _extents(places: Sequence[ArrayPlace]) -> Iterator[tuple[ArrayPlace, int, int]]:
    """Each place with the beginning and the end, padding included, of its bytes."""
    at = 0
    for place in places:
        yield place, at, at + place.stored_bytes
        at += place.stored_bytes


def _verify(buffer: _Bytes, place: ArrayPlace, start: int, end: int) -> None:
    if xxhash.xxh3_64_intdigest(buffer[start:end].data) != place.checksum:
        raise _flipped()


def _flipped() -> CorruptRecord:
    return CorruptRecord("flipped", "The checksum of an array is wrong.")


def _array(buffer: _Bytes, start: int, place: ArrayPlace) -> Array:
    stored = buffer[start : start + place.nbytes]
    return stored.view(DTYPES[place.dtype]).reshape(place.shape)


def _host_rows(head: RecordHead, arrays: Sequence[tuple[ArrayPlace, Array]]) -> HostRows:
    """Raises CorruptRecord for rows of one layer that stand for different numbers of positions."""
    axes = tuple(place.row_axis for place, _ in arrays if place.row_axis is not None)
    pools = {place.pool for place, _ in arrays}
    if len(pools) > 1:
        raise CorruptRecord("foreign", f"It has rows of {sorted(pools)} positions in one layer.")
    pool = pools.pop() if pools else 1
    pooled = Pooled(pool, head.start, head.end) if pool > 1 else None
    dtypes = tuple(place.dtype for place, _ in arrays)
    return HostRows(tuple(a for _, a in arrays), axes, dtypes, pooled)


def _host_bounded(arrays: Sequence[tuple[ArrayPlace, Array]]) -> HostBounded:
    return HostBounded(tuple(a for _, a in arrays), tuple(p.dtype for p, _ in arrays))
