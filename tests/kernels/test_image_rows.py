"""Steps with rows of images, which see each other and to which something may be added."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from ds4tui.kernels.attention import attend_images
from ds4tui.kernels.block import BlockShape
from ds4tui.kernels.decoder import ImageRows
from tests.kernels.test_decoder import EPSILON, NATIVE, TWINS, WIDTH, Kind, Model

KIND = Kind(BlockShape(4, 2, 8, 8, EPSILON, 0.3))
PAST, COUNT, START, END = 10, 40, 6, 33  # the image's rows among the new ones


def images(added: float = 0.0) -> ImageRows:
    sight = np.arange(1, COUNT + 1, dtype=np.int32)
    sight[START:END] = END
    rows = np.zeros((COUNT, WIDTH), np.float32)
    rows[START:END] = added * np.random.default_rng(1).standard_normal((END - START, WIDTH))
    return ImageRows((rows,) if added else (), sight)


def logits(model: Model, given: np.ndarray, of_images: ImageRows) -> np.ndarray:
    layers, decoder = model.layers(), model.decoder()
    before = np.random.default_rng(2).standard_normal((PAST, WIDTH), np.float32)
    decoder(mx.array(before), layers, model.turns(0, PAST), "none")
    result = decoder(mx.array(given), layers, model.turns(PAST, PAST + COUNT), "all", of_images)
    return np.array(result)


def rows(seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((COUNT, WIDTH), np.float32)


@pytest.mark.parametrize("name", ["host", *NATIVE])
@pytest.mark.parametrize("window", [None, 12])
def test_twins_agree_with_the_reference(name: str, window: int | None) -> None:
    kind = replace(KIND, shape=replace(KIND.shape, window=window))
    wanted = logits(Model("reference", kind, 1), rows(), images(1.0))
    ours = logits(Model(name, kind, 1), rows(), images(1.0))
    np.testing.assert_allclose(ours, wanted, atol=5e-4, rtol=1e-4)


@pytest.mark.parametrize("name", TWINS)
def test_an_image_is_seen_whole_and_only_by_itself_and_what_follows(name: str) -> None:
    model, other = Model(name, KIND, 1), rows()
    other[END - 1] = rows(4)[0]
    moved = np.abs(logits(model, rows(), images()) - logits(model, other, images())).max(axis=1)
    assert (moved[:START] == 0).all()
    assert (moved[START:] > 1e-3).all()


@pytest.mark.parametrize("name", TWINS)
def test_what_is_added_is_added_behind_the_first_block(name: str) -> None:
    one, two = replace(KIND, turns=(0,)), replace(KIND, turns=(0, 0))
    added = images(1.0)
    alone = logits(Model(name, one, 1), rows(), added) - logits(
        Model(name, one, 1), rows(), images()
    )
    assert np.abs(alone[START:END]).max() > 0.1  # nothing mixes rows behind the last block ..
    assert np.abs(alone[:START]).max() == np.abs(alone[END:]).max() == 0
    deeper = logits(Model(name, two, 1), rows(), added) - logits(
        Model(name, two, 1), rows(), images()
    )
    assert np.abs(deeper[END:]).max() > 1e-3  # .. and the second one does
    assert np.abs(deeper[:START]).max() == 0


@pytest.mark.parametrize("window", [None, 5])
def test_attention_is_that_of_its_definition(window: int | None) -> None:
    random = np.random.default_rng(5)
    q, k, v = (random.standard_normal((h, n, 8)) for h, n in ((4, COUNT), (2, 50), (2, 50)))
    sight = images().sight
    assert sight is not None
    wanted = np.zeros_like(q)
    for head in range(4):
        for t in range(COUNT):
            low = 0 if window is None else max(0, PAST + t + 1 - window)
            at = range(low, PAST + (END if START <= t < END else t + 1))
            scores = np.exp(0.3 * k[head // 2, at] @ q[head, t])
            wanted[head, t] = scores @ v[head // 2, at] / scores.sum()
    parts = (mx.array(x.astype(np.float32)) for x in (q, k, v))
    ours = attend_images(*parts, 0.3, PAST, window, sight)
    np.testing.assert_allclose(np.array(ours), wanted, atol=1e-5)
