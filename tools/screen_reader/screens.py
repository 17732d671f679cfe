"""One synthetic screenshot with its questions: picks a scene, draws it, keeps the truth."""

import random
from dataclasses import dataclass
from typing import Any

from PIL import Image

from tools.screen_reader import scenes, terminals, windows
from tools.screen_reader.canvas import Canvas, Truth, draw
from tools.screen_reader.faces import Faces

# Scene and weight; both the order and the weights are part of the held-out sets.
SCENES = [
    (scenes.plain, 3.2),
    (scenes.number, 1),
    (terminals.terminal, 2.4),
    (windows.dialog, 2),
    (terminals.code, 1.4),
    (scenes.settings, 1.2),
    (terminals.log, 1.2),
]
MOST_PIXELS = 1.6e6


@dataclass(frozen=True)
class Screen:
    image: Image.Image
    truth: Truth
    questions: list[tuple[str, str, float]]
    kind: str


def screen(r: random.Random, difficulty: float, faces: Faces, tokenizer: Any | None) -> Screen:
    """A screen of any scene; one in five is easier than `difficulty` (0..1) asks for."""
    while True:
        canvas = Canvas(r, difficulty if r.random() < 0.8 else difficulty * r.random(), faces)
        make = r.choices([f for f, _ in SCENES], [weight for _, weight in SCENES])[0]
        try:
            scene = make(canvas)
        except (ValueError, IndexError):  # the words drawn don't fit this scene
            continue
        if scene.width * scene.height > MOST_PIXELS:
            continue
        image, truth = draw(canvas, scene.width, scene.height, scene.background, tokenizer)
        return Screen(image, truth, [q for q in scene.questions if q[1]], scene.kind)


def choose(
    r: random.Random, questions: list[tuple[str, str, float]], most: int
) -> list[tuple[str, str]]:
    """Up to `most` different (question, answer) pairs, drawn by weight."""
    left = list(questions)
    chosen: list[tuple[str, str]] = []
    while left and len(chosen) < most:
        i = r.choices(range(len(left)), [weight for _, _, weight in left])[0]
        question, answer, _ = left.pop(i)
        chosen.append((question, answer))
    return chosen
