"""Which picture is it? Its fingerprint and its rows, without decoding what was seen before.

For front-ends: needs no mlx. A memo leads from the hash of a file's bytes (under one model's
settings) to the fingerprint, so a history of twenty unchanged pictures decodes none of them.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.vision.config import VisionConfig, identity
from ds4tui.engine.vision.layout import (
    NO_TOKEN,
    PLACEHOLDERS,
    Encode,
    ImageBlock,
    block,
    missing_markers,
)
from ds4tui.engine.vision.pictures import made_of
from ds4tui.engine.vision.preprocess import Prepared, Shape, prepared, shape_of
from ds4tui.errors import GGUFError

# Entries are of some hundred bytes, and twice that a row of their blocks.
KNOWN_MAX = 1024
# Just recognised pictures are encoded next: these are not decoded twice.
PREPARED_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Picture:
    """A recognised picture. `load` decodes and prepares it, if that is not just done; it raises
    as pictures.opened does. `name` is for people."""

    fingerprint: bytes
    shape: Shape
    block: ImageBlock
    load: Callable[[], Prepared]
    name: str = "The picture"


class Recogniser:
    """Of one mmproj and the tokenizer of its text model: an engine.vision.seeing.Vision. May be
    called from any thread."""

    def __init__(self, gguf: GGUFFile, encode: Encode, placeholder: int | None = None) -> None:
        """Reads the whole file once, for its identity. Raises GGUFError as VisionConfig.of, and
        if the vocabulary lacks the markers that stand around its pictures. `placeholder` is the
        token for rows of vectors, None: what the vocabulary has for it."""
        self.config = VisionConfig.of(gguf)
        self.name = gguf.path.name
        missing = missing_markers(self.config, encode)
        if missing:
            raise GGUFError(
                f"{gguf.path.name} does not belong to this model, whose vocabulary has no "
                f"{' and no '.join(missing)}.",
                "Choose the mmproj file that was made with the model.",
            )
        self._identity = identity(gguf)
        self._encode = encode
        self._placeholder = self._own_placeholder() if placeholder is None else placeholder
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, tuple[bytes, Shape]] = OrderedDict()
        self._blocks: dict[tuple[int, tuple[int, int]], ImageBlock] = {}  # by what decides them
        self._prepared: OrderedDict[bytes, Prepared] = OrderedDict()
        self.decoded = 0  # pictures, so far

    def __call__(self, data: bytes, name: str = "The picture", digest: bytes = b"") -> Picture:
        """The picture in the file `data`; `digest` is its blake2b of 16 bytes, if that is known.
        Raises UsageError, with `name`, as pictures.opened."""
        key = digest or blake2b(data, digest_size=16).digest()
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
        if known is None:
            known = self._recognised(data, name, key)
        fingerprint, shape = known

        def load() -> Prepared:
            with self._lock:
                made = self._prepared.pop(key, None)  # its vectors stand for it from here on
            return self._prepare(data, name) if made is None else made

        return Picture(fingerprint, shape, self._block(shape), load, name)

    def tokens_of(self, size: tuple[int, int]) -> int:
        """Rows that a picture of (width, height) pixels takes. Raises UsageError for a shape that
        the model does not take."""
        return self._block(shape_of(size, self.config)).rows

    def _recognised(self, data: bytes, name: str, key: bytes) -> tuple[bytes, Shape]:
        made = self._prepare(data, name)
        known = made.fingerprint(self._identity), made.shape
        with self._lock:
            self._known[key] = known
            while len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)
            self._prepared[key] = made
            while _nbytes(self._prepared) > PREPARED_BYTES:
                self._prepared.popitem(last=False)
        return known

    def _prepare(self, data: bytes, name: str) -> Prepared:
        made = made_of(data, lambda image: prepared(image, self.config), name)
        with self._lock:
            self.decoded += 1
        return made

    def _block(self, shape: Shape) -> ImageBlock:
        key = shape.squares, shape.grid
        if key not in self._blocks:
            self._blocks[key] = block(self.config, shape, self._encode, self._placeholder)
        return self._blocks[key]

    def _own_placeholder(self) -> int:
        ids = self._encode(PLACEHOLDERS[self.config.projector])
        return ids[0] if len(ids) == 1 else NO_TOKEN


def _nbytes(held: OrderedDict[bytes, Prepared]) -> int:
    return sum(made.pixels.nbytes for made in held.values())
