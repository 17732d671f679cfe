"""The pictures that timelines of this engine are about: their rows, and vectors once encoded.

Owned by the engine thread. A job gives the pictures of its timeline and takes them back when it
is over; vectors stay, within a budget, for whoever sends the same picture again.
"""

import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable

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
    `budget_bytes`, which may be changed. `name` is the encoder's, for people, `weights_bytes` what
    it takes."""

    def __init__(
        self,
        encode: Callable[[Prepared], Vectors],
        budget_bytes: int = VECTORS_BYTES,
        name: str = "",
        weights_bytes: int = 0,
    ) -> None:
        self.budget_bytes = budget_bytes
        self.name, self.weights_bytes = name, weights_bytes
        self.encoded = 0  # pictures, so far
        self.last_encode_ms = 0.0
        self._encode = encode
        self._pictures: dict[bytes, Picture] = {}
        self._uses: Counter[bytes] = Counter()
        self._vectors: OrderedDict[bytes, Vectors] = OrderedDict()
        self._needed: dict[object, frozenset[bytes]] = {}

    @property
    def nbytes(self) -> int:
        """Of the vectors that are held."""
        return sum(vectors.nbytes for vectors in self._vectors.values())

    @property
    def held(self) -> int:
        """Pictures whose vectors are held."""
        return len(self._vectors)

    def give(self, *pictures: Picture) -> None:
        """Before a timeline with them is planned. They stay known until they are taken back as
        often as they were given."""
        for picture in pictures:
            self._pictures.setdefault(picture.fingerprint, picture)
            self._uses[picture.fingerprint] += 1

    def take_back(self, *pictures: Picture) -> None:
        """Files of pictures that no job is about are not kept; vectors are."""
        for picture in pictures:
            self._uses[picture.fingerprint] -= 1
            if self._uses[picture.fingerprint] <= 0:
                del self._uses[picture.fingerprint]
                self._pictures.pop(picture.fingerprint, None)

    def block(self, span: ImageSpan) -> ImageBlock:
        return self.picture(span).block

    def picture(self, span: ImageSpan) -> Picture:
        """Raises EngineError if nobody gave it."""
        picture = self._pictures.get(span.fingerprint)
        if picture is None:
            raise EngineError(
                f"The picture of rows {span.start} to {span.end} was not given.",
                "Send the picture again with its message.",
            )
        return picture

    def missing(self, spans: Iterable[ImageSpan]) -> tuple[ImageSpan, ...]:
        """The first span of each picture that is still to be encoded, in order."""
        first = {span.fingerprint: span for span in reversed(tuple(spans))}
        absent = [span for key, span in first.items() if key not in self._vectors]
        return tuple(sorted(absent, key=lambda span: span.start))

    def vectors(self, span: ImageSpan) -> Vectors:
        """Raises EngineError for a picture that nobody gave, and what decoding it raises."""
        held = self._vectors.pop(span.fingerprint, None)
        if held is None:
            held = self._encoded(self.picture(span))
        self._vectors[span.fingerprint] = held
        self.shrink_to(self.budget_bytes, keep=1)
        return held

    def need(self, who: object, spans: Iterable[ImageSpan]) -> None:
        """Vectors of `spans` stay, whatever the budget, until `who` needs others: the next chunk
        of its prompt takes them together."""
        names = frozenset(span.fingerprint for span in spans)
        if names:
            self._needed[who] = names
        elif self._needed.pop(who, None):
            self.shrink_to(self.budget_bytes, keep=1)

    def shrink_to(self, nbytes: int, keep: int = 0) -> None:
        """Give up the vectors that were used longest ago until the rest takes at most `nbytes`;
        the last `keep` pictures stay, and those that are needed now. What went is encoded again
        when it is wanted."""
        needed = frozenset().union(*self._needed.values())
        for name in list(self._vectors)[: len(self._vectors) - keep]:
            if self.nbytes <= nbytes:
                return
            if name not in needed:
                del self._vectors[name]

    def _encoded(self, picture: Picture) -> Vectors:
        start_s = time.perf_counter()
        vectors = self._encode(picture.load())
        self.last_encode_ms = (time.perf_counter() - start_s) * 1e3
        self.encoded += 1
        (width, height), count = picture.shape.size, vectors.rows.shape[0]
        log.info(
            "%s, %d x %d: %d vectors in %.0f ms",
            picture.name, width, height, count, self.last_encode_ms,
        )  # fmt: skip
        return vectors
