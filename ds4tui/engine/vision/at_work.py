"""The pictures of one job: known to the engine while it is at work, and encoded one a step, each
before the chunk of the prompt that it stands in, so that a job can be cancelled between them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ds4tui.cache.timeline import ImageSpan, Timeline
from ds4tui.errors import EngineError

if TYPE_CHECKING:  # a job without pictures needs neither Pillow nor encoders
    from ds4tui.engine.vision.held import HeldImages
    from ds4tui.engine.vision.recognition import Picture


@dataclass(frozen=True, slots=True)
class Encoded:
    """One picture of `total` that were to be encoded; `done` are."""

    name: str
    done: int
    total: int
    took_ms: float


class PicturesAtWork:
    """Owned by the engine thread. `images` is None for a model that sees nothing."""

    def __init__(self, images: "HeldImages | None", pictures: "Sequence[Picture]") -> None:
        self._images, self._pictures = images, tuple(pictures)
        self._is_given = False
        self._done = self._total = 0
        self.took_s = 0.0

    def give(self, timeline: Timeline) -> None:
        """Before anything is planned. Raises EngineError for a picture of `timeline` that is not
        among those of the job, or that nobody can see."""
        if self._images is None:
            if self._pictures:
                raise EngineError(
                    "This model sees no pictures.", "Open it with the mmproj file made for it."
                )
            return
        self._images.give(*self._pictures)
        self._is_given = True
        for span in timeline.spans:
            self._images.picture(span)

    def take_back(self) -> None:
        """The job is over; harmless when repeated."""
        if self._images is not None and self._is_given:
            self._images.need(self, ())
            self._images.take_back(*self._pictures)
            self._is_given = False

    def begin(self, timeline: Timeline, kept: int) -> None:
        """Rows [kept, end) of `timeline` are to be evaluated."""
        self._done, self._total = 0, 0
        if self._images is not None:
            behind = [span for span in timeline.spans if span.start >= kept]
            self._total = len(self._images.missing(behind))

    def encode_next(self, spans: Iterable[ImageSpan]) -> Encoded | None:
        """Encode one picture of the next chunk's `spans`; None if all of them are held. Raises
        what decoding and encoding raise."""
        if self._images is None:
            return None
        wanted = tuple(spans)
        self._images.need(self, wanted)
        missing = self._images.missing(wanted)
        if not missing:
            return None
        self._images.vectors(missing[0])
        self._done += 1
        self._total = max(self._total, self._done)
        self.took_s += self._images.last_encode_ms / 1e3
        name = self._images.picture(missing[0]).name
        return Encoded(name, self._done, self._total, self._images.last_encode_ms)
