"""Prompts with an image against Hugging Face's logits, for every family that sees."""

import numpy as np
import pytest

from tests.golden.files import families, golden, golden_path
from tests.parity.checks import TOLERANCE
from tests.parity.images import CUTS, encoder, golden_image, walk_images
from tests.parity.ours import load

VISION = [name for name, facts in families().items() if facts["vision"]]


def gap(name: str, cuts: str) -> float:
    """Largest difference of a logit, at any position."""
    image = golden_image(name, encoder(name))
    ours = walk_images(load(golden_path(name)), name, image, cuts)
    return float(np.abs(ours - golden(name)["logits"]).max())


@pytest.mark.parametrize("kernels", ["auto", "openblas", "reference"])
@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("name", VISION)
def test_logits_about_images_are_those_of_hugging_face(
    name: str, cuts: str, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DS4TUI_KERNELS", kernels)
    assert gap(name, cuts) <= TOLERANCE
