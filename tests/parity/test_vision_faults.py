"""Planted faults in what images become: each must turn the comparison with Hugging Face red."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.models import decoder
from ds4tui.engine.models.rotation import Rotation
from ds4tui.engine.vision import encoder as towers
from ds4tui.engine.vision import projectors
from ds4tui.engine.vision.config import VisionConfig
from ds4tui.engine.vision.layout import ImageBlock
from ds4tui.engine.vision.projectors import Vectors
from ds4tui.engine.vision.windows import Windows
from tests.golden.files import families, golden, golden_path
from tests.parity.checks import FELT, TOLERANCE
from tests.parity.images import GoldenImage, encoder, golden_image, prepared_golden, walk_images
from tests.parity.ours import load

ALL = [name for name, facts in families().items() if facts["vision"]]
QWEN = [name for name in ALL if name.startswith("qwen")]
PLACED = ["qwen3vl", "qwen3vlmoe", "qwen35v", "qwen35moev"]  # whose patches have learnt positions
TAPPED = ["qwen3vl", "qwen3vlmoe"]


def gap_with(
    name: str, change: Callable[[GoldenImage], GoldenImage] = lambda image: image
) -> float:
    image = change(golden_image(name, encoder(name)))
    ours = walk_images(load(golden_path(name)), name, image)
    return float(np.abs(ours - golden(name)["logits"]).max())


def test_nothing_is_wrong_without_a_fault() -> None:
    assert max(map(gap_with, ALL)) <= TOLERANCE


@pytest.mark.parametrize("name", ALL)
def test_another_picture(name: str) -> None:
    made = encoder(name)
    picture = prepared_golden(name, made)
    other = replace(picture, pixels=picture.pixels[:, :, ::-1].copy())
    assert gap_with(name, lambda image: replace(image, given=made(other))) > FELT


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("by", [-1, 1])
def test_rows_off_by_one(name: str, by: int) -> None:
    def shifted(image: GoldenImage) -> GoldenImage:
        given = image.given
        return replace(image, given=replace(given, rows=mx.roll(given.rows, by, axis=0)))

    assert gap_with(name, shifted) > FELT


@pytest.mark.parametrize("name", ALL)
def test_a_transposed_grid_of_patches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = towers.patches_of

    def transposed(values: np.ndarray, side: int) -> np.ndarray:
        rows, columns = (n // side for n in values.shape[:2])
        grid = right(values, side).reshape(rows, columns, -1)
        return np.ascontiguousarray(grid.swapaxes(0, 1)).reshape(rows * columns, -1)

    monkeypatch.setattr(towers, "patches_of", transposed)
    assert gap_with(name) > FELT


@pytest.mark.parametrize("name", ALL)
def test_transposed_values_of_a_patch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = towers.patches_of

    def transposed(values: np.ndarray, side: int) -> np.ndarray:
        patches = right(values, side).reshape(-1, 3, side, side)
        return np.ascontiguousarray(patches.swapaxes(2, 3)).reshape(len(patches), -1)

    monkeypatch.setattr(towers, "patches_of", transposed)
    assert gap_with(name) > FELT


@pytest.mark.parametrize("name", ["idefics3", *QWEN])
def test_patches_of_a_vector_in_another_order(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pixel shuffle by column and row."""
    right = projectors.squares_of

    def other(x: mx.array, rows: int, merge: int) -> mx.array:
        cells = right(x, rows, merge).reshape(-1, merge, merge, x.shape[1])
        return cells.swapaxes(1, 2).reshape(-1, merge * merge, x.shape[1])

    monkeypatch.setattr(projectors, "squares_of", other)
    assert gap_with(name) > FELT


@pytest.mark.parametrize("name", ALL)
def test_values_that_are_not_normalised(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(towers, "normalised", lambda pixels, _: pixels.astype(np.float32) / 255)
    assert gap_with(name) > FELT


def _block(**changes: Any) -> Callable[[GoldenImage], GoldenImage]:
    return lambda image: replace(image, of=replace(image.of, **changes))


def test_an_image_of_gemma_that_is_not_seen_whole() -> None:
    assert gap_with("gemma3v", _block(seen_whole=False)) > FELT


def test_an_image_of_idefics3_that_is() -> None:
    assert gap_with("idefics3", _block(seen_whole=True)) > FELT


@pytest.mark.parametrize("name", QWEN)
def test_positions_in_one_direction(name: str) -> None:
    def flat(image: GoldenImage) -> GoldenImage:
        rows = image.of.rows
        positions = np.tile(np.arange(rows, dtype=np.int32), (3, 1))
        return replace(image, of=replace(image.of, positions=positions, advance=rows))

    assert gap_with(name, flat) > TOLERANCE


@pytest.mark.parametrize("name", QWEN)
def test_positions_with_rows_and_columns_swapped(name: str) -> None:
    def swapped(image: GoldenImage) -> GoldenImage:
        assert image.of.positions is not None
        return replace(image, of=replace(image.of, positions=image.of.positions[[0, 2, 1]]))

    assert gap_with(name, swapped) > TOLERANCE


@pytest.mark.parametrize("name", QWEN)
def test_text_behind_an_image_at_the_place_of_its_row(name: str) -> None:
    def late(image: GoldenImage) -> GoldenImage:
        return replace(image, of=ImageBlock(**{**_fields(image.of), "advance": image.of.rows}))

    assert gap_with(name, late) > TOLERANCE


def _fields(block: ImageBlock) -> dict[str, Any]:
    names = ("token_ids", "is_vector", "advance", "positions", "seen_whole")
    return {name: getattr(block, name) for name in names}


@pytest.mark.parametrize("name", TAPPED)
@pytest.mark.parametrize("change", [lambda parts: (), lambda parts: parts[::-1]])
def test_what_is_added_behind_the_first_blocks_left_out_or_swapped(
    name: str,
    change: Callable[[tuple[mx.array, ...]], tuple[mx.array, ...]],
) -> None:
    def changed(image: GoldenImage) -> GoldenImage:
        return replace(image, given=Vectors(image.given.rows, change(image.given.added)))

    assert gap_with(name, changed) > FELT


@pytest.mark.parametrize("name", PLACED)
def test_positions_of_patches_not_resized(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(positions: mx.array, rows: int, columns: int) -> mx.array:
        side = round(positions.shape[0] ** 0.5)
        grid = mx.tile(positions.reshape(side, side, -1), (1, 2, 1))
        return grid[:rows, :columns].reshape(rows * columns, -1)

    monkeypatch.setattr(projectors, "resized_positions", cut)
    assert gap_with(name) > FELT


@pytest.mark.parametrize("name", QWEN)
def test_patches_turned_by_columns_and_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = projectors.turns

    def swapped(rows: int, columns: int, head_size: int) -> tuple[mx.array, ...]:
        parts = (mx.split(part, 2, axis=-1) for part in right(rows, columns, head_size))
        return tuple(mx.concatenate([second, first], axis=-1) for first, second in parts)

    monkeypatch.setattr(projectors, "turns", swapped)
    assert gap_with(name) > TOLERANCE


def test_vectors_of_gemma_scaled_as_embeddings_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(image: GoldenImage) -> GoldenImage:
        return replace(image, given=replace(image.given, rows=image.given.rows * 8.0))

    assert gap_with("gemma3v", scaled) > FELT


@pytest.mark.parametrize("name", TAPPED)
def test_what_is_added_for_rows_of_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row late."""
    right = decoder._image_rows

    def late(images: Any, count: int) -> Any:
        made = right(images, count)
        return replace(made, added=tuple(np.roll(part, 1, axis=0) for part in made.added))

    monkeypatch.setattr(decoder, "_image_rows", late)
    assert gap_with(name) > FELT


# -- qwen2.5vl's windows ---------------------------------------------------------------------------


WINDOWS: dict[str, Callable[[int, int, int], Windows]] = {
    "one patch wider": lambda rows, columns, side: RIGHT(rows, columns, side + 1),
    "a vector narrower": lambda rows, columns, side: RIGHT(rows, columns, side - 2),
    "all of it": lambda rows, columns, side: RIGHT(rows, columns, max(rows, columns)),
    "columns before rows": lambda rows, columns, side: replace(
        RIGHT(rows, columns, side),
        order=np.arange(rows * columns).reshape(rows, -1).T[:, ::-1].reshape(-1),
    ),
    "rows as they come": lambda rows, columns, side: replace(
        RIGHT(rows, columns, side), order=np.arange(rows * columns)
    ),
    "a row off": lambda rows, columns, side: replace(
        RIGHT(rows, columns, side), order=np.roll(RIGHT(rows, columns, side).order, 1)
    ),
}
RIGHT = Windows.of


@pytest.mark.parametrize("fault", WINDOWS)
def test_wrong_windows(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Windows, "of", staticmethod(WINDOWS[fault]))
    assert gap_with("qwen25vl") > FELT


def test_rows_that_are_not_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Windows, "back", property(lambda self: np.arange(len(self.order))))
    assert gap_with("qwen25vl") > FELT


def gap_of_config(name: str, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> float:
    """Of an encoder whose file is read wrongly."""
    right = VisionConfig.of.__func__  # type: ignore[attr-defined]

    def wrong(cls: type, gguf: GGUFFile) -> VisionConfig:
        config: VisionConfig = right(cls, gguf)
        return replace(config, **changes)

    monkeypatch.setattr(VisionConfig, "of", classmethod(wrong))
    return gap_with(name)


@pytest.mark.parametrize("every", [1, 3, 4])
def test_other_blocks_that_see_the_whole(every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gap_of_config("qwen25vl", monkeypatch, whole_every=every) > FELT


def test_the_other_gelu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gap_of_config("qwen2vl", monkeypatch, activation="gelu") > TOLERANCE


def test_the_other_gelu_of_gated_feed_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gap_of_config("qwen25vl", monkeypatch, activation="gelu") > FELT


@pytest.mark.parametrize("name", ["qwen2vl", "qwen25vl"])
def test_pairs_that_turn_in_turn(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in later families, where these have sections."""
    monkeypatch.setattr(Rotation, "in_sections", Rotation.interleaved)
    assert gap_with(name) > TOLERANCE
