"""What transformers' processors make of the pictures of tests/engine/vision/pictures.py.

    python -m tests.engine.vision.make_processed     needs transformers 5.24.0, as tests/golden/make

Writes processed.npz beside this file: for each settings and size the pixels, uint8
[squares, height, width, 3], and the grid.
"""

from pathlib import Path

import numpy as np
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from tests.engine.vision.pictures import CONFIGS, QWEN, SIZES, picture


def idefics3(name: str, width: int, height: int) -> tuple[np.ndarray, list[int]]:
    config = CONFIGS[name]
    processor = Idefics3ImageProcessorPil(
        size={"longest_edge": config.longest_edge},
        max_image_size={"longest_edge": config.image_side},
    )
    made = processor(picture(width, height), return_tensors="np", return_row_col_info=True)
    grid = [int(made["rows"][0][0]), int(made["cols"][0][0])]
    return made["pixel_values"][0].transpose(0, 2, 3, 1) * 0.5 + 0.5, grid


def gemma3(width: int, height: int) -> tuple[np.ndarray, list[int]]:
    side = CONFIGS["gemma3"].image_side
    processor = Gemma3ImageProcessorPil(size={"height": side, "width": side})
    made = processor(picture(width, height), return_tensors="np")
    return made["pixel_values"].transpose(0, 2, 3, 1) * 0.5 + 0.5, [0, 0]


def qwen(width: int, height: int) -> tuple[np.ndarray, list[int]]:
    least, most = QWEN.pixels
    processor = Qwen2VLImageProcessorPil(
        size={"shortest_edge": least, "longest_edge": most},
        patch_size=QWEN.patch_side,
        merge_size=QWEN.merge,
    )
    made = processor(picture(width, height), return_tensors="np")
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


def main() -> None:
    arrays = {}
    for width, height in SIZES:
        made = {name: idefics3(name, width, height) for name in ("idefics3", "tiled")}
        made |= {"gemma3": gemma3(width, height), "qwen": qwen(width, height)}
        for name, (pixels, grid) in made.items():
            arrays[f"{name} {width} {height}"] = np.rint(pixels * 255).astype(np.uint8)
            arrays[f"{name} {width} {height} grid"] = np.array(grid)
    np.savez_compressed(Path(__file__).with_name("processed.npz"), **arrays)


if __name__ == "__main__":
    main()
