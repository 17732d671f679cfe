"""Reads records back: whole, or a layer at a time; to the bit, or CorruptRecord.

A record that turns out to be damaged leaves the books before the error is raised, so whoever
plans anew is not offered it again. Any thread.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np

from ds4tui.cache.kvarrays import (
    DTYPES,
    Array,
    HostPage,
    HostRoom,
    HostRows,
    HostSnapshot,
    with_rows,
)
from ds4tui.cache.kvbooks import Books, Entry
from ds4tui.cache.kventries import entry_of
from ds4tui.cache.kvfile import RecordFile
from ds4tui.cache.kvformat import CorruptRecord, RecordKind
from ds4tui.cache.kvkeeper import Keeper
from ds4tui.cache.kvtally import Tally

_Read = TypeVar("_Read")


class Reader:
    """`lock` is that of the books."""

    def __init__(self, books: Books, lock: threading.RLock, keeper: Keeper, tally: Tally) -> None:
        self._books, self._lock, self._keeper, self._tally = books, lock, keeper, tally

    def read_rows(self, holder_id: int, start: int, end: int) -> HostPage:
        """The page, whole and verified, if it has rows [start, end). Raises CorruptRecord if it
        is gone or damaged (then it is not offered again): a miss, to be planned anew."""
        entry, held = self._held(holder_id, "page")
        if not entry.head.start <= start <= end <= entry.head.end:
            raise ValueError(f"No rows {start} to {end} in {entry.head.start}..{entry.head.end}.")
        if isinstance(held, HostPage):
            return held
        return self._read_whole(entry, RecordFile.page)

    def read_snapshot(self, holder_id: int) -> HostSnapshot:
        """As `read_rows`."""
        entry, held = self._held(holder_id, "snapshot")
        if isinstance(held, HostSnapshot):
            return held
        return self._read_whole(entry, RecordFile.snapshot)

    def open_rows(self, holder_id: int, at_once: int = 1) -> "OpenRows":
        """The page, to be read a layer at a time, so that no more than one is in memory; one of
        so many that are read at the same time. It is there until it is closed, whatever becomes
        of its file. Raises CorruptRecord, and so do its reads."""
        entry, held = self._held(holder_id, "page")
        if isinstance(held, HostPage):
            return OpenRows(self, entry, held, at_once)
        try:
            return OpenRows(self, entry, self._open(entry), at_once)
        except CorruptRecord as exc:
            self._keeper.damaged(entry, exc)
            raise

    def read_ahead(self, holder_ids: Sequence[int]) -> None:
        """Ask the system to fetch these records, and do not wait."""
        for holder_id in holder_ids:
            try:
                entry, held = self._held(holder_id, None)
                if held is None:
                    with RecordFile(self._path(entry)) as file:
                        file.read_ahead()
            except CorruptRecord:  # whoever reads it meets it again
                continue

    def _held(
        self, holder_id: int, kind: RecordKind | None
    ) -> tuple[Entry, HostPage | HostSnapshot | None]:
        with self._lock:
            entry = self._books.entries.get(entry_of(holder_id))
            if entry is None or (kind is not None and entry.head.kind != kind):
                raise CorruptRecord("gone", "The record is not stored any more.")
            return entry, entry.host

    def _read_whole(self, entry: Entry, read: Callable[[RecordFile], _Read]) -> _Read:
        began = time.perf_counter()
        try:
            with self._open(entry) as file:
                file.read_ahead()
                found = read(file)
        except CorruptRecord as exc:
            self._keeper.damaged(entry, exc)
            raise
        self.loaded(entry, entry.nbytes, time.perf_counter() - began)
        return found

    def loaded(self, entry: Entry, nbytes: int, seconds: float) -> None:
        """Count a load, which is a use."""
        self._tally.loaded(entry.head.tokens, nbytes, seconds)
        self._keeper.touch([entry], is_hit=True)

    def _path(self, entry: Entry) -> Path:
        return self._keeper.path / entry.head.name

    def _open(self, entry: Entry) -> RecordFile:
        """The record, with the very ids that were looked up. Raises CorruptRecord."""
        file = RecordFile(self._path(entry))
        found, wanted = file.head, entry.head
        same = (found.identity, found.start, found.end) == (
            wanted.identity,
            wanted.start,
            wanted.end,
        )
        if not same or not np.array_equal(found.ids, wanted.ids):
            file.close()
            raise CorruptRecord("misplaced", "It is a record of other ids.")
        return file

    @contextmanager
    def reading(self, entry: Entry) -> Iterator[None]:
        """Something of an open page is read. Raises CorruptRecord."""
        try:
            yield
        except CorruptRecord as exc:
            self._keeper.damaged(entry, exc)
            raise


class OpenRows:
    """A page that is read a layer at a time; answers as a HostPage. One thread at a time."""

    def __init__(
        self, reader: Reader, entry: Entry, source: HostPage | RecordFile, at_once: int
    ) -> None:
        self._reader, self._entry, self._source = reader, entry, source
        self._at_once = at_once
        self.start, self.end = entry.head.start, entry.head.end
        self._last: tuple[int, HostRows | None] | None = None
        self._nbytes, self._seconds = 0, 0.0
        if isinstance(source, RecordFile):
            self._layers = {place.layer for place in source.head.arrays}
            source.read_ahead()

    def __enter__(self) -> "OpenRows":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def has_rows(self, layer: int) -> bool:
        """Whether a layer has rows; reads nothing."""
        if isinstance(self._source, HostPage):
            return self._source.has_rows(layer)
        return layer in self._layers

    def rows(self, layer: int, start: int, end: int) -> HostRows | None:
        """As HostPage.rows; raises CorruptRecord, too. The last layer that was read is kept."""
        if not self.start <= start <= end <= self.end:
            raise ValueError(f"No rows {start} to {end} in a page {self.start}..{self.end}.")
        if isinstance(self._source, HostPage):
            return self._source.rows(layer, start, end)
        if self._last is None or self._last[0] != layer:
            self._last = layer, self._read(self._source, layer)
        held = self._last[1]
        return None if held is None else held.part(start - self.start, end - self.start)

    def sizes(self, layer: int) -> tuple[Array, ...]:
        """What its arrays are like, without rows."""
        if isinstance(self._source, HostPage):
            held = self._source.layers[layer]
            places = [] if held is None else zip(held.arrays, held.axes, strict=True)
            return tuple(np.empty(with_rows(a.shape, axis, 0), a.dtype) for a, axis in places)
        mine = [place for place in self._source.head.arrays if place.layer == layer]
        return tuple(
            np.empty(with_rows(place.shape, place.row_axis or 0, 0), DTYPES[place.dtype])
            for place in mine
        )

    def rows_into(self, layer: int, start: int, end: int, rooms: Sequence[HostRoom]) -> None:
        """As `rows`, to where they shall lie; whatever is raised, what is there then is not to be
        used. ValueError for rooms that are not like the arrays."""
        if isinstance(self._source, RecordFile) and (start, end) == (self.start, self.end):
            with self._timed(sum(room.nbytes for room in rooms)):
                self._source.layer_into(layer, rooms)
            return
        held = self.rows(layer, start, end)
        for room, rows in zip(rooms, held.arrays if held is not None else (), strict=True):
            room.fill(rows)

    @contextmanager
    def _timed(self, nbytes: int) -> Iterator[None]:
        began = time.perf_counter()
        with self._reader.reading(self._entry):
            yield
        self._seconds += (time.perf_counter() - began) / self._at_once
        self._nbytes += nbytes

    def _read(self, file: RecordFile, layer: int) -> HostRows | None:
        nbytes = sum(place.nbytes for place in file.head.arrays if place.layer == layer)
        with self._timed(nbytes):
            return file.layer_rows(layer)

    def close(self) -> None:
        self._last = None
        if isinstance(self._source, RecordFile):
            self._source.close()
        if self._nbytes:
            self._reader.loaded(self._entry, self._nbytes, self._seconds)
            self._nbytes = 0
