"""What is asked about an image: token ids and the other inputs of the transformers model."""

from dataclasses import dataclass, field

import numpy as np
import torch

from tests.golden.make.tokens import ID, letters

BEFORE, AFTER = "look at me now:", " and say what you saw, in a few words"


@dataclass(frozen=True)
class Question:
    """`ids` [T] hold the image token once for every row of the image."""

    ids: list[int]
    inputs: dict[str, torch.Tensor] = field(default_factory=dict)


def picture(height: int, width: int, contrast: int = 256) -> np.ndarray:
    """A random image: uint8 [height, width, 3], `contrast` values around the middle."""
    size = (height, width, 3)
    values = np.random.RandomState(5).randint(0, contrast, size) + (128 - contrast // 2)
    return values.astype(np.uint8)


def pixels(image: np.ndarray) -> torch.Tensor:
    """uint8 [height, width, 3] to float32 [3, height, width] in -1..1."""
    return torch.from_numpy(image).permute(2, 0, 1).float() / 255 * 2 - 1


def is_image(ids: list[int]) -> torch.Tensor:
    return torch.tensor([[int(token == ID["<image>"]) for token in ids]])


def ask_idefics3(image: np.ndarray) -> Question:
    """llama.cpp's order: each tile, then the overview after a blank line."""
    spot, fence = [ID["<image>"]] * 16, ID["<fake_token_around_image>"]
    ids = [*letters(BEFORE), fence, ID["<row_1_col_1>"], *spot]
    ids += [ID["\n\n"], fence, ID["<global-img>"], *spot, fence, *letters(AFTER)]
    tile = pixels(image)
    return Question(ids, dict(pixel_values=torch.stack([tile, tile])[None]))


def ask_gemma3(image: np.ndarray) -> Question:
    ids = [*letters(BEFORE), ID["<start_of_image>"], *[ID["<image>"]] * 16]
    ids += [ID["<end_of_image>"], *letters(AFTER)]
    return Question(ids, dict(pixel_values=pixels(image)[None], token_type_ids=is_image(ids)))


def ask_qwen(image: np.ndarray, size: int = 4) -> Question:
    """Patches of `size` pixels come in 2 x 2 blocks; a still image fills both frames."""
    merge = 2
    whole = pixels(image)
    rows, columns = whole.shape[1] // size, whole.shape[2] // size
    blocks = whole.reshape(3, rows // merge, merge, size, columns // merge, merge, size)
    patches = blocks.permute(1, 4, 2, 5, 0, 3, 6).reshape(rows * columns, 3, 1, size, size)
    patches = patches.repeat(1, 1, 2, 1, 1).reshape(rows * columns, -1)
    ids = [*letters(BEFORE), ID["<|vision_start|>"]]
    ids += [ID["<image>"]] * (rows * columns // merge**2)
    ids += [ID["<|vision_end|>"], *letters(AFTER)]
    grid = torch.tensor([[1, rows, columns]])
    inputs = dict(pixel_values=patches, image_grid_thw=grid, mm_token_type_ids=is_image(ids))
    return Question(ids, inputs)
