"""The rows of a timeline with images, as the model takes them.

A session asks for any part of a timeline that cuts no image. What a picture is (its markers, its
positions, its vectors) is asked of `Images` by its fingerprint, so a timeline that was parked or
comes from disk needs nothing else.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.cache.timeline import ImageSpan, Timeline
from ds4tui.engine.models.rows import ImageVectors, Logits, Rows

if TYPE_CHECKING:  # a session that sees nothing needs neither Pillow nor encoders
    from ds4tui.engine.vision.layout import ImageBlock
    from ds4tui.engine.vision.projectors import Vectors

Positions = npt.NDArray[np.int32]


class Images(Protocol):
    def block(self, span: ImageSpan) -> "ImageBlock":
        """How it lies, cheap. Raises EngineError for a picture that nobody gave."""

    def vectors(self, span: ImageSpan) -> "Vectors":
        """What is encoded now if it is not held. Raises EngineError as above."""


def rows_of(
    timeline: Timeline, start: int, end: int, logits: Logits, images: Images | None
) -> Rows:
    """Rows [start, end) of `timeline`. Without `images` rows of pictures keep their negative ids,
    which no model takes. Raises ValueError if an image would be cut, and what `images` raises."""
    among = tuple(span for span in timeline.spans if start <= span.start < end)
    if images is None or not timeline.spans or timeline.spans[0].start >= end:
        positions = np.arange(start, end, dtype=np.int32)
        return Rows(timeline.ids[start:end], None, positions, among, logits)
    if timeline.snapped(start) != start or timeline.snapped(end) != end:
        raise ValueError(f"Rows {start} to {end} would cut an image.")
    before = [span for span in timeline.spans if span.end <= start]
    ids = timeline.ids[start:end].copy()
    for span in among:
        ids[span.start - start : span.end - start] = span.token_ids
    positions = _positions(start, end, before, among, images)
    given = _vectors(start, end, among, images) if among else None
    return Rows(ids, None, positions, among, logits, given)


def _block(images: Images, span: ImageSpan) -> "ImageBlock":
    return images.block(span).at(span.start)


def _moved(spans: Sequence[ImageSpan], images: Images) -> int:
    return sum(_block(images, span).advance - span.rows for span in spans)


def _positions(
    start: int, end: int, before: Sequence[ImageSpan], among: Sequence[ImageSpan], images: Images
) -> Positions:
    """[T], or [3, T] if one of the images says so."""
    moved = _moved(before, images)
    positions = np.tile(np.arange(start, end, dtype=np.int32) + np.int32(moved), (3, 1))
    for span in among:
        block, at = _block(images, span), slice(span.start - start, span.end - start)
        if block.positions is not None:
            positions[:, at] = positions[:, [at.start]] + block.positions
        positions[:, at.stop :] += np.int32(block.advance - span.rows)
    apart = (positions != positions[0]).any()
    return positions if apart else positions[0]


def _vectors(start: int, end: int, among: Sequence[ImageSpan], images: Images) -> ImageVectors:
    at, vectors, sight = [], [], None
    for span in among:
        block, given = _block(images, span), images.vectors(span)
        rows = np.flatnonzero(block.is_vector)
        if block.order is not None:
            given = replace(given, rows=given.rows[mx.array(block.order)])
        if len(rows) != given.rows.shape[0]:
            raise ValueError(f"{given.rows.shape[0]} vectors for {len(rows)} rows of an image.")
        at.append(rows + (span.start - start))
        vectors.append(given)
        if block.seen_whole:
            sight = np.arange(1, end - start + 1, dtype=np.int32) if sight is None else sight
            sight[span.start - start : span.end - start] = block.sight() + (span.start - start)
    added = zip(*(given.added for given in vectors), strict=True)
    return ImageVectors(
        at=np.concatenate(at).astype(np.int64),
        vectors=mx.concatenate([given.rows for given in vectors]),
        added=tuple(mx.concatenate(list(parts)) for parts in added),
        sight=sight,
    )
