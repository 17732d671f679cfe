"""Preprocessing is that of the models' own processors; what a fingerprint tells apart."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ds4tui.engine.vision import preprocess
from ds4tui.engine.vision.layout import pieces
from ds4tui.engine.vision.pictures import opened
from ds4tui.engine.vision.preprocess import Shape, normalised, prepared, shape_of, smart_size
from ds4tui.errors import UsageError
from tests.engine.vision.pictures import (
    BOUNDS,
    CONFIGS,
    GEMMA3,
    GRIDS,
    ODD_SIZES,
    QWEN,
    SIZES,
    SMOLVLM,
    TILED,
    forms,
    picture,
)
from tests.scale import scaled

LANCZOS = Image.Resampling.LANCZOS
FILTERS = {
    "idefics3": LANCZOS,
    "tiled": LANCZOS,
    "gemma3": Image.Resampling.BILINEAR,
    "qwen": Image.Resampling.BICUBIC,
}
FORMS = forms()
PROCESSED = np.load(Path(__file__).with_name("processed.npz"))


def check(image: Image.Image, name: str, what: str) -> None:
    """Made by make_processed.py."""
    grid = tuple(PROCESSED[f"{name} {what} grid"])
    if grid == (-1, -1):
        with pytest.raises(UsageError, match="too long"):
            prepared(image, CONFIGS[name])
        return
    ours, wanted = prepared(image, CONFIGS[name]), PROCESSED[f"{name} {what}"]
    assert ours.shape.grid == grid
    assert ours.shape == shape_of(image.size, CONFIGS[name])
    assert ours.pixels.shape == wanted.shape
    assert np.abs(ours.pixels.astype(int) - wanted).max() <= 1  # Pillow releases round apart


@pytest.mark.parametrize("size", SIZES + ODD_SIZES, ids=str)
@pytest.mark.parametrize("name", CONFIGS)
def test_pixels_are_those_of_transformers(name: str, size: tuple[int, int]) -> None:
    check(picture(*size), name, f"{size[0]} {size[1]}")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["idefics3", "gemma3", "qwen"])
def test_every_form_of_a_picture_is_what_transformers_makes_of_it(name: str, form: str) -> None:
    check(opened(FORMS[form]), name, form)


def test_sizes_are_those_of_transformers() -> None:
    """Of many pictures, with the settings of published models."""
    sizes = [(int(width), int(height)) for width, height in PROCESSED["sizes"]]
    assert len(sizes) > 200
    for factor, pixels in BOUNDS.items():
        config = replace(QWEN, patch_side=factor // 2, pixels=pixels)
        made = [smart_size(size, config) for size in sizes]
        assert made == [tuple(size) for size in PROCESSED[f"smart {factor}"].tolist()]
    longest, side = SMOLVLM
    config = replace(TILED, image_side=side, longest_edge=longest)
    grids = [shape_of(size, config).grid for size in sizes]
    wanted = [tuple(grid) for grid in PROCESSED["tiles"].tolist()]
    assert grids == [(0, 0) if grid == (1, 1) else grid for grid in wanted]


@pytest.mark.parametrize("i", range(len(GRIDS)))
def test_text_around_tiles_is_that_of_transformers(i: int) -> None:
    shape = Shape((9, 9), GRIDS[i][0] * GRIDS[i][1] + 1, GRIDS[i])
    ours = "".join(p if isinstance(p, str) else "<image>" * p for p in pieces(TILED, shape))
    assert ours == PROCESSED["texts"][i]


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("resample", list(Image.Resampling))
def test_another_filter_would_be_seen(
    name: str, resample: Image.Resampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preprocess, "_resized", lambda image, size, _: image.resize(size, resample))
    wanted = PROCESSED[f"{name} 350 150"].astype(int)
    gap = np.abs(prepared(picture(350, 150), CONFIGS[name]).pixels - wanted).max()
    assert (gap > 3) == (resample is not FILTERS[name])


def test_normalised_values_are_float32_of_the_file_s_mean_and_deviation() -> None:
    values = normalised(np.array([[0, 128, 255]], np.uint8), QWEN)
    wanted = (np.array([0, 128, 255]) / 255 - QWEN.mean) / np.array(QWEN.std)
    assert values.dtype == np.float32
    np.testing.assert_allclose(values[0], wanted, atol=1e-6)


@given(st.integers(1, 3000), st.integers(1, 3000))
@settings(max_examples=scaled(200), deadline=None)
def test_a_smart_size_keeps_its_bounds(width: int, height: int) -> None:
    config = replace(QWEN, pixels=(56 * 56, 1000 * 1000))
    if max(width, height) > 200 * min(width, height):
        with pytest.raises(UsageError, match=f"{width} x {height}"):
            smart_size((width, height), config)
        return
    wide, high = smart_size((width, height), config)
    assert wide % 28 == high % 28 == 0 and min(wide, high) >= 28
    thin = min(wide, high) == 28
    assert (wide * high <= 1000 * 1000 or thin) and wide * high >= 56 * 56


def test_a_fingerprint_is_of_pixels_settings_and_weights() -> None:
    image, weights = picture(100, 70), b"weights"
    one = prepared(image, TILED).fingerprint(weights)
    assert len(one) == 16
    assert one == prepared(image.copy(), TILED).fingerprint(weights)
    assert one != prepared(image, TILED).fingerprint(b"others")
    assert one != prepared(image, GEMMA3).fingerprint(weights)
    assert one != prepared(image, replace(TILED, longest_edge=64)).fingerprint(weights)
    changed = image.copy()
    changed.putpixel((50, 30), (255, 0, 255))
    assert one != prepared(changed, TILED).fingerprint(weights)


def test_equal_pixels_in_another_grid_are_another_picture() -> None:
    made = prepared(picture(64, 64), TILED)
    other = replace(made, shape=replace(made.shape, grid=made.shape.grid[::-1]))
    wide = replace(made, shape=replace(made.shape, grid=(1, 9)))
    assert made.fingerprint(b"") == other.fingerprint(b"")  # 3 x 3 turned is 3 x 3
    assert made.fingerprint(b"") != wide.fingerprint(b"")
