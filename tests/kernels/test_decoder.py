"""A whole block and a whole step: the C++ and NumPy twins and the MLX reference against float64."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.engine.state import HostKVLayer, KVLayer
from ds4tui.kernels import attention
from ds4tui.kernels.block import AttentionWeights, Block, BlockShape, BlockWeights
from ds4tui.kernels.cpu.decoder import HostBlock, HostDecoder
from ds4tui.kernels.cpu.linear import HostLinear
from ds4tui.kernels.cpu.native.check import FloatSource
from ds4tui.kernels.cpu.native.decoder import NativeBlock, NativeDecoder
from ds4tui.kernels.cpu.native.library import Kernels, loaded
from ds4tui.kernels.cpu.native.linear import NativeLinear, NativeStack
from ds4tui.kernels.cpu.native.variants import runnable
from ds4tui.kernels.cpu.stack import HostStack
from ds4tui.kernels.decoder import Decoder, DenseDecoder, Ends
from ds4tui.kernels.feed_forward import ExpertsWeights, GatedWeights
from ds4tui.kernels.linear import DenseLinear, Linear
from ds4tui.kernels.rope import Turn
from ds4tui.kernels.stack import DenseStack, Stack
from tests.kernels import oracle
from tests.scale import scaled

WIDTH, INNER, VOCAB, EPSILON = 24, 40, 50, 1e-5
NATIVE = {variant.name: variant for variant in runnable()}
TWINS = ["reference", "host", *NATIVE]


@dataclass(frozen=True)
class Kind:
    """What a family may have. `experts`: how many, 0 for a gated feed-forward."""

    shape: BlockShape
    head_norms: bool = False
    post_norms: bool = False
    activation: Any = "silu"
    experts: int = 0
    used: int = 1
    scale: float = 1.0
    turns: list[int] = field(default_factory=lambda: [0, 0])  # of the two blocks


PLAIN = Kind(BlockShape(2, 1, 4, 4, EPSILON, 0.3))


def kernels(name: str) -> Kernels:
    return loaded(NATIVE[name])


def linear(name: str, weight: np.ndarray) -> Linear:
    if name in NATIVE:
        return NativeLinear(kernels(name), FloatSource(weight))
    if name == "host":
        return HostLinear(np.ascontiguousarray(weight.T))
    return DenseLinear(mx.array(weight))


def stack(name: str, weights: np.ndarray) -> Stack:
    if name in NATIVE:
        return NativeStack(kernels(name), FloatSource(weights))
    if name == "host":
        return HostStack.read(len(weights), lambda experts: weights[experts])
    return DenseStack(mx.array(weights))


class Model:
    """Random weights, the twin that holds them, and what they mean in float64."""

    def __init__(self, name: str, kind: Kind, seed: int) -> None:
        self.name, self.kind = name, kind
        self._random = np.random.default_rng(seed)
        self.blocks = [self._block() for _ in kind.turns]
        self.shapes = [replace(kind.shape, turn=turn) for turn in kind.turns]
        self.embedding, self.norm = self._draw(VOCAB, WIDTH), 1 + 0.1 * self._draw(WIDTH)
        pairs = np.arange(kind.shape.key_size // 2)
        self.frequencies = [0.6**pairs, 0.3 * 0.8**pairs]

    def _draw(self, *shape: int) -> np.ndarray:
        return self._random.standard_normal(shape, np.float32)

    def _block(self) -> dict[str, np.ndarray]:
        s, kind = self.kind.shape, self.kind
        many = (kind.experts,) if kind.experts else ()
        sizes = {
            "q": (s.heads * s.key_size, WIDTH),
            "k": (s.kv_heads * s.key_size, WIDTH),
            "v": (s.kv_heads * s.value_size, WIDTH),
            "output": (WIDTH, s.heads * s.value_size),
            "gate": (*many, INNER, WIDTH),
            "up": (*many, INNER, WIDTH),
            "down": (*many, WIDTH, INNER),
        }
        if many:
            sizes["router"] = (*many, WIDTH)
        norms = {"attn_norm": WIDTH, "ffn_norm": WIDTH}
        if kind.head_norms:
            norms |= {"q_norm": s.key_size, "k_norm": s.key_size}
        if kind.post_norms:
            norms |= {"attn_post_norm": WIDTH, "ffn_post_norm": WIDTH}
        drawn = {name: self._draw(*size) / size[-1] ** 0.5 for name, size in sizes.items()}
        drawn |= {name: 1 + 0.1 * self._draw(size) for name, size in norms.items()}
        return {name: values.astype(np.float32) for name, values in drawn.items()}

    def weights(self, block: dict[str, np.ndarray]) -> BlockWeights:
        makers: dict[int, Callable[[np.ndarray], Any]] = {
            1: mx.array,
            2: lambda w: linear(self.name, w),
            3: lambda w: stack(self.name, w),
        }
        made = {name: makers[values.ndim](values) for name, values in block.items()}

        def part(*names: str) -> dict[str, Any]:
            return {name: made[name] for name in names if name in made}

        attention = AttentionWeights(**part("q", "k", "v", "output", "q_norm", "k_norm"))
        matrices, kind = part("router", "gate", "up", "down"), self.kind
        feed_forward = (
            ExpertsWeights(**matrices, used=kind.used, activation=kind.activation)
            if kind.experts
            else GatedWeights(**matrices, activation=kind.activation)
        )
        norms = part("attn_norm", "ffn_norm", "attn_post_norm", "ffn_post_norm")
        return BlockWeights(attention=attention, feed_forward=feed_forward, **norms)

    def decoder(self) -> Decoder:
        weights = [self.weights(block) for block in self.blocks]
        embedding = linear(self.name, self.embedding)
        ends = Ends(embedding, mx.array(self.norm), embedding, EPSILON, self.kind.scale)
        pairs = zip(weights, self.shapes, strict=True)
        if self.name in NATIVE:
            return NativeDecoder(kernels(self.name), ends, [NativeBlock(w, s) for w, s in pairs])
        if self.name == "host":
            return HostDecoder(ends, [HostBlock(w, s) for w, s in pairs])
        return DenseDecoder(ends, [Block(w, s, attention.attend) for w, s in pairs], mx.float32)

    def layers(self) -> list:
        return [KVLayer() if self.name == "reference" else HostKVLayer() for _ in self.blocks]

    def turns(self, start: int, end: int) -> list[Turn]:
        positions = np.arange(start, end, dtype=np.int32)
        return [Turn.at(positions, frequencies) for frequencies in self.frequencies]

    def wanted(self, ids: np.ndarray) -> np.ndarray:
        """Logits [T, VOCAB] in float64."""
        x = self.embedding[ids].astype(np.float64) * self.kind.scale
        for w, shape in zip(self.blocks, self.shapes, strict=True):
            mixed = self._wanted_attention(oracle.normed(x, w["attn_norm"], EPSILON), w, shape)
            x = x + oracle.normed(mixed, w.get("attn_post_norm"), EPSILON)
            fed = self._wanted_feed_forward(oracle.normed(x, w["ffn_norm"], EPSILON), w)
            x = x + oracle.normed(fed, w.get("ffn_post_norm"), EPSILON)
        return oracle.normed(x, self.norm, EPSILON) @ self.embedding.T.astype(np.float64)

    def _wanted_attention(self, n: np.ndarray, w: dict, s: BlockShape) -> np.ndarray:
        positions, frequencies = np.arange(len(n)), self.frequencies[s.turn]
        q, k, v = (
            (n @ w[name].T).reshape(len(n), heads, -1).swapaxes(0, 1)
            for name, heads in (("q", s.heads), ("k", s.kv_heads), ("v", s.kv_heads))
        )
        q, k = (
            oracle.turned(oracle.normed(a, w.get(norm), EPSILON), positions, frequencies)
            for a, norm in ((q, "q_norm"), (k, "k_norm"))
        )
        mixed = oracle.attend(q, k, v, s.scale, 0, s.window)
        return mixed.swapaxes(0, 1).reshape(len(n), -1) @ w["output"].T

    def _wanted_feed_forward(self, m: np.ndarray, w: dict) -> np.ndarray:
        matrices, kind = (w["gate"], w["up"], w["down"]), self.kind
        if kind.experts:
            return oracle.experts(m, w["router"], *matrices, kind.used, kind.activation)
        return oracle.gated(m, *matrices, kind.activation)


shapes = st.builds(
    lambda kv, share, key, value, window: BlockShape(
        kv * share, kv, 2 * key, value, EPSILON, 0.3, window
    ),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(2, 6),  # a norm of fewer values makes much of the rounding of tiny ones
    st.integers(4, 9),
    st.one_of(st.none(), st.integers(1, 40)),
)
kinds = st.builds(
    Kind,
    shape=shapes,
    head_norms=st.booleans(),
    post_norms=st.booleans(),
    activation=st.sampled_from(["silu", "gelu"]),
    experts=st.sampled_from([0, 0, 3, 5]),
    used=st.integers(1, 3),
    scale=st.sampled_from([1.0, 5.0]),
    turns=st.lists(st.integers(0, 1), min_size=2, max_size=2),
)


@pytest.mark.parametrize("name", TWINS)
@settings(max_examples=scaled(30), deadline=None)
@given(
    kind=kinds,
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=4),
    seed=st.integers(0, 99),
)
def test_steps_of_any_sizes_give_the_logits_of_the_definition(
    name: str, kind: Kind, sizes: list[int], seed: int
) -> None:
    model = Model(name, kind, seed)
    ids = np.random.default_rng(seed).integers(0, VOCAB, sum(sizes))
    decoder, layers, parts, start = model.decoder(), model.layers(), [], 0
    for size in sizes:
        end = start + size
        parts.append(decoder(ids[start:end], layers, model.turns(start, end), "all"))
        start = end
    ours = np.concatenate([np.asarray(part) for part in parts])
    np.testing.assert_allclose(ours, model.wanted(ids), atol=5e-4, rtol=1e-4)


@pytest.mark.parametrize("name", TWINS)
@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_gates_far_from_zero_are_exact_and_silent(name: str, activation: str) -> None:
    """exp overflows for gates below -88; warnings are errors here."""
    model = Model(name, replace(PLAIN, activation=activation), 0)
    for block in model.blocks:
        block["gate"] *= 100
    ids = np.arange(20)
    with np.errstate(over="ignore"):  # in the oracle's own exp
        wanted = model.wanted(ids)
    ours = model.decoder()(ids, model.layers(), model.turns(0, 20), "all")
    np.testing.assert_allclose(np.asarray(ours), wanted, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("experts", [0, 3])
def test_a_host_block_wants_host_matrices(experts: int) -> None:
    model = Model("reference", replace(PLAIN, experts=experts), 0)
    with pytest.raises(TypeError, match="float32 in MLX"):
        HostBlock(model.weights(model.blocks[0]), model.kind.shape)


def test_rows_that_grow_beyond_float16_stay_exact() -> None:
    """What blocks add up is float32 although they work in float16: Gemma's rows need it."""
    model = Model("reference", replace(PLAIN, scale=30_000.0), 0)
    weights = [model.weights(block) for block in model.blocks]
    embedding = linear("reference", model.embedding)
    ends = Ends(embedding, mx.array(model.norm), embedding, EPSILON, 30_000.0)
    blocks = [Block(w, model.kind.shape, attention.attend, mx.float16) for w in weights]
    ids = np.arange(30)
    ours = DenseDecoder(ends, blocks, mx.float16)(ids, model.layers(), model.turns(0, 30), "all")
    assert np.abs(model.embedding[ids] * 30_000).max() > 65_504
    np.testing.assert_allclose(np.asarray(ours), model.wanted(ids), atol=0.1, rtol=0.01)
