"""Unpacking on several threads is unpacking."""

import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from ds4tui.engine.repack import NATIVE_FORMS, repacked
from tests.engine.quantised_samples import finite_blocks

TILE = 1024  # elements: some tiles a tensor, the last one short


@pytest.mark.parametrize("kind", NATIVE_FORMS, ids=lambda kind: kind.name)
def test_threads_share_the_tiles(kind: GGMLQuantizationType) -> None:
    raw = finite_blocks(np.random.default_rng(1), (9, 3 * 256), kind)
    one, many = (repacked(raw, kind, TILE, threads) for threads in (1, 3))
    assert one is not None and many is not None
    for part in ("values", "scales", "biases"):
        np.testing.assert_array_equal(getattr(one, part), getattr(many, part))


@pytest.mark.parametrize("block", [0, 13, 26])
def test_a_block_that_has_no_form_is_found_by_whichever_thread(block: int) -> None:
    kind = GGMLQuantizationType.Q4_K
    raw = finite_blocks(np.random.default_rng(1), (9, 3 * 256), kind)
    blocks = raw.reshape(-1, GGML_QUANT_SIZES[kind][1])
    blocks[block, :2] = np.array([np.inf], "<f2").view(np.uint8)
    assert repacked(raw, kind, TILE) is None and repacked(raw, kind, TILE, 3) is None


@pytest.mark.parametrize("kind", NATIVE_FORMS, ids=lambda kind: kind.name)
def test_scales_are_shortened_where_nothing_is_lost(kind: GGMLQuantizationType) -> None:
    raw = finite_blocks(np.random.default_rng(1), (9, 3 * 256), kind)
    groups = repacked(raw, kind, TILE)
    assert groups is not None
    short = groups.shortened()
    for held, wanted in ((short.scales, groups.scales), (short.biases, groups.biases)):
        np.testing.assert_array_equal(held, wanted)
    has_scales = groups.biases is not None
    assert (short.scales.dtype == np.float16) == (
        has_scales and is_short(groups.scales, groups.biases)
    )


def is_short(*parts: np.ndarray | None) -> bool:
    with np.errstate(over="ignore"):
        return all(
            (p.astype(np.float16).astype(np.float32) == p).all() for p in parts if p is not None
        )
