"""Rows and bounded parts that a plan takes from disk, as the session's rebuild wants them."""

from collections.abc import Sequence

from ds4tui.cache.kvarrays import HostPage
from ds4tui.cache.kventries import FIRST_HOLDER_ID
from ds4tui.cache.kvstore import DiskTier
from ds4tui.engine.disk_arrays import bounded_state, is_on_device, layer_rows
from ds4tui.engine.state import BoundedState, LayerRows, LayerState


def is_on_disk(holder_id: int) -> bool:
    """Whether a plan's holder or snapshot is the disk tier's."""
    return holder_id <= FIRST_HOLDER_ID


class DiskRows:
    """A page as a RowSource for a state of `layers`. It is read, whole and verified, when the
    first rows are asked for, and let go with the last layer's: one page is in memory at a time.
    """

    def __init__(self, disk: DiskTier, holder_id: int, layers: Sequence[LayerState]) -> None:
        self._disk, self._holder_id = disk, holder_id
        self._on_device = [is_on_device(layer) for layer in layers]
        self._bounded = [layer.is_bounded for layer in layers]
        self._last = max(
            (i for i, is_bounded in enumerate(self._bounded) if not is_bounded), default=0
        )
        self._page: HostPage | None = None

    def has_rows(self, layer: int, start: int, end: int) -> bool:
        """Reads nothing: what a page of this model has follows from its layers."""
        return not self._bounded[layer]

    def rows(self, layer: int, start: int, end: int) -> LayerRows | None:
        """As RowSource. Raises CorruptRecord for a page that cannot be read, ValueError for one
        that has not these rows."""
        if self._bounded[layer]:
            return None
        if self._page is None:
            self._page = self._disk.read_rows(self._holder_id, start, end)
        found = self._page.rows(layer, start, end)
        if found is None:
            raise ValueError(f"A page without rows of layer {layer}.")
        if layer == self._last:
            self._page = None
        return layer_rows(found, self._on_device[layer])


def bounded_from_disk(
    disk: DiskTier, snapshot_id: int, layers: Sequence[LayerState]
) -> BoundedState:
    """Raises CorruptRecord for a snapshot that cannot be read, ValueError for one of another
    model."""
    return bounded_state(disk.read_snapshot(snapshot_id), layers)
