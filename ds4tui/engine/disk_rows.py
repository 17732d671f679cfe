"""Rows and bounded parts that a plan takes from disk, as the session's rebuild wants them."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import pairwise
from typing import Generic, TypeVar

from ds4tui.cache.kvarrays import Array, HostPage, HostRoom
from ds4tui.cache.kventries import FIRST_HOLDER_ID
from ds4tui.cache.kvformat import CorruptRecord
from ds4tui.cache.kvstore import DiskTier
from ds4tui.engine.disk_arrays import bounded_state, is_on_device, layer_rows
from ds4tui.engine.state import BoundedState, LayerRows, LayerState
from ds4tui.engine.state.arrival import have_room

T = TypeVar("T")


def is_on_disk(holder_id: int) -> bool:
    """Whether a plan's holder or snapshot is the disk tier's."""
    return holder_id <= FIRST_HOLDER_ID


class Reading(Generic[T]):
    """Something that is read on a thread of its own, begun at once; `result` waits for it, and
    raises what reading raised."""

    def __init__(self, read: Callable[[], T]) -> None:
        self._found: Future[T] = Future()
        self._read = read
        threading.Thread(target=self._run, name="kv-disk-reader", daemon=True).start()

    def result(self) -> T:
        return self._found.result()

    def _run(self) -> None:
        try:
            found = self._read()
        except BaseException as exc:  # the root of the thread: whoever waits gets it
            self._found.set_exception(exc)
        else:
            self._found.set_result(found)


class DiskRows:
    """Rows [start, end) of a page as a RowSource for a state of `layers`.

    Into states in host memory they are read straight, each layer to its place
    (engine.state.arrival). For others the page is read, whole and verified, before the first rows
    are given, and let go with the last layer's; meanwhile `following`, the page that is wanted
    next, is read: two are in memory at a time."""

    def __init__(
        self, disk: DiskTier, holder_id: int, start: int, end: int, layers: Sequence[LayerState]
    ) -> None:
        self._disk, self._wanted = disk, (holder_id, start, end)
        self.following: DiskRows | None = None
        self._reading: Reading[HostPage] | None = None
        self._on_device = [is_on_device(layer) for layer in layers]
        self._bounded = [layer.is_bounded for layer in layers]
        self._last = max(
            (i for i, is_bounded in enumerate(self._bounded) if not is_bounded), default=0
        )
        self._page: HostPage | None = None
        self._failed: CorruptRecord | None = None  # known before its rows are asked for
        self.is_straight = have_room(layers)

    def begin(self) -> None:
        """Read it while other things are done."""
        self._reading = Reading(self._read)

    def _read(self) -> HostPage:
        return self._disk.read_rows(*self._wanted)

    def _taken(self) -> HostPage:
        if self._failed is not None:
            raise self._failed
        reading, self._reading = self._reading, None
        found = self._read() if reading is None else reading.result()
        if self.following is not None:
            self.following.begin()
        return found

    def sizes(self) -> Sequence[tuple[Array, ...]] | None:
        """As engine.state.arrival.Arriving."""
        try:
            with self._disk.open_rows(self._wanted[0]) as page:
                return [page.sizes(layer) for layer in range(len(self._bounded))]
        except CorruptRecord as exc:
            self._failed = exc
            return None

    def read_into(self, rooms: Sequence[Sequence[HostRoom]], at_once: int) -> None:
        """As engine.state.arrival.Arriving. Raises CorruptRecord for a page that cannot be read,
        ValueError for one of another model."""
        holder_id, start, end = self._wanted
        with self._disk.open_rows(holder_id, at_once) as page:
            for layer, places in enumerate(rooms):
                if places:
                    page.rows_into(layer, start, end, places)

    def has_rows(self, layer: int, start: int, end: int) -> bool:
        """Reads nothing: what a page of this model has follows from its layers."""
        return not self._bounded[layer]

    def rows(self, layer: int, start: int, end: int) -> LayerRows | None:
        """As RowSource. Raises CorruptRecord for a page that cannot be read, ValueError for one
        that has not these rows."""
        if self._bounded[layer]:
            return None
        if self._page is None:
            self._page = self._taken()
        found = self._page.rows(layer, start, end)
        if found is None:
            raise ValueError(f"A page without rows of layer {layer}.")
        if layer == self._last:
            self._page = None
        return layer_rows(found, self._on_device[layer])


def begin_reading(pages: Sequence[DiskRows]) -> None:
    """Those of a plan, in the order in which they are wanted; those that are read straight into
    a state begin when it has made room for them."""
    if any(page.is_straight for page in pages):
        return
    for page, following in pairwise(pages):
        page.following = following
    if pages:
        pages[0].begin()


def bounded_from_disk(
    disk: DiskTier, snapshot_id: int, layers: Sequence[LayerState]
) -> BoundedState:
    """Raises CorruptRecord for a snapshot that cannot be read, ValueError for one of another
    model."""
    return bounded_state(disk.read_snapshot(snapshot_id), layers)
