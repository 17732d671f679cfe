"""What transformers says: logits, and how much they feel of every token and pixel."""

from typing import Any

import numpy as np
import torch

from tests.golden.make.families import Family
from tests.golden.make.question import AFTER, BEFORE, Question, picture

PATCH = 4  # pixels


def forward(model: Any, question: Question) -> np.ndarray:
    """float32 logits [T, vocab] of one whole prompt."""
    ids = torch.tensor([question.ids])
    return model(input_ids=ids, use_cache=False, **question.inputs).logits[0].numpy()


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    return torch.log_softmax(torch.from_numpy(logits).double(), -1).numpy()


def change(row: np.ndarray, base: np.ndarray) -> float:
    """The largest change of a log-probability."""
    return float(np.abs(log_probabilities(row) - log_probabilities(base)).max())


def replaced(ids: list[int], position: int) -> list[int]:
    """`ids` with another byte at `position`."""
    return [*ids[:position], (ids[position] + 101) % 256, *ids[position + 1 :]]


def text_sensitivity(model: Any, ids: list[int], last: np.ndarray) -> float:
    """The smallest, over prompt positions, of the change that one other token makes in the
    last row."""
    others = torch.tensor([replaced(ids, position) for position in range(len(ids))])
    rows = [model(input_ids=part, use_cache=False).logits[:, -1] for part in others.split(16)]
    return min(change(row, last) for row in torch.cat(rows).numpy())


def vision_sensitivity(family: Family, model: Any, image: np.ndarray, last: np.ndarray) -> float:
    """As for text, and the same for every patch of the image, inverted (of a pale image: moved
    by half of all values, since it hardly changes when it is inverted)."""
    assert family.ask
    mask = 255 if family.contrast == 256 else 128
    question = family.ask(image)
    others = [
        Question(replaced(question.ids, position), question.inputs)
        for position, token in enumerate(question.ids)
        if token < 256
    ]
    for y in range(0, image.shape[0], PATCH):
        for x in range(0, image.shape[1], PATCH):
            other = image.copy()
            other[y : y + PATCH, x : x + PATCH] ^= mask
            others.append(family.ask(other))
    return min(change(forward(model, other)[-1], last) for other in others)


def measure(family: Family, model: Any) -> tuple[dict[str, np.ndarray], float]:
    """The arrays of the family's .npz and its sensitivity, of the untouched model.

    Leaves `model` mimicking llama.cpp, if the family has a mimic: build another for more.
    """
    if family.ask:
        image = picture(*family.image_size, family.contrast)
        question = family.ask(image)
        logits = forward(model, question)
        felt = vision_sensitivity(family, model, image, logits[-1])
        arrays: dict[str, Any] = {"image": image, "before": BEFORE, "after": AFTER}
        arrays |= {name: value.numpy() for name, value in question.inputs.items()}
    else:
        question, arrays = Question(family.prompt()), {}
        logits = forward(model, question)
        felt = text_sensitivity(model, question.ids, logits[-1])
    arrays |= {"ids": np.array(question.ids, np.int32), "logits": logits}
    if family.mimic:
        family.mimic(model)
        arrays["mimic_logits"] = forward(model, question)
    return arrays, felt
