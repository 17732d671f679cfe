"""Every twin of causal attention that this machine can run, against float64."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.kernels import attention
from ds4tui.kernels.cpu import attention as cpu
from tests.kernels import oracle
from tests.scale import scaled

TWINS = {
    "reference": attention.attend,
    "openblas": cpu.attend,
    "fused": attention.attend_fused,
}


def draw(seed: int, groups: int, share: int, count: int, past: int, size: int, width: int):
    random = np.random.default_rng(seed)
    shapes = [
        (groups * share, count, size),
        (groups, past + count, size),
        (groups, past + count, width),
    ]
    return [random.standard_normal(shape, np.float32) for shape in shapes]


shapes = st.fixed_dictionaries(
    {
        "groups": st.integers(1, 3),
        "share": st.integers(1, 4),
        "count": st.one_of(st.just(1), st.integers(1, 150)),
        "past": st.one_of(st.just(0), st.integers(1, 300)),
        "size": st.sampled_from([4, 8, 64]),
        "width": st.sampled_from([4, 6, 64]),
    }
)
windows = st.one_of(st.none(), st.integers(1, 100))


@pytest.mark.parametrize("name", TWINS)
@settings(max_examples=scaled(25), deadline=None)
@given(shape=shapes, scale=st.floats(0.05, 1.0), window=windows, seed=st.integers(0, 99))
def test_attention_is_that_of_the_definition(
    name: str, shape: dict[str, int], scale: float, window: int | None, seed: int
) -> None:
    q, k, v = draw(seed, **shape)
    out = TWINS[name](mx.array(q), mx.array(k), mx.array(v), scale, shape["past"], window)
    wanted = oracle.attend(q, k, v, scale, shape["past"], window)
    np.testing.assert_allclose(np.asarray(out), wanted, atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", TWINS)
@pytest.mark.parametrize("count", [1, 5, 150])
def test_rows_behind_the_last_query_are_not_seen(name: str, count: int) -> None:
    """Buffers may hold more rows than the queries are to see."""
    q, k, v = draw(0, 2, 2, count, 40, 8, 8)
    more = [np.concatenate([a, np.full_like(a, 1e4)], axis=1) for a in (k, v)]
    whole = TWINS[name](mx.array(q), mx.array(more[0]), mx.array(more[1]), 0.3, 40)
    np.testing.assert_allclose(np.asarray(whole), oracle.attend(q, k, v, 0.3, 40), atol=2e-5)


@pytest.mark.parametrize("name", TWINS)
@pytest.mark.parametrize("count", [1, 5, 150])
def test_rows_before_the_window_are_not_even_read(name: str, count: int) -> None:
    """A long past costs nothing: not a number there would spread through any product."""
    q, k, v = draw(0, 2, 2, count, 200, 8, 8)
    wanted = oracle.attend(q, k, v, 0.3, 200, 30)
    k[:, : 200 - 29], v[:, : 200 - 29] = np.nan, np.nan
    out = TWINS[name](mx.array(q), mx.array(k), mx.array(v), 0.3, 200, 30)
    np.testing.assert_allclose(np.asarray(out), wanted, atol=2e-5)


@pytest.mark.parametrize("name", TWINS)
def test_large_scores_do_not_overflow(name: str) -> None:
    q, k, v = draw(1, 1, 2, 20, 3, 64, 8)
    out = TWINS[name](mx.array(q * 30), mx.array(k * 30), mx.array(v), 1.0, 3)
    wanted = oracle.attend(q * 30, k * 30, v, 1.0, 3)
    np.testing.assert_allclose(np.asarray(out), wanted, atol=1e-3)


@pytest.mark.parametrize(("name", "module"), [("reference", attention), ("openblas", cpu)])
def test_scores_are_made_in_bounded_tiles(
    name: str, module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small tiles change nothing but rounding."""
    q, k, v = draw(2, 2, 3, 90, 33, 8, 8)
    monkeypatch.setattr(module, "SCORES_MAX", 2000)
    for window in (None, 20):
        out = TWINS[name](mx.array(q), mx.array(k), mx.array(v), 0.3, 33, window)
        wanted = oracle.attend(q, k, v, 0.3, 33, window)
        np.testing.assert_allclose(np.asarray(out), wanted, atol=2e-5)


def test_the_reference_never_holds_all_scores() -> None:
    """8 heads x 1,024 queries x 4,096 rows would be 128 MiB of scores, three times over."""
    arrays = [mx.array(a) for a in draw(3, 2, 4, 1024, 3072, 8, 8)]
    mx.eval(arrays)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(attention.attend(*arrays, 0.3, 3072))
    assert mx.get_peak_memory() - before < 6 * 4 * attention.SCORES_MAX


def test_inputs_are_only_read() -> None:
    arrays = draw(4, 2, 2, 30, 10, 8, 8)
    kept = [a.copy() for a in arrays]
    cpu.host_attend(*arrays, 0.3, 10)
    assert all(np.array_equal(a, b) for a, b in zip(arrays, kept, strict=True))
