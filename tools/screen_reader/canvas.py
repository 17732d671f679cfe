"""A screen being laid out, its drawing, llama.cpp's preprocessing, and the truth of every patch.

The picture is drawn at its own size, as a cropped screenshot would be, and preprocess() brings it
to 512 x 512. A patch is 16 x 16 of those pixels; a cell is 2 x 2 patches, one vector of the
projector.
"""

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from tools.screen_reader.colours import RGB
from tools.screen_reader.faces import Faces, Font

SIDE = 512
PATCH = 16
CELL = 32
PATCHES = SIDE // PATCH
CELLS = SIDE // CELL
SLOTS = 3  # characters whose centres one patch can hold; type is never smaller than about 5 px
UNSURE = 255  # in Truth.characters: a centre is so near a border that either patch is right
MARGIN_PX = 0.5  # what "so near" is, in pixels of 512
MIDDLE_OF_ASCENT = 0.62  # of the ascent: about the middle of a lower-case letter
FARTHEST_SHIFT = 4  # cells that a token may be moved to the right of where it stands


@dataclass(frozen=True)
class Text:
    x: float
    y: float
    text: str
    font: Font
    fill: RGB


@dataclass(frozen=True)
class Box:
    corners: tuple[float, float, float, float]
    fill: RGB | None = None
    outline: RGB | None = None
    radius: int = 0
    width: int = 1


@dataclass(frozen=True)
class Truth:
    """What stands where.

    characters: uint8 [32, 32, 3], code - 31 of the characters whose centres lie in the patch, from
    left to right; 0 is none, UNSURE is not to be learnt. tokens: int32 [256], the language model's
    token to be seen in each cell, -1 for none.
    """

    characters: NDArray[np.uint8]
    tokens: NDArray[np.int32]


@dataclass
class Canvas:
    """One scene's limits, and what was put on it. `difficulty` 0..1: smaller and more text."""

    r: random.Random
    difficulty: float
    faces: Faces
    texts: list[Text] = field(default_factory=list)
    boxes: list[Box] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.mono = self.faces.mono
        self.sans = self.faces.sans
        if self.faces.serif:
            self.sans = self.sans + (self.faces.serif if self.r.random() < 0.3 else [])
        self.px = self.r.choice([14, 15, 16, 17, 18, 20, 22, 24, 26, 28])
        self.least_width = 15.0 - 6.3 * self.difficulty  # mean character, px of 512
        self.line_length = int(480 / self.least_width)
        self.budget = int(28 + 72 * self.difficulty)  # characters in the picture

    def text(self, x: float, y: float, text: str, font: Font, fill: RGB) -> None:
        self.texts.append(Text(x, y, text, font, fill))

    def box(self, corners: tuple[float, float, float, float], **style: Any) -> None:
        self.boxes.append(Box(corners, **style))

    def lines(
        self, lines: list[str], font: Font, x: float, y: float, height: float, fills: list[RGB]
    ) -> None:
        for i, line in enumerate(lines):
            self.text(x, y + i * height, line, font, fills[i])


def preprocess(image: Image.Image) -> Image.Image:
    """llama.cpp's idefics3 preprocessing with preproc_image_size == image_size == 512.

    Two LANCZOS resizes: the longer side to 512 keeping the shape, then to 512 x 512, which
    stretches (tools/mtmd/clip.cpp, mtmd_image_preprocessor_idefics3).
    """
    width, height = image.size
    if width >= height:
        w, h = SIDE, int(SIDE / (width / height))
        h += h % 2
    else:
        w, h = int(SIDE * (width / height)), SIDE
        w += w % 2
    w, h = max(w, 1), max(h, 1)
    if (w, h) != image.size:
        image = image.resize((w, h), Image.Resampling.LANCZOS)
    if image.size != (SIDE, SIDE):
        image = image.resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    return image


def near_border(position: float, pitch: int = PATCH) -> bool:
    return abs((position + pitch / 2) % pitch - pitch / 2) < MARGIN_PX


def mark_characters(
    characters: NDArray[np.uint8], text: Text, middle_y: float, scale_x: float
) -> None:
    """Writes one line of text into Truth.characters; `middle_y` is in pixels of 512."""
    row = int(middle_y // PATCH)
    if not 0 <= row < PATCHES:
        return
    unsure_row = near_border(middle_y)
    for character, centre in zip(text.text, text.font.centres(text.text), strict=True):
        if character == " ":
            continue
        x = (text.x + centre) * scale_x
        column = int(x // PATCH)
        if not 0 <= column < PATCHES:
            continue
        slots = characters[row, column]
        if unsure_row or near_border(x):
            other_row = row + (1 if (middle_y % PATCH) > PATCH / 2 else -1)
            other = column + (1 if (x % PATCH) > PATCH / 2 else -1)
            slots[:] = UNSURE
            if unsure_row and 0 <= other_row < PATCHES:
                characters[other_row, column] = UNSURE
            if near_border(x) and 0 <= other < PATCHES:
                characters[row, other] = UNSURE
            continue
        used = int((slots > 0).sum())
        if used < SLOTS and slots[0] != UNSURE:
            slots[used] = ord(character) - 31


def mark_tokens(
    tokens: NDArray[np.int32],
    texts: list[tuple[float, Text]],
    scale_x: float,
    tokenizer: Any,
) -> None:
    """Writes each token into the cell where it starts, or into the next free one of its row."""
    filled: dict[int, int] = {}
    for middle_y, text in sorted(texts, key=lambda z: (int(z[0] // PATCH), z[1].x)):
        row = int(middle_y // CELL)
        line, centres = text.text, text.font.centres(text.text)
        encoding = tokenizer.encode(line, add_special_tokens=False)
        for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if line[start:end].strip() == "" or start >= len(centres):
                continue
            while start < end - 1 and line[start] == " ":
                start += 1
            column = int((text.x + centres[start]) * scale_x // CELL)
            cell = max(column, filled.get(row, -1) + 1)
            if cell >= CELLS or cell - column > FARTHEST_SHIFT:
                continue
            filled[row] = cell
            tokens[row * CELLS + cell] = token


def draw(
    canvas: Canvas, width: float, height: float, background: RGB, tokenizer: Any | None
) -> tuple[Image.Image, Truth]:
    """Draws what was put on the canvas; without a tokenizer Truth.tokens stays empty."""
    width, height = int(width), int(height)
    image = Image.new("RGB", (width, height), background)
    pen = ImageDraw.Draw(image)
    for box in canvas.boxes:
        style: dict[str, Any] = {"fill": box.fill, "outline": box.outline, "width": box.width}
        if box.radius:
            pen.rounded_rectangle(box.corners, box.radius, **style)
        else:
            pen.rectangle(box.corners, **style)
    scale_x, scale_y = SIDE / width, SIDE / height
    truth = Truth(
        np.zeros((PATCHES, PATCHES, SLOTS), np.uint8), np.full(CELLS * CELLS, -1, np.int32)
    )
    placed = []
    for text in canvas.texts:
        pen.text((text.x, text.y), text.text, font=text.font.face, fill=text.fill)
        middle_y = (text.y + text.font.ascent_px * MIDDLE_OF_ASCENT) * scale_y
        mark_characters(truth.characters, text, middle_y, scale_x)
        if 0 <= int(middle_y // PATCH) < PATCHES:
            placed.append((middle_y, text))
    if tokenizer is not None:
        mark_tokens(truth.tokens, placed, scale_x, tokenizer)
    return image, truth
