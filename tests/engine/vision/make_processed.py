"""What transformers' processors make of the pictures of tests/engine/vision/pictures.py.

    python -m tests.engine.vision.make_processed     needs transformers 5.24.0, as
                                                     tests/golden/make, Pillow and xxhash

Writes processed.npz beside this file: for each settings and size the pixels, uint8
[squares, height, width, 3], and the grid, (-1, -1) where the processor refuses; the same of one
picture in the forms of `forms()`; sizes [N, 2] (width, height) with what they become: by Qwen's
`smart_resize` in multiples of 28 and of 32 within their models' bounds, and rows and columns of
idefics3's tiles with the settings of SmolVLM; and the text that stands for tiles.

These are the processors that resize with Pillow. Those with torchvision were compared once
(0.28): sizes and grids are the same, pixels differ by 14 of 255 at most and by 0.5 on average,
most in idefics3, for which torchvision has no LANCZOS.
"""

import io
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from PIL import Image
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import (
    Idefics3ImageProcessorPil,
    get_resize_output_image_size,
)
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
    Qwen2VLImageProcessorPil,
    smart_resize,
)

from tests.engine.vision.pictures import (
    BOUNDS,
    CONFIGS,
    GRIDS,
    ODD_SIZES,
    QWEN,
    SIZES,
    SMOLVLM,
    forms,
    picture,
)

FORMS = forms()


def idefics3(name: str, image: Image.Image) -> tuple[np.ndarray, list[int]]:
    config = CONFIGS[name]
    processor = Idefics3ImageProcessorPil(
        size={"longest_edge": config.longest_edge},
        max_image_size={"longest_edge": config.image_side},
    )
    made = processor(image, return_tensors="np", return_row_col_info=True)
    grid = [int(made["rows"][0][0]), int(made["cols"][0][0])]
    return made["pixel_values"][0].transpose(0, 2, 3, 1) * 0.5 + 0.5, grid


def gemma3(image: Image.Image) -> tuple[np.ndarray, list[int]]:
    side = CONFIGS["gemma3"].image_side
    processor = Gemma3ImageProcessorPil(size={"height": side, "width": side})
    made = processor(image, return_tensors="np")
    return made["pixel_values"].transpose(0, 2, 3, 1) * 0.5 + 0.5, [0, 0]


def qwen(image: Image.Image) -> tuple[np.ndarray, list[int]]:
    """Refuses pictures more than 200 times as long as wide."""
    if max(image.size) > 200 * min(image.size):
        try:
            smart_resize(image.height, image.width)
        except ValueError:
            return np.zeros((0, 0, 0, 3)), [-1, -1]
    least, most = QWEN.pixels
    processor = Qwen2VLImageProcessorPil(
        size={"shortest_edge": least, "longest_edge": most},
        patch_size=QWEN.patch_side,
        merge_size=QWEN.merge,
    )
    made = processor(image, return_tensors="np")
    _, rows, columns = made["image_grid_thw"][0].tolist()
    side, merge = QWEN.patch_side, QWEN.merge
    # patches lie in blocks of merge x merge; each is colour, frame, y, x
    blocks = made["pixel_values"].reshape(
        rows // merge, columns // merge, merge, merge, 3, 2, side, side
    )
    assert np.array_equal(blocks[:, :, :, :, :, 0], blocks[:, :, :, :, :, 1])
    whole = blocks[:, :, :, :, :, 0].transpose(0, 2, 5, 1, 3, 6, 4)
    pixels = whole.reshape(1, rows * side, columns * side, 3)
    return pixels * np.array(QWEN.std) + np.array(QWEN.mean), [rows // merge, columns // merge]


def every(image: Image.Image) -> dict[str, tuple[np.ndarray, list[int]]]:
    made = {name: idefics3(name, image) for name in ("idefics3", "tiled")}
    return made | {"gemma3": gemma3(image), "qwen": qwen(image)}


def tiles(width: int, height: int) -> tuple[int, int]:
    """Rows and columns that SmolVLM's picture of so many pixels is cut into."""
    longest, side = SMOLVLM
    processor, seen = Idefics3ImageProcessorPil(), []
    processor.resize = lambda image, size, **_: seen.append((size.height, size.width))
    shape = np.broadcast_to(np.uint8(0), (3, height, width))
    shape = np.broadcast_to(np.uint8(0), (3, *get_resize_output_image_size(shape, longest)))
    processor.resize_for_vision_encoder(shape, side, resample=None)
    [(high, wide)] = seen
    return high // side, wide // side


def sizes() -> dict[str, np.ndarray]:
    random = np.random.RandomState(3)
    some = np.exp(random.uniform(0, np.log(9000), (400, 2))).astype(int) + 1
    some = some[some.max(axis=1) <= 200 * some.min(axis=1)]
    arrays = {"sizes": some, "tiles": np.array([tiles(w, h) for w, h in some.tolist()])}
    for factor, (least, most) in BOUNDS.items():
        made = [smart_resize(h, w, factor, least, most)[::-1] for w, h in some.tolist()]
        arrays[f"smart {factor}"] = np.array(made)
    return arrays


def texts() -> dict[str, np.ndarray]:
    """A processor wants a tokenizer; of it only the words are needed."""
    words = SimpleNamespace(
        fake_image_token="<fake_token_around_image>",
        global_image_tag="<global-img>",
        image_token="<image>",
        image_seq_len=16,
    )
    grids = [{"rows": [[rows]], "cols": [[columns]]} for rows, columns in GRIDS]
    made = [Idefics3Processor.replace_image_token(words, grid, 0) for grid in grids]
    return {"texts": np.array(made)}


def main() -> None:
    arrays = {**sizes(), **texts()}
    shown = {f"{w} {h}": picture(w, h) for w, h in SIZES + ODD_SIZES}
    shown |= {name: Image.open(io.BytesIO(data)) for name, data in FORMS.items()}
    for what, image in shown.items():
        for name, (pixels, grid) in every(image).items():
            if name == "tiled" and what in FORMS:  # its tiles tell nothing more of these
                continue
            arrays[f"{name} {what}"] = np.rint(pixels * 255).astype(np.uint8)
            arrays[f"{name} {what} grid"] = np.array(grid)
    np.savez_compressed(Path(__file__).with_name("processed.npz"), **arrays)


if __name__ == "__main__":
    main()
