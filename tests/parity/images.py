"""The golden images as our engine takes them: prepared, encoded, and laid out by the golden ids."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from PIL import Image

from ds4tui.cache.timeline import ImageSpan, Timeline
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.models.registry import Model
from ds4tui.engine.vision.layout import ImageBlock, in_three_directions, row_ids
from ds4tui.engine.vision.preprocess import Prepared, prepared
from ds4tui.engine.vision.projectors import Encoder, Vectors
from ds4tui.engine.vision.rows import rows_of
from ds4tui.kernels import choice
from tests.golden.files import golden, projector_path
from tests.golden.make.tokens import ID

IMAGE = ID["<image>"]
FINGERPRINT = b"the golden image"


def encoder(name: str) -> Encoder:
    with GGUFFile.open(projector_path(name)) as file:
        return Encoder(file, choice.current().path())


def prepared_golden(name: str, encoder: Encoder) -> Prepared:
    """As the golden prompt has it: tiny pictures are not enlarged, and idefics3 sees its one
    tile twice."""
    picture = Image.fromarray(golden(name)["image"])
    made = prepared(picture, replace(encoder.config, pixels=(1, 10**6)))
    if encoder.config.projector == "idefics3":
        twice = np.concatenate([made.pixels, made.pixels])
        made = Prepared(twice, replace(made.shape, squares=2))
    return made


@dataclass(frozen=True)
class GoldenImage:
    """An ds4tui.engine.vision.rows.Images of one picture."""

    of: ImageBlock
    given: Vectors

    def block(self, span: ImageSpan) -> ImageBlock:
        assert span.fingerprint == FINGERPRINT
        return self.of

    def vectors(self, span: ImageSpan) -> Vectors:
        return self.given


@cache
def span_of(name: str) -> slice:
    """From the first row that is a vector to the last."""
    rows = np.flatnonzero(golden(name)["ids"] == IMAGE)
    return slice(int(rows[0]), int(rows[-1]) + 1)


def golden_image(name: str, encoder: Encoder, vectors: Vectors | None = None) -> GoldenImage:
    made = prepared_golden(name, encoder)
    ids = golden(name)["ids"][span_of(name)].astype(np.int64)
    is_vector, kind = ids == IMAGE, encoder.config.projector
    positions = in_three_directions(is_vector, made.shape.grid) if "qwen" in kind else None
    advance = len(ids) if positions is None else int(positions.max()) + 1
    if positions is not None:  # the golden span ends with its last vector
        advance = max(made.shape.grid)
    token_ids = tuple(int(i) for i in ids)
    block = ImageBlock(token_ids, is_vector, advance, positions, kind == "gemma3")
    return GoldenImage(block, encoder(made) if vectors is None else vectors)


def golden_timeline(name: str) -> Timeline:
    ids, at = golden(name)["ids"].astype(np.int64), span_of(name)
    rows = at.stop - at.start
    span = ImageSpan(at.start, rows, FINGERPRINT, tuple(int(i) for i in ids[at]))
    ids[at] = row_ids(FINGERPRINT, rows)
    return Timeline.of(ids, (span,))


# Where the forward passes end, for an image in [start, stop) of n rows.
CUTS: dict[str, Callable[[int, int, int], list[int]]] = {
    "whole": lambda start, stop, n: [n],
    "image alone": lambda start, stop, n: [start, stop, n],
    "image amid text": lambda start, stop, n: [start - 3, stop + 2, n],
    "stepped": lambda start, stop, n: [*range(1, start + 1), *range(stop, n + 1)],
}


def walk_images(model: Model, name: str, image: GoldenImage, cuts: str = "whole") -> np.ndarray:
    """float32 [T, vocab]: the logits at every position of the golden prompt."""
    timeline, at = golden_timeline(name), span_of(name)
    state, parts, start = model.new_state(), [], 0
    for end in CUTS[cuts](at.start, at.stop, len(timeline)):
        rows = rows_of(timeline, start, end, "all", image)
        parts.append(np.array(model.forward(rows, state)))
        start = end
    return np.concatenate(parts)
