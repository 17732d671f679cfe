"""What a front-end knows of a model that sees: which picture is which, and what it costs.

    data ──Vision──▶ Picture ──block.span──▶ Timeline
                        └──GenerateRequest.pictures──▶ the engine, which decodes and encodes it

Needs no mlx. `open_eyes` finds the encoder's file and holds it against the text model.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.vision.config import VisionConfig
from ds4tui.engine.vision.layout import Encode
from ds4tui.engine.vision.recognition import Picture, Recogniser
from ds4tui.errors import ModelError

log = logging.getLogger(__name__)


class Vision(Protocol):
    """May be called from any thread. `name` is of the encoder's file, for people."""

    name: str

    def __call__(self, data: bytes, name: str = "The picture", digest: bytes = b"") -> Picture:
        """The picture in the file `data`, decoded unless it was seen before; `digest` is its
        blake2b of 16 bytes, if that is known. Raises UsageError, with `name` and the reason, for
        what is no picture, damaged, too large, or of a shape that the model does not take."""

    def tokens_of(self, size: tuple[int, int]) -> int:
        """Rows that a picture of (width, height) pixels takes, without decoding one. Raises
        UsageError for a shape that the model does not take."""


@dataclass(frozen=True, slots=True)
class Eyes:
    """An image encoder that belongs to the model. `file` is open; who takes this closes it."""

    file: GGUFFile
    vision: Recogniser


# Raises GGUFError if the encoder of the file so called makes nothing for the text model.
RequireFitting = Callable[[str, VisionConfig], None]


def open_eyes(
    candidates: Sequence[Path], encode: Encode, require_fitting: RequireFitting
) -> tuple[Eyes | None, str]:
    """The first of `candidates` that the text model can use, and why those before it are not, in
    words. `encode` is the model's."""
    reasons = []
    for path in candidates:
        try:
            eyes = eyes_of(path, encode, require_fitting)
        except (ModelError, OSError) as exc:
            reasons.append(exc.message if isinstance(exc, ModelError) else f"{path.name}: {exc}.")
            log.info("not used: %s", reasons[-1])
            continue
        if len(candidates) > 1:
            names = ", ".join(candidate.name for candidate in candidates)
            log.info("of %s the one that fits and is named most alike is %s", names, path.name)
        return eyes, " ".join(reasons)
    return None, " ".join(reasons)


def eyes_of(path: Path, encode: Encode, require_fitting: RequireFitting) -> Eyes:
    """Raises ModelNotFound and GGUFError, as GGUFFile.open, Recogniser and `require_fitting`."""
    file = GGUFFile.open(path)
    try:
        require_fitting(path.name, VisionConfig.of(file))  # by its header, before all of it is read
        vision = Recogniser(file, encode)
    except BaseException:
        file.close()
        raise
    return Eyes(file, vision)
