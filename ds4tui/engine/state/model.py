"""The state of a whole model, and what is copied out of it to be put back later.

A RowSegment is a run of rows of all append-only layers, a BoundedState the bounded parts of the
others at one position. Together they say everything: `rebuild` makes from them, bit for bit,
the state that they were taken from.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ds4tui.engine.state.arrival import arriving
from ds4tui.engine.state.layer import LayerBounded, LayerRows, LayerState


class RowSource(Protocol):
    """Whatever holds rows: a live or parked ModelState, a RowSegment."""

    def rows(self, layer: int, start: int, end: int) -> LayerRows | None:
        """Rows [start, end) of one layer, to be copied at once; None for a layer that has no
        append-only part. ValueError if they are not all held."""


RowPart = tuple[RowSource, int, int]  # rows [start, end) of a source


@dataclass(frozen=True, slots=True)
class RowSegment:
    """Copies of rows [start, end) of all append-only layers; never written."""

    start: int
    end: int
    layers: tuple[LayerRows | None, ...]

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers if layer is not None)

    def rows(self, layer: int, start: int, end: int) -> LayerRows | None:
        """As RowSource; positions are those of the sequence."""
        held = self.layers[layer]
        if not self.start <= start <= end <= self.end:
            raise ValueError(f"No rows {start} to {end} in a segment {self.start}..{self.end}.")
        return None if held is None else held.part(start - self.start, end - self.start)


@dataclass(frozen=True, slots=True)
class BoundedState:
    """The bounded parts of all layers at one position; None for append-only layers."""

    position: int
    layers: tuple[LayerBounded | None, ...]

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers if layer is not None)


class ModelState:
    """The layer states of one live sequence. Owned by the engine thread."""

    def __init__(self, layers: Sequence[LayerState]) -> None:
        self.layers = list(layers)

    @property
    def length(self) -> int:
        """Rows held by every layer; RuntimeError if a failed step left them uneven."""
        lengths = {layer.length for layer in self.layers}
        if len(lengths) > 1:
            raise RuntimeError(f"Layer lengths differ after a failed step: {sorted(lengths)}.")
        return lengths.pop() if lengths else 0

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)

    def has_room(self, count: int) -> bool:
        """Whether `count` rows more fit without any layer growing."""
        return all(layer.has_room(count) for layer in self.layers)

    @property
    def needs_snapshots(self) -> bool:
        """Whether rows alone cannot rebuild it."""
        return any(layer.is_bounded for layer in self.layers)

    @property
    def snapshot_bytes(self) -> int:
        """Of what `snapshot` would return now."""
        return sum(layer.bounded_bytes for layer in self.layers)

    def can_rewind(self, to: int) -> bool:
        """Whether every layer can go back to exactly `to` rows. Changes nothing."""
        return all(layer.can_rewind(to) for layer in self.layers)

    def rewind(self, to: int) -> None:
        """Go back to `to` rows in all layers; ValueError, and nothing changed, if one cannot."""
        if not self.can_rewind(to):
            raise ValueError(f"Cannot rewind to {to}: a layer refuses.")
        for layer in self.layers:
            layer.rewind(to)

    def rows(self, layer: int, start: int, end: int) -> LayerRows | None:
        """As RowSource."""
        return self.layers[layer].rows(start, end)

    def rows_bytes(self, start: int, end: int) -> int:
        """Of a segment of these rows."""
        found = (self.rows(i, start, end) for i in range(len(self.layers)))
        return sum(rows.nbytes for rows in found if rows is not None)

    def copy_rows(self, start: int, end: int) -> RowSegment:
        """Copies, a layer at a time. ValueError if the rows are not all there."""
        if not 0 <= start <= end <= self.length:
            raise ValueError(f"No rows {start} to {end}: the state holds {self.length}.")
        found = (self.rows(i, start, end) for i in range(len(self.layers)))
        return RowSegment(start, end, tuple(None if r is None else r.copied() for r in found))

    def snapshot(self) -> BoundedState | None:
        """The bounded parts at `length`; None if no layer has one."""
        if not self.needs_snapshots:
            return None
        return BoundedState(self.length, tuple(layer.bounded() for layer in self.layers))

    def rebuild(
        self, keep: int, parts: Sequence[RowPart], bounded: BoundedState | None = None
    ) -> None:
        """Keep the first `keep` rows, copy those of `parts` behind them, and set the bounded
        parts from `bounded`; without one they go back to `keep` by themselves.

        Buffers are made a layer at a time, and parts copied one by one: the peak is the state
        plus one layer, or what a source holds that reads them from disk. Raises ValueError, and
        nothing is changed, if rows to keep or to copy are not there, the parts have gaps, or the
        bounded parts cannot be at the final length. If a source raises when it is asked for the
        first rows of a part, append-only layers hold all up to there, and bounded ones what they
        held. After any other error layers may be uneven: the state is to be thrown away.
        """
        end = self._check_parts(keep, parts)
        self._check_bounded(keep, end, bounded)
        restored = bounded.layers if bounded is not None else (None,) * len(self.layers)
        for layer, part in zip(self.layers, restored, strict=True):
            if part is None:
                layer.rewind(keep)
                layer.reserve(end)
        with arriving(self.layers, parts) as arrivals:
            for source, start, stop in parts:
                if not arrivals.took(source, stop - start):
                    self._put(source, start, stop)
        for layer, part in zip(self.layers, restored, strict=True):
            if part is not None:
                layer.restore(part, end)

    def _put(self, source: RowSource, start: int, stop: int) -> None:
        for i, layer in enumerate(self.layers):
            rows = None if layer.is_bounded else source.rows(i, start, stop)
            if rows is not None:
                layer.put(rows)

    def _check_parts(self, keep: int, parts: Sequence[RowPart]) -> int:
        """The final length."""
        end = keep
        for source, start, stop in parts:
            if source is self:
                raise ValueError("A state cannot be rebuilt from its own rows.")
            if start != end or stop < start:
                raise ValueError(f"Rows {start} to {stop} do not follow row {end}.")
            for i, layer in enumerate(self.layers):
                if _has_rows(source, i, start, stop) is layer.is_bounded:
                    raise ValueError(f"Layer {i} of what rows are copied from is of another kind.")
            end = stop
        return end

    def _check_bounded(self, keep: int, end: int, bounded: BoundedState | None) -> None:
        if bounded is not None:
            if bounded.position != end or len(bounded.layers) != len(self.layers):
                raise ValueError(f"The snapshot of {bounded.position} rows is not one of {end}.")
        for i, layer in enumerate(self.layers):
            part = bounded.layers[i] if bounded is not None else None
            if layer.is_bounded and part is not None:
                possible = layer.can_restore(part, end)
            else:
                possible = layer.can_rewind(keep) and part is None
                possible = possible and not (layer.is_bounded and end != keep)
            if not possible:
                raise ValueError(f"Layer {i} cannot go to {end} rows by keeping {keep}.")


def _has_rows(source: RowSource, layer: int, start: int, end: int) -> bool:
    """Whether a layer has rows there; a source on disk says so without reading them."""
    ask = getattr(source, "has_rows", None)
    if ask is not None:
        return bool(ask(layer, start, end))
    return source.rows(layer, start, end) is not None
