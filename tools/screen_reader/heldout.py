"""Held-out sets: pictures with a question each, from seeds that training never uses.

python -m tools.screen_reader.heldout FOLDER
"""

import json
import random
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tools.screen_reader.canvas import preprocess
from tools.screen_reader.faces import HELD, SEEN, Faces
from tools.screen_reader.prompts import encode, load_tokenizer
from tools.screen_reader.screens import choose, screen

LONGEST_ANSWER = 90  # tokens; longer ones are not asked for
MOST_TOKENS = 100


@dataclass(frozen=True)
class HeldOut:
    """A seed that training never uses, and what is drawn from it."""

    seed: int
    difficulty: float
    faces: Faces
    count: int


SETS = {
    "seen_fonts": HeldOut(987654, 1.0, SEEN, 192),
    "easy": HeldOut(4242, 0.3, SEEN, 96),
    "unseen_fonts": HeldOut(777, 1.0, HELD, 96),
}


@dataclass(frozen=True)
class Example:
    image: str  # file name within the folder
    question: str
    answer: str
    scene: str


def draw_sets(folder: Path) -> None:
    """Writes the pictures at their own size, and SET.json beside them."""
    tokenizer = load_tokenizer()
    folder.mkdir(parents=True, exist_ok=True)
    for name, held in SETS.items():
        r = random.Random(held.seed)
        examples: list[dict[str, str]] = []
        while len(examples) < held.count:
            made = screen(r, held.difficulty, held.faces, None)
            question, answer = choose(r, made.questions, 1)[0]
            if len(encode(tokenizer, answer)) > LONGEST_ANSWER:
                continue
            file = f"{name}_{len(examples):03d}.png"
            made.image.save(folder / file)
            examples.append(asdict(Example(file, question, answer, made.kind)))
        (folder / f"{name}.json").write_text(json.dumps(examples, indent=1))


def read_set(folder: Path, name: str) -> tuple[list[Example], list[NDArray[np.uint8]]]:
    """The examples, and their pictures at 512 x 512."""
    examples = [Example(**e) for e in json.loads((folder / f"{name}.json").read_text())]
    pictures = [
        np.asarray(preprocess(Image.open(folder / e.image).convert("RGB"))) for e in examples
    ]
    return examples, pictures


if __name__ == "__main__":
    draw_sets(Path(sys.argv[1]))
