"""Windows of patches: who sees whom, and in which order they lie."""

import mlx.core as mx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.engine.vision.operations import attend
from ds4tui.engine.vision.windows import Windows
from tests.scale import scaled


def test_the_order_of_windows_by_hand() -> None:
    """3 x 5 patches in windows of 2 x 2: two whole ones, then those cut off on the right, below,
    and in the corner."""
    made = Windows.of(3, 5, 2)
    assert made.order.tolist() == [0, 1, 5, 6, 2, 3, 7, 8, 4, 9, 10, 11, 12, 13, 14]
    assert made.groups == ((2, 4), (1, 2), (2, 2), (1, 1))


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 10))
@settings(max_examples=scaled(60), deadline=None)
def test_each_patch_sees_its_own_window_whole_and_no_other(
    rows: int, columns: int, side: int
) -> None:
    """As with a mask over all of them."""
    count = rows * columns
    made, random = Windows.of(rows, columns, side), np.random.default_rng(count)
    assert (made.order[made.back] == np.arange(count)).all()
    q, k, v = (random.standard_normal((2, count, 4)).astype(np.float32) for _ in range(3))
    parts = (mx.array(x[:, made.order]) for x in (q, k, v))
    ours = np.array(made.each(attend, *parts, 0.5))[:, made.back]
    down, right = np.divmod(np.arange(count), columns)
    window = down // side * count + right // side
    scores = np.where(window[:, None] == window, 0.5 * q @ k.swapaxes(1, 2), -np.inf)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    wanted = shares / shares.sum(axis=-1, keepdims=True) @ v
    np.testing.assert_allclose(ours, wanted, atol=1e-5)
