"""Planted faults between pictures and the session: each must turn a check of test_scenes.py red."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from ds4tui.cache.timeline import Timeline
from ds4tui.engine.vision import layout, rows
from ds4tui.engine.vision.held import HeldImages
from ds4tui.engine.vision.layout import ImageBlock
from ds4tui.engine.vision.projectors import Vectors
from tests.parity import test_scenes as scenes

VISION = scenes.VISION
QWEN = [name for name in VISION if name.startswith("qwen")]
TAPPED = ["qwen3vl", "qwen3vlmoe"]


def check(name: str, chunk: int = 32) -> None:
    """As test_scenes.py does, of the session that plays scene after scene."""
    scenes.check_scenes(scenes.rig(name), chunk, one_session=True)


def given(monkeypatch: pytest.MonkeyPatch, change: Callable[[Vectors], Vectors]) -> None:
    right = HeldImages.vectors
    monkeypatch.setattr(HeldImages, "vectors", lambda self, span: change(right(self, span)))


@pytest.fixture(autouse=True)
def own_rigs() -> None:
    scenes.rig.cache_clear()


@pytest.mark.parametrize("name", VISION)
def test_nothing_is_wrong_without_a_fault(name: str) -> None:
    check(name)


@pytest.mark.parametrize("name", VISION)
def test_vectors_of_another_picture(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one that was encoded, whatever is asked for."""
    right, first = HeldImages.vectors, []

    def stale(self: HeldImages, span: Any) -> Vectors:
        first.append(right(self, span))
        count = right(self, span).rows.shape[0]
        whole = first[0]
        return Vectors(_cut(whole.rows, count), tuple(_cut(part, count) for part in whole.added))

    monkeypatch.setattr(HeldImages, "vectors", stale)
    with pytest.raises(AssertionError, match="logits differ"):
        check(name)


def _cut(part: mx.array, count: int) -> mx.array:
    return mx.concatenate([part] * (count // part.shape[0] + 1))[:count]


@pytest.mark.parametrize("name", VISION)
def test_vectors_a_row_off(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, lambda made: replace(made, rows=mx.roll(made.rows, 1, axis=0)))
    with pytest.raises(AssertionError, match="logits differ"):
        check(name)


@pytest.mark.parametrize("name", QWEN)
def test_positions_behind_pictures_not_counted_anew(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When rows before are kept: as if they were all text."""
    monkeypatch.setattr(rows, "_moved", lambda spans, images: 0)
    with pytest.raises(AssertionError, match="logits differ"):
        check(name)


@pytest.mark.parametrize("name", QWEN)
def test_positions_behind_the_last_picture_only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = rows._moved
    monkeypatch.setattr(rows, "_moved", lambda spans, images: right(spans[-1:], images))
    with pytest.raises(AssertionError, match="logits differ"):
        check(name)


@pytest.mark.parametrize("name", QWEN)
def test_positions_in_one_direction(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_a_row(flags: Any, grid: Any) -> Any:
        return np.tile(np.arange(len(flags), dtype=np.int32), (3, 1))

    monkeypatch.setattr(layout, "in_three_directions", in_a_row)
    with pytest.raises(AssertionError, match="logits differ"):
        check(name)


@pytest.mark.parametrize("name", VISION)
def test_a_chunk_that_cuts_a_picture(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Timeline, "snapped", lambda self, position: position)
    with pytest.raises((AssertionError, ValueError)):
        check(name, chunk=8)


def test_pictures_of_gemma_not_seen_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    causal = lambda self: np.arange(1, self.rows + 1, dtype=np.int32)  # noqa: E731
    monkeypatch.setattr(ImageBlock, "sight", causal)
    with pytest.raises(AssertionError, match="logits differ"):
        check("gemma3v")


@pytest.mark.parametrize("name", TAPPED)
def test_what_is_added_behind_blocks_dropped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, lambda made: Vectors(made.rows))
    with pytest.raises(AssertionError, match="logits differ"):
        check(name)
    with pytest.raises(AssertionError):
        made = scenes.rig(name)
        made.encoder = lambda picture, right=made.encoder: Vectors(right(picture).rows)
        scenes.check_vectors(made)


@pytest.mark.parametrize("name", VISION)
def test_pictures_that_are_not_told_apart(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have one fingerprint."""
    made = scenes.rig(name)
    monkeypatch.setattr(scenes, "rig", lambda _: made)
    made.pictures[1] = replace(made.pictures[1], fingerprint=made.pictures[0].fingerprint)
    with pytest.raises((AssertionError, ValueError)):
        check(name)


@pytest.mark.parametrize(
    "order", [[0, 3, 1, 4, 2, 5, 6], [6, 0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5, 5]], ids=str
)
def test_tiles_in_another_order(order: list[int]) -> None:
    """Columns before rows, the overview first, none."""
    with pytest.raises(AssertionError, match="logits differ"):
        scenes.check_tiles(512, order)


@pytest.mark.parametrize("name", VISION)
def test_markers_left_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = layout.pieces
    texts = lambda *of: tuple(p for p in right(*of) if isinstance(p, int))  # noqa: E731
    monkeypatch.setattr(layout, "pieces", texts)
    with pytest.raises(AssertionError):
        scenes.check_layout(scenes.rig(name))
