"""Rows that are read straight to where a state keeps them, several parts at a time.

Only states in host memory have such places. They lie behind the rows that a layer holds, so
nothing of what is read counts before its part is whole and verified.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol, TypeGuard

from ds4tui.engine.state.append_only import HostKVLayer
from ds4tui.engine.state.layer import Array, LayerState

# Reading, page faults of new memory and checksums of one are beside those of another. With three
# a disk is kept busy; more have brought nothing.
PARTS_AT_ONCE = 3


class Arriving(Protocol):
    """A source that can write rows itself."""

    def sizes(self) -> Sequence[tuple[Array, ...]] | None:
        """Of each layer what its arrays are like, without rows; None if that cannot be read."""

    def read_into(self, rooms: Sequence[Sequence[Any]], at_once: int) -> None:
        """Write to the rooms of each layer (none for a bounded one); on any thread. Raises what
        reading raises."""


class Arrivals:
    """The parts that are on their way to their places, by source."""

    def __init__(self, layers: Sequence[LayerState], coming: dict[int, Future[None]]) -> None:
        self._layers, self._coming = layers, coming

    def took(self, source: Any, count: int) -> bool:
        """Wait until the `count` rows of a source are there, and hold them from now on; False if
        it is not on its way. Raises what reading raised."""
        arrived = self._coming.get(id(source))
        if arrived is None:
            return False
        arrived.result()
        for layer in self._layers:
            if isinstance(layer, HostKVLayer):
                layer.written(count)
        return True


@contextmanager
def arriving(
    layers: Sequence[LayerState], parts: Sequence[tuple[Any, int, int]]
) -> Iterator[Arrivals]:
    """Begin to read what can be read straight into `layers`, which are reserved; on leaving
    nobody writes to them any more. ValueError for rows of another model."""
    coming: dict[int, Future[None]] = {}
    straight = [part for part in parts if _can_arrive(part[0])] if have_room(layers) else []
    sizes = straight[0][0].sizes() if straight else None
    if sizes is None:
        yield Arrivals(layers, coming)
        return
    rooms = [_rooms(layers, sizes, start, end) for _, start, end in straight]
    pool = ThreadPoolExecutor(PARTS_AT_ONCE, thread_name_prefix="kv-disk-reader")
    try:
        at_once = min(PARTS_AT_ONCE, len(straight))
        for (source, _, _), places in zip(straight, rooms, strict=True):
            coming[id(source)] = pool.submit(source.read_into, places, at_once)
        yield Arrivals(layers, coming)
    finally:
        pool.shutdown(cancel_futures=True)


def _can_arrive(source: Any) -> TypeGuard[Arriving]:
    return hasattr(source, "read_into")


def have_room(layers: Sequence[LayerState]) -> bool:
    """Whether all layers that grow have places to read rows to."""
    growing = [layer for layer in layers if not layer.is_bounded]
    return bool(growing) and all(isinstance(layer, HostKVLayer) for layer in growing)


def _rooms(
    layers: Sequence[LayerState], sizes: Sequence[tuple[Array, ...]], start: int, end: int
) -> list[Sequence[Any]]:
    return [
        layer.rooms(start, end, like) if isinstance(layer, HostKVLayer) else ()
        for layer, like in zip(layers, sizes, strict=True)
    ]
