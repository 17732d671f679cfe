"""Which picture is it? Its fingerprint and its rows, without decoding what was seen before.

For front-ends: needs no mlx. A memo leads from the hash of a file's bytes (under one model's
settings) to the fingerprint, so a history of twenty unchanged pictures decodes none of them.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeVar

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.vision.config import VisionConfig, identity
from ds4tui.engine.vision.layout import NO_TOKEN, Encode, ImageBlock, block, missing_markers
from ds4tui.engine.vision.pictures import opened
from ds4tui.engine.vision.preprocess import Prepared, Shape, prepared
from ds4tui.errors import GGUFError

T = TypeVar("T")

# Entries are of some hundred bytes, and twice that a row of their blocks.
KNOWN_MAX = 1024
# Just recognised pictures are encoded next: these are not decoded twice.
PREPARED_MAX = 4


@dataclass(frozen=True, slots=True)
class Picture:
    """A recognised picture. `load` decodes and prepares it, if that is not just done."""

    fingerprint: bytes
    shape: Shape
    block: ImageBlock
    load: Callable[[], Prepared]


class Recogniser:
    """Of one mmproj and the tokenizer of its text model. May be called from any thread."""

    def __init__(self, gguf: GGUFFile, encode: Encode, placeholder: int = NO_TOKEN) -> None:
        """Reads the whole file once, for its identity. Raises GGUFError as VisionConfig.of, and
        if the vocabulary lacks the markers that stand around its pictures."""
        self.config = VisionConfig.of(gguf)
        missing = missing_markers(self.config, encode)
        if missing:
            raise GGUFError(
                f"{gguf.path.name} does not belong to this model, whose vocabulary has no "
                f"{' and no '.join(missing)}.",
                "Choose the mmproj file that was made with the model.",
            )
        self._identity = identity(gguf)
        self._encode, self._placeholder = encode, placeholder
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, tuple[bytes, Shape]] = OrderedDict()
        self._blocks: dict[tuple[int, tuple[int, int]], ImageBlock] = {}  # by what decides them
        self._prepared: OrderedDict[bytes, Prepared] = OrderedDict()

    def __call__(self, data: bytes, name: str = "The picture") -> Picture:
        """The picture in the file `data`. Raises UsageError, with `name`, as pictures.opened."""
        key = blake2b(data, digest_size=16).digest()
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
        if known is None:
            made = self._prepare(data, name, key)
            known = made.fingerprint(self._identity), made.shape
            with self._lock:
                self._known[key] = known
                _shorten(self._known, KNOWN_MAX)
        fingerprint, shape = known
        return Picture(fingerprint, shape, self._block(shape), lambda: self._load(data, name, key))

    def _load(self, data: bytes, name: str, key: bytes) -> Prepared:
        with self._lock:
            made = self._prepared.get(key)
        return self._prepare(data, name, key) if made is None else made

    def _prepare(self, data: bytes, name: str, key: bytes) -> Prepared:
        made = prepared(opened(data, name), self.config)
        with self._lock:
            self._prepared[key] = made
            _shorten(self._prepared, PREPARED_MAX)
        return made

    def _block(self, shape: Shape) -> ImageBlock:
        key = shape.squares, shape.grid
        if key not in self._blocks:
            self._blocks[key] = block(self.config, shape, self._encode, self._placeholder)
        return self._blocks[key]


def _shorten(held: OrderedDict[bytes, T], most: int) -> None:
    while len(held) > most:
        held.popitem(last=False)
