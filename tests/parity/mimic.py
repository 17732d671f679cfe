"""Our engine made to round as llama.cpp's CPU code does, for comparisons with it only.

llama.cpp looks GELU up in a table: float16 in, float16 out, the identity from 10 on. In a tiny
model that rounding moves logits by more than everything else that differs.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from ds4tui.kernels import feed_forward
from ds4tui.kernels.cpu import feed_forward as host


def round_gelu(monkeypatch: pytest.MonkeyPatch) -> None:
    """In both kernels: the reference and NumPy's."""
    monkeypatch.setitem(host.ACTIVATIONS, "gelu", _rounded(host.gelu))
    exact = feed_forward.gelu

    def reference(x: mx.array) -> mx.array:
        return mx.array(_rounded(lambda y: np.asarray(exact(mx.array(y))))(np.asarray(x)))

    monkeypatch.setitem(feed_forward.ACTIVATIONS, "gelu", reference)


def _rounded(gelu: Callable[[Any], Any]) -> Callable[[np.ndarray], np.ndarray]:
    def rounded(x: np.ndarray) -> np.ndarray:
        table = gelu(x.astype(np.float16).astype(np.float32)).astype(np.float16)
        return np.where(x <= -10, 0, np.where(x >= 10, x, table)).astype(np.float32)

    return rounded
