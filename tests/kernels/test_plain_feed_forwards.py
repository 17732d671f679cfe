"""CPU twins refuse what they do not know of a feed-forward: they would leave it out in silence."""

from dataclasses import replace

import mlx.core as mx
import pytest

from ds4tui.kernels.cpu.feed_forward import host_feed_forward
from ds4tui.kernels.cpu.hybrid import _feed_forward as hybrid_feed_forward
from ds4tui.kernels.cpu.native.decoder import _fed
from ds4tui.kernels.feed_forward import (
    ExpertsWeights,
    FeedForwardWeights,
    GatedWeights,
    require_plain,
    routed,
)
from ds4tui.kernels.linear import DenseLinear
from ds4tui.kernels.stack import DenseStack

GATED = GatedWeights(*(DenseLinear(mx.ones((4, 4))) for _ in range(3)))
EXPERTS = ExpertsWeights(
    DenseLinear(mx.ones((2, 4))), *(DenseStack(mx.ones((2, 4, 4))) for _ in range(3)), used=1
)
UNKNOWN: dict[str, FeedForwardWeights] = {
    "limit": replace(GATED, limit=1.0),
    "limit of experts": replace(EXPERTS, limit=1.0),
    "limit of a shared one": replace(EXPERTS, shared=replace(GATED, limit=1.0)),
    "routing": replace(EXPERTS, route=lambda scores: routed(scores, 1)),
}


@pytest.mark.parametrize("twin", [host_feed_forward, hybrid_feed_forward, _fed])
@pytest.mark.parametrize("name", UNKNOWN)
def test_what_a_twin_does_not_know_is_refused(name: str, twin: object) -> None:
    assert callable(twin)
    with pytest.raises(ValueError, match="Only plain MLX knows"):
        twin(UNKNOWN[name])


def test_the_usual_ones_are_not() -> None:
    require_plain(GATED)
    require_plain(EXPERTS)
    require_plain(replace(EXPERTS, shared=GATED))
