"""The pictures that timelines of this engine are about: their rows, and vectors once encoded.

Owned by the engine thread. Whoever submits a timeline gives the pictures in it; a job that needs
rows of one that went is served by encoding it again.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable

from ds4tui.cache.timeline import ImageSpan
from ds4tui.engine.vision.layout import ImageBlock
from ds4tui.engine.vision.preprocess import Prepared
from ds4tui.engine.vision.projectors import Vectors
from ds4tui.engine.vision.recognition import Picture
from ds4tui.errors import EngineError

log = logging.getLogger(__name__)

VECTORS_BYTES = 256 * 2**20  # some hundred pictures of a small model


class HeldImages:
    """An engine.vision.rows.Images. Vectors of the pictures that were used last are kept, up to
    `budget_bytes`."""

    def __init__(
        self, encode: Callable[[Prepared], Vectors], budget_bytes: int = VECTORS_BYTES
    ) -> None:
        self._encode, self._budget_bytes = encode, budget_bytes
        self._pictures: dict[bytes, Picture] = {}
        self._vectors: OrderedDict[bytes, Vectors] = OrderedDict()
        self.encoded = 0  # pictures, so far

    @property
    def nbytes(self) -> int:
        """Of the vectors that are held."""
        return sum(vectors.nbytes for vectors in self._vectors.values())

    def give(self, picture: Picture) -> None:
        """Before a timeline with it is evaluated. What was given stays known."""
        self._pictures.setdefault(picture.fingerprint, picture)

    def block(self, span: ImageSpan) -> ImageBlock:
        return self._picture(span).block

    def vectors(self, span: ImageSpan) -> Vectors:
        """Raises EngineError for a picture that nobody gave, and what decoding it raises."""
        held = self._vectors.pop(span.fingerprint, None)
        if held is None:
            held = self._encoded(self._picture(span))
        self._vectors[span.fingerprint] = held
        while len(self._vectors) > 1 and self.nbytes > self._budget_bytes:
            self._vectors.popitem(last=False)
        return held

    def _encoded(self, picture: Picture) -> Vectors:
        start = time.perf_counter()
        vectors = self._encode(picture.load())
        self.encoded += 1
        (width, height), seconds = picture.shape.size, time.perf_counter() - start
        count = vectors.rows.shape[0]
        log.info("image of %d x %d: %d vectors in %.2f s", width, height, count, seconds)
        return vectors

    def _picture(self, span: ImageSpan) -> Picture:
        picture = self._pictures.get(span.fingerprint)
        if picture is None:
            raise EngineError(
                f"The picture of rows {span.start} to {span.end} was not given.",
                "Send the picture again with its message.",
            )
        return picture
