"""Runs of a timeline: ids of text, and the rows of images among them."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ds4tui.cache.timeline import ImageSpan, Timeline

if TYPE_CHECKING:  # reading pictures needs Pillow, which most conversations do not
    from ds4tui.engine.vision.recognition import Picture

Ids = npt.NDArray[np.int64]

_NO_IDS = np.empty(0, dtype=np.int64)
_SPAN_BYTES = 256  # of a span's objects beside its token ids


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """`ids` int64 [n]; `spans` are the images among them, their starts counted from the first."""

    ids: Ids = field(default_factory=lambda: _NO_IDS)
    spans: tuple[ImageSpan, ...] = ()

    @classmethod
    def of(cls, ids: Iterable[int]) -> "Rows":
        return cls(np.array(list(ids), dtype=np.int64))

    @classmethod
    def of_picture(cls, picture: "Picture") -> "Rows":
        from ds4tui.engine.vision.layout import row_ids

        block = picture.block
        span = block.span(0, picture.fingerprint)
        return cls(row_ids(picture.fingerprint, block.rows), (span,))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def nbytes(self) -> int:
        return self.ids.nbytes + sum(_SPAN_BYTES + 8 * span.rows for span in self.spans)

    def cut(self, at: int) -> "tuple[Rows, Rows]":
        """The rows before `at`, which lies in no image, and those behind. The first part is a
        view, the second one a copy that does not keep all of them."""
        before = tuple(span for span in self.spans if span.end <= at)
        behind = tuple(replace(s, start=s.start - at) for s in self.spans if s.start >= at)
        return Rows(self.ids[:at], before), Rows(self.ids[at:].copy(), behind)

    def timeline(self) -> Timeline:
        return Timeline.of(self.ids, self.spans)


def joined(pieces: Iterable[Rows]) -> Rows:
    """One behind the other."""
    ids, spans, count = [_NO_IDS], list[ImageSpan](), 0
    for piece in pieces:
        ids.append(piece.ids)
        spans += [replace(s, start=s.start + count) for s in piece.spans]
        count += len(piece)
    return Rows(np.concatenate(ids), tuple(spans))
