"""The gated delta rule and the mixing around it: every twin against float64, however it is cut."""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.kernels import delta_chunks as rule_in_chunks
from ds4tui.kernels import hybrid_checks
from ds4tui.kernels.cpu import delta as host
from ds4tui.kernels.cpu.delta import HostDelta
from ds4tui.kernels.cpu.linear import HostLinear
from ds4tui.kernels.cpu.native import check as native_check
from ds4tui.kernels.cpu.native.check import FloatSource
from ds4tui.kernels.cpu.native.delta import NativeRule
from ds4tui.kernels.cpu.native.library import loaded
from ds4tui.kernels.cpu.native.linear import NativeLinear
from ds4tui.kernels.cpu.native.variants import runnable
from ds4tui.kernels.delta import (
    DeltaBlock,
    DeltaBlockWeights,
    DeltaShape,
    DeltaWeights,
    delta_fused,
    delta_steps,
)
from ds4tui.kernels.delta_chunks import delta_chunks
from ds4tui.kernels.feed_forward import GatedWeights
from ds4tui.kernels.linear import DenseLinear, Linear
from ds4tui.kernels.rope import Turn
from tests.kernels import oracle
from tests.scale import scaled

NATIVE = {variant.name: variant for variant in runnable()}
RULES = ["reference", "fused", "device chunks", "steps", "chunks", "numpy", *NATIVE]
Rule = Callable[..., np.ndarray]


def key_head(shape: DeltaShape) -> np.ndarray:
    """Of each value head, from the definition."""
    heads, share = np.arange(shape.value_heads), shape.value_heads // shape.key_heads
    return heads % shape.key_heads if shape.tiled else heads // share


def rule(name: str, shape: DeltaShape) -> Rule:
    """q, k [T, Hk, D], v, g, rates and a state that it changes to o."""
    if name in NATIVE:
        return NativeRule(loaded(NATIVE[name]), shape)
    if name == "numpy":
        return host.numpy_rule(shape)
    of = key_head(shape)

    def by_head(q, k, v, g, rates, state):  # type: ignore[no-untyped-def]
        arrays = (q[:, of], k[:, of], v, g, rates)
        if name in ("steps", "chunks"):
            return getattr(host, name)(host.Rows(*(a.swapaxes(0, 1) for a in arrays)), state)
        twin = {"reference": delta_steps, "fused": delta_fused, "device chunks": delta_chunks}[name]
        out, new = twin(*(mx.array(a) for a in (*arrays, state)))
        state[...] = np.array(new)
        return np.array(out)

    return by_head


@dataclass(frozen=True)
class Drawn:
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    g: np.ndarray
    rates: np.ndarray
    state: np.ndarray

    def run(self, rule: Rule, cuts: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """Outputs and last state, in passes that end at `cuts` and at the end."""
        state, outs = self.state.copy(), []
        for start, end in zip([0, *cuts], [*cuts, len(self.q)], strict=True):
            rows = (a[start:end] for a in (self.q, self.k, self.v, self.g, self.rates))
            outs.append(rule(*rows, state))
        return np.concatenate(outs), state


def draw(random: np.random.Generator, shape: DeltaShape, count: int, decay: float = 0.1) -> Drawn:
    def rows(heads: int, size: int) -> np.ndarray:
        return random.standard_normal((count, heads, size)).astype(np.float32)

    q, k = rows(shape.key_heads, shape.key_size), rows(shape.key_heads, shape.key_size)
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    g = -np.abs(decay * rows(shape.value_heads, 1)[..., 0])
    rates = random.random((count, shape.value_heads)).astype(np.float32)
    state = random.standard_normal(shape.matrices_shape).astype(np.float32)
    return Drawn(q, k, rows(shape.value_heads, shape.value_size), g, rates, state)


def expected(drawn: Drawn, shape: DeltaShape) -> tuple[np.ndarray, np.ndarray]:
    of = key_head(shape)
    return oracle.delta_rule(
        drawn.q[:, of], drawn.k[:, of], drawn.v, drawn.g, drawn.rates, drawn.state
    )


shapes = st.builds(
    lambda heads, share, key, value, tiled: DeltaShape(
        heads, heads * share, key, value, 4, 1e-6, tiled
    ),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 40),
    st.integers(1, 40),
    st.booleans(),
)


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=scaled(20), deadline=None)
@given(shape=shapes, count=st.integers(1, 150), seed=st.integers(0, 99), cut=st.floats(0, 1))
def test_a_rule_is_the_published_one_however_it_is_cut(
    name: str, shape: DeltaShape, count: int, seed: int, cut: float
) -> None:
    drawn = draw(np.random.default_rng(seed), shape, count)
    out, state = expected(drawn, shape)
    at = int(cut * count)
    for cuts in ([], [at] if 0 < at < count else []):
        got, last = drawn.run(rule(name, shape), cuts)
        np.testing.assert_allclose(got, out, atol=3e-5)
        np.testing.assert_allclose(last, state, atol=3e-5)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("decay", [0.0, 3.0, 200.0])
def test_nothing_overflows_where_all_is_kept_or_all_is_forgotten(name: str, decay: float) -> None:
    shape = DeltaShape(1, 2, 16, 16, 4, 1e-6, tiled=False)
    drawn = draw(np.random.default_rng(0), shape, 130, decay)
    drawn.k[:] = drawn.k[0]  # the worst that a triangular system gets
    drawn.rates[:] = 1
    out, state = expected(drawn, shape)
    got, last = drawn.run(rule(name, shape), [])
    np.testing.assert_allclose(got, out, atol=1e-4)
    np.testing.assert_allclose(last, state, atol=1e-4)


@pytest.mark.parametrize("name", NATIVE)
def test_the_compiled_rule_gives_the_same_bits_however_it_is_cut(name: str) -> None:
    shape = DeltaShape(2, 6, 24, 40, 4, 1e-6, tiled=True)
    drawn = draw(np.random.default_rng(1), shape, 90)
    whole = drawn.run(rule(name, shape), [])
    for cuts in ([1], [17, 64], list(range(1, 90))):
        for one, other in zip(whole, drawn.run(rule(name, shape), cuts), strict=True):
            np.testing.assert_array_equal(one, other)


def test_the_compiled_rule_refuses_matrices_of_another_shape() -> None:
    shape = DeltaShape(1, 2, 16, 16, 4, 1e-6, tiled=False)
    drawn = draw(np.random.default_rng(2), shape, 3)
    for name in NATIVE:
        with pytest.raises(ValueError, match="not those of this block"):
            rule(name, shape)(drawn.q, drawn.k, drawn.v, drawn.g, drawn.rates, drawn.state[:1])


# -- the mixing --------------------------------------------------------------------------------

WIDTH = 20


@dataclass(frozen=True)
class Matrices:
    inputs: np.ndarray
    rates: np.ndarray
    output: np.ndarray
    convolution: np.ndarray
    decay: np.ndarray
    decay_bias: np.ndarray
    norm: np.ndarray

    @classmethod
    def drawn(cls, random: np.random.Generator, shape: DeltaShape) -> "Matrices":
        def values(*sizes: int) -> np.ndarray:
            return random.standard_normal(sizes).astype(np.float32)

        root = np.float32(WIDTH**0.5)
        return cls(
            inputs=values(shape.channels + shape.values, WIDTH) / root,
            rates=values(2 * shape.value_heads, WIDTH) / root,
            output=values(WIDTH, shape.values) / np.float32(shape.values**0.5),
            convolution=values(shape.channels, shape.kernel),
            decay=-np.exp(values(shape.value_heads)),
            decay_bias=values(shape.value_heads) - 2,
            norm=1 + values(shape.value_size) / 10,
        )

    def mixed(self, n: np.ndarray, shape: DeltaShape) -> np.ndarray:
        """Rows from nothing, in float64."""
        rows, rates = (oracle.linear(n, w, None) for w in (self.inputs, self.rates))
        conv = oracle.silu(oracle.convolved(rows[:, : shape.channels], self.convolution))
        q, k, v = np.split(conv, [shape.keys, 2 * shape.keys], axis=1)
        q, k = (x.reshape(len(n), shape.key_heads, -1)[:, key_head(shape)] for x in (q, k))
        q, k = (x / np.sqrt((x**2).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
        b, a = np.split(rates, 2, axis=1)
        g = self.decay * np.log1p(np.exp(a + self.decay_bias))
        v = v.reshape(len(n), shape.value_heads, -1)
        zeros = np.zeros(shape.matrices_shape)
        out, _ = oracle.delta_rule(q / shape.key_size**0.5, k, v, g, 1 / (1 + np.exp(-b)), zeros)
        out = oracle.normed(out, self.norm, shape.norm_epsilon).reshape(len(n), -1)
        return oracle.linear(out * oracle.silu(rows[:, shape.channels :]), self.output, None)

    def weights(self, linear: Callable[[np.ndarray], Linear], parts: bool) -> DeltaWeights:
        """`parts`: in the two matrices that newer files have."""
        cut = len(self.convolution)
        inputs = (self.inputs[:cut], self.inputs[cut:]) if parts else (self.inputs,)
        rates = np.split(self.rates, 2) if parts else [self.rates]
        return DeltaWeights(
            inputs=tuple(linear(part) for part in inputs),
            rates=tuple(linear(part) for part in rates),
            convolution=mx.array(self.convolution),
            decay=mx.array(self.decay),
            decay_bias=mx.array(self.decay_bias),
            norm=mx.array(self.norm),
            output=linear(self.output),
        )


def linear(name: str, weight: np.ndarray) -> Linear:
    if name in NATIVE:
        return NativeLinear(loaded(NATIVE[name]), FloatSource(weight))
    if name == "numpy":
        return HostLinear.read((weight.shape[0], weight.shape[1]), lambda rows: weight[rows])
    return DenseLinear(mx.array(weight))


class Mixing:
    """The mixing of one twin over a state of its own; the reference's through a whole block
    whose feed-forward is nothing."""

    def __init__(self, name: str, matrices: Matrices, shape: DeltaShape, parts: bool) -> None:
        weights = matrices.weights(lambda w: linear(name, w), parts)
        self._twin: HostDelta | None = None
        if name != "reference":
            self._state = hybrid_checks.HostRecurrent(shape)
            self._twin = HostDelta(weights, shape, rule(name, shape))
            return
        nothing = GatedWeights(*(DenseLinear(mx.zeros((WIDTH, WIDTH))) for _ in range(3)))
        ones = mx.ones(WIDTH)
        block = DeltaBlockWeights(ones, weights, ones, nothing)
        self._device_state = hybrid_checks.DeviceRecurrent(shape)
        self._block = DeltaBlock(block, shape, delta_steps)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        if self._twin is not None:
            return self._twin(
                oracle.normed(x, np.ones(WIDTH), 1e-6).astype(np.float32), self._state
            )
        turn = Turn.at(np.zeros(len(x), np.int32), np.ones(1))
        y = self._block(mx.array(x), self._device_state, turn.device(mx.float32))
        return np.array(y) - x


@pytest.mark.parametrize("name", ["reference", "numpy", *NATIVE])
@pytest.mark.parametrize("parts", [False, True])
@settings(max_examples=scaled(10), deadline=None)
@given(
    shape=shapes,
    kernel=st.integers(1, 5),
    count=st.integers(1, 80),
    cut=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_mixing_is_its_definition_however_it_is_cut(
    name: str, parts: bool, shape: DeltaShape, kernel: int, count: int, cut: float, seed: int
) -> None:
    """A chunk may be shorter than the convolution looks back."""
    heads = (shape.key_heads, shape.value_heads, shape.key_size, shape.value_size)
    shape = DeltaShape(*heads, kernel, 1e-6, shape.tiled)
    random = np.random.default_rng(seed)
    matrices = Matrices.drawn(random, shape)
    x = random.standard_normal((count, WIDTH)).astype(np.float32)
    mixing, at = Mixing(name, matrices, shape, parts), int(cut * count)
    got = [mixing(x[part]) for part in (slice(0, at), slice(at, count)) if len(x[part])]
    want = matrices.mixed(oracle.normed(x.astype(np.float64), np.ones(WIDTH), 1e-6), shape)
    np.testing.assert_allclose(np.concatenate(got), want, atol=2e-4)


# -- the self-checks see what is wrong ---------------------------------------------------------


def test_the_twins_agree_here() -> None:
    assert hybrid_checks.host_hybrid_blocks() == ""
    assert hybrid_checks.rule_wrong(delta_fused) == ""
    assert hybrid_checks.chunked_rule() == ""
    for variant in NATIVE.values():
        assert native_check.rule_wrong_with(loaded(variant)) == ""


def test_a_rule_without_decay_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def keeping(rows: host.Rows, state: np.ndarray) -> np.ndarray:
        return right(rows._replace(g=0 * rows.g), state)

    for form in ("steps", "chunks"):
        with monkeypatch.context() as patch:
            right = getattr(host, form)
            patch.setattr(host, form, keeping)
            assert "delta, rows" in hybrid_checks.host_hybrid_blocks()


def test_the_rule_in_chunks_keeps_all_bits_where_factors_are_cut_to_ten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As MLX multiplies float32 on CUDA."""

    def cut(x: mx.array) -> mx.array:
        bits = x.view(mx.uint32) + mx.array(0x1000, mx.uint32)
        return (bits & mx.array(0xFFFFE000, mx.uint32)).view(mx.float32)

    monkeypatch.setattr(rule_in_chunks, "multiplied", lambda a, b: cut(a) @ cut(b))
    shape = DeltaShape(2, 4, 32, 24, 4, 1e-6, tiled=False)
    drawn = draw(np.random.default_rng(3), shape, 200)
    out, state = expected(drawn, shape)
    got, last = drawn.run(rule("device chunks", shape), [])
    np.testing.assert_allclose(got, out, atol=3e-5)
    np.testing.assert_allclose(last, state, atol=3e-5)
    assert hybrid_checks.chunked_rule() == ""
    monkeypatch.setattr(rule_in_chunks, "product", rule_in_chunks.multiplied)
    assert "differs from the reference" in hybrid_checks.chunked_rule()


def test_a_fused_rule_that_takes_the_state_transposed_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = mx.fast.gated_delta_update

    def transposed(*arrays: mx.array) -> list[mx.array]:
        return right(*arrays[:-1], arrays[-1].swapaxes(-1, -2))

    monkeypatch.setattr(mx.fast, "gated_delta_update", transposed)
    assert "differs from the reference" in hybrid_checks.rule_wrong(delta_fused)
