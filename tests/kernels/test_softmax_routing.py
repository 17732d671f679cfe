"""Shares of the likeliest experts, against NumPy."""

import mlx.core as mx
import numpy as np
import pytest

from ds4tui.kernels.softmax_routing import SoftmaxRouting


@pytest.mark.parametrize("is_normed", [False, True])
def test_the_likeliest_share_what_they_have_of_all(is_normed: bool) -> None:
    scores = np.random.default_rng(2).standard_normal((20, 7)).astype(np.float32)
    chosen, shares = SoftmaxRouting(3, 2.5, is_normed)(mx.array(scores))
    whole = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    for row in range(len(scores)):
        wanted = np.argsort(-scores[row])[:3]
        got = dict(zip(np.asarray(chosen)[row].tolist(), np.asarray(shares)[row], strict=True))
        assert set(got) == set(wanted.tolist())
        total = whole[row, wanted].sum() if is_normed else 1.0
        for expert, share in got.items():
            assert share == pytest.approx(2.5 * whole[row, expert] / total, rel=1e-5)
