"""Prompts with several pictures, and what the classes' encoders make of each.

    python -m tests.golden.make.scenes [FAMILY ...]     writes tests/golden/scenes/NAME.npz

pictures are P0 and P1, uint8 [height, width, 3], P0_vectors float32 [V, width] what becomes of
one, and P0_added_0 .. where it is tapped. Of each scene: SCENE_ids [T], and SCENE_logits
[T, vocab], of which those of text behind the first picture are kept, else NaN; SCENE_mimic [vocab]
the last ones of the class that rounds as llama.cpp does. Of idefics3 there is a picture of 2 x 3
tiles more: `tiles` uint8 [7, 32, 32, 3], the overview last, and the scene "tiles" about it. How
pictures lie is written here once more, apart from the engine's own layout.
"""

import argparse
import os
import warnings
from typing import Any

import numpy as np

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
warnings.filterwarnings("ignore")

import torch  # noqa: E402
from PIL import Image  # noqa: E402

from tests.golden.files import FOLDER, SCENES  # noqa: E402
from tests.golden.make.families import VISION, Family  # noqa: E402
from tests.golden.make.measure import forward  # noqa: E402
from tests.golden.make.question import Question, is_image, pixels  # noqa: E402
from tests.golden.make.tokens import ID, letters  # noqa: E402

IMAGE = ID["<image>"]


def drawn(family: Family, sizes: list[tuple[int, int]]) -> list[np.ndarray]:
    random = np.random.RandomState(11)
    return [
        (random.randint(0, family.contrast, (*size, 3)) + 128 - family.contrast // 2).astype(
            np.uint8
        )
        for size in sizes
    ]


def sizes(family: Family) -> list[tuple[int, int]]:
    """Of the pictures, (height, width): of one that keeps its shape another for the second."""
    if family.name == "qwen25vl":
        return [(140, 168), (84, 196)]
    return [(24, 40), (48, 16)] if "qwen" in family.name else [(32, 32), (32, 32)]


def rows_of(family: Family, picture: np.ndarray) -> list[int]:
    """Markers, and the image token once a vector."""
    if family.name == "idefics3":
        fence = ID["<fake_token_around_image>"]
        return [fence, ID["<global-img>"], *[IMAGE] * 16, fence]
    if family.name == "gemma3v":
        return [ID["<start_of_image>"], *[IMAGE] * 16, ID["<end_of_image>"]]
    side = 28 if family.name == "qwen25vl" else 8
    vectors = picture.shape[0] // side * (picture.shape[1] // side)
    return [ID["<|vision_start|>"], *[IMAGE] * vectors, ID["<|vision_end|>"]]


def inputs_of(family: Family, pictures: list[np.ndarray]) -> dict[str, Any]:
    """The class's own, of several pictures."""
    if family.name == "idefics3":
        return dict(pixel_values=torch.stack([pixels(p) for p in pictures])[None])
    if family.name == "gemma3v":
        return dict(pixel_values=torch.stack([pixels(p) for p in pictures]))
    assert family.ask
    each = [family.ask(picture).inputs for picture in pictures]
    return dict(
        pixel_values=torch.cat([one["pixel_values"] for one in each]),
        image_grid_thw=torch.cat([one["image_grid_thw"] for one in each]),
    )


def asked(family: Family, scene: list[str | int], pictures: list[np.ndarray]) -> Question:
    ids: list[int] = []
    for part in scene:
        ids += letters(part) if isinstance(part, str) else rows_of(family, pictures[part])
    shown = [pictures[part] for part in scene if isinstance(part, int)]
    inputs = inputs_of(family, shown)
    kind = {"gemma3v": "token_type_ids"}.get(family.name, "mm_token_type_ids")
    if family.name != "idefics3":
        inputs[kind] = is_image(ids)
    return Question(ids, inputs)


def features(family: Family, model: Any, picture: np.ndarray) -> list[np.ndarray]:
    """[V, width] of the encoder, then what is added."""
    inputs = inputs_of(family, [picture])
    made = model.get_image_features(**inputs)
    parts = [made.pooler_output, *(getattr(made, "deepstack_features", None) or [])]
    joined = [torch.cat(list(p)) if isinstance(p, list | tuple) else p for p in parts]
    return [part.reshape(-1, part.shape[-1]).numpy() for part in joined]


def tiled() -> tuple[np.ndarray, np.ndarray, Question]:
    """A picture of 2 x 3 tiles, what the encoder takes of it, and a prompt about it. Of its
    markers one alone is a token of the tiny vocabulary."""
    picture = np.random.RandomState(12).randint(0, 256, (64, 96, 3)).astype(np.uint8)
    parts = [picture[y : y + 32, x : x + 32] for y in (0, 32) for x in (0, 32, 64)]
    small = Image.fromarray(picture).resize((32, 32), Image.Resampling.LANCZOS)
    squares = np.stack([*parts, np.asarray(small)])
    fence, ids = ID["<fake_token_around_image>"], letters("see ")
    for row in (1, 2):
        for column in (1, 2, 3):
            name = f"<row_{row}_col_{column}>"
            ids += [fence, *([ID[name]] if name in ID else letters(name)), *[IMAGE] * 16]
        ids += letters("\n")
    ids += [*letters("\n"), fence, ID["<global-img>"], *[IMAGE] * 16, fence, *letters(" so?")]
    values = torch.stack([pixels(square) for square in squares])[None]
    return picture, squares, Question(ids, dict(pixel_values=values))


def about(question: Question, model: Any, name: str) -> dict[str, np.ndarray]:
    ids, logits = np.array(question.ids, np.int32), forward(model, question)
    hidden = (ids >= 256) | (np.arange(len(ids)) < np.flatnonzero(ids == IMAGE)[0])
    logits[hidden] = np.nan
    return {f"{name}_ids": ids, f"{name}_logits": logits}


def write(family: Family) -> None:
    model, pictures = family.model(), drawn(family, sizes(family))
    arrays: dict[str, np.ndarray] = {}
    for i, picture in enumerate(pictures):
        arrays[f"P{i}"] = picture
        vectors, *added = features(family, model, picture)
        arrays[f"P{i}_vectors"] = vectors
        arrays |= {f"P{i}_added_{j}": part for j, part in enumerate(added)}
    questions = {name: asked(family, scene, pictures) for name, scene in SCENES.items()}
    for name, question in questions.items():
        arrays |= about(question, model, name)
    if family.name == "idefics3":
        arrays["P2"], arrays["tiles"], question = tiled()
        arrays |= about(question, model, "tiles")
    assert family.mimic
    family.mimic(model)
    for name, question in questions.items():
        arrays[f"{name}_mimic"] = forward(model, question)[-1]
    (FOLDER / "scenes").mkdir(exist_ok=True)
    np.savez_compressed(FOLDER / "scenes" / f"{family.name}.npz", **arrays)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*", metavar="FAMILY")
    names = parser.parse_args().families
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    for family in VISION:
        if not names or family.name in names:
            write(family)


if __name__ == "__main__":
    main()
