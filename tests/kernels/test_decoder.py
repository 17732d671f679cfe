"""A whole block and a whole step: the NumPy twin and the MLX reference against float64."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.engine.state import HostKVLayer, KVLayer
from ds4tui.kernels import attention
from ds4tui.kernels.block import Block, BlockShape, BlockWeights
from ds4tui.kernels.cpu.decoder import HostBlock, HostDecoder
from ds4tui.kernels.cpu.linear import HostLinear
from ds4tui.kernels.decoder import Decoder, DenseDecoder, Ends
from ds4tui.kernels.linear import DenseLinear, Linear
from ds4tui.kernels.rope import Turn
from tests.kernels import oracle
from tests.scale import scaled

WIDTH, INNER, VOCAB, EPSILON = 24, 40, 50, 1e-5
TWINS = ["reference", "host"]


def linear(name: str, weight: np.ndarray) -> Linear:
    if name == "host":
        return HostLinear(np.ascontiguousarray(weight.T))
    return DenseLinear(mx.array(weight))


class Model:
    """Random weights, the twin that holds them, and what they mean in float64."""

    def __init__(self, name: str, shape: BlockShape, seed: int, blocks: int = 2) -> None:
        self.name, self.shape = name, shape
        self._random = np.random.default_rng(seed)
        self.blocks = [self._block() for _ in range(blocks)]
        self.embedding, self.norm = self._draw(VOCAB, WIDTH), 1 + 0.1 * self._draw(WIDTH)
        self.frequencies = 0.6 ** np.arange(shape.key_size // 2)

    def _draw(self, *shape: int) -> np.ndarray:
        return self._random.standard_normal(shape, np.float32)

    def _block(self) -> dict[str, np.ndarray]:
        s = self.shape
        sizes = {
            "q": (s.heads * s.key_size, WIDTH),
            "k": (s.kv_heads * s.key_size, WIDTH),
            "v": (s.kv_heads * s.value_size, WIDTH),
            "output": (WIDTH, s.heads * s.value_size),
            "gate": (INNER, WIDTH),
            "up": (INNER, WIDTH),
            "down": (WIDTH, INNER),
        }
        matrices = {name: self._draw(*size) / size[1] ** 0.5 for name, size in sizes.items()}
        norms = {name: 1 + 0.1 * self._draw(WIDTH) for name in ("attn_norm", "ffn_norm")}
        return {k: v.astype(np.float32) for k, v in (matrices | norms).items()}

    def decoder(self) -> Decoder:
        weights = [
            BlockWeights(
                **{
                    k: linear(self.name, v) if v.ndim == 2 else mx.array(v)
                    for k, v in block.items()
                }
            )
            for block in self.blocks
        ]
        embedding = linear(self.name, self.embedding)
        ends = Ends(embedding, mx.array(self.norm), embedding, EPSILON)
        if self.name == "host":
            return HostDecoder(ends, [HostBlock(w, self.shape) for w in weights])
        blocks = [Block(w, self.shape, attention.attend) for w in weights]
        return DenseDecoder(ends, blocks, mx.float32)

    def layers(self) -> list:
        return [HostKVLayer() if self.name == "host" else KVLayer() for _ in self.blocks]

    def turn(self, start: int, end: int) -> Turn:
        return Turn.at(np.arange(start, end, dtype=np.int32), self.frequencies)

    def wanted(self, ids: np.ndarray) -> np.ndarray:
        """Logits [T, VOCAB] in float64."""
        s, x, positions = self.shape, self.embedding[ids].astype(np.float64), np.arange(len(ids))
        for w in self.blocks:
            n = normed(x, w["attn_norm"])
            q, k, v = (
                (n @ w[name].T).reshape(len(x), heads, -1).swapaxes(0, 1)
                for name, heads in (("q", s.heads), ("k", s.kv_heads), ("v", s.kv_heads))
            )
            q, k = (oracle.turned(a, positions, self.frequencies) for a in (q, k))
            mixed = oracle.attend(q, k, v, s.scale, 0)
            x = x + mixed.swapaxes(0, 1).reshape(len(x), -1) @ w["output"].T
            m = normed(x, w["ffn_norm"])
            gate = m @ w["gate"].T
            x = x + (gate / (1 + np.exp(-gate)) * (m @ w["up"].T)) @ w["down"].T
        return normed(x, self.norm) @ self.embedding.T.astype(np.float64)


def normed(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPSILON) * weight


shapes = st.builds(
    lambda kv, share, key, value: BlockShape(kv * share, kv, 2 * key, value, EPSILON, 0.3),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 6),
    st.integers(1, 9),
)


@pytest.mark.parametrize("name", TWINS)
@settings(max_examples=scaled(15), deadline=None)
@given(
    shape=shapes,
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=4),
    seed=st.integers(0, 99),
)
def test_steps_of_any_sizes_give_the_logits_of_the_definition(
    name: str, shape: BlockShape, sizes: list[int], seed: int
) -> None:
    model = Model(name, shape, seed)
    ids = np.random.default_rng(seed).integers(0, VOCAB, sum(sizes))
    decoder, layers, parts, start = model.decoder(), model.layers(), [], 0
    for size in sizes:
        end = start + size
        parts.append(decoder(ids[start:end], layers, model.turn(start, end), "all"))
        start = end
    ours = np.concatenate([np.asarray(part) for part in parts])
    np.testing.assert_allclose(ours, model.wanted(ids), atol=2e-4, rtol=1e-4)


def test_gates_far_from_zero_are_exact_and_silent() -> None:
    """exp overflows for gates below -88; warnings are errors here."""
    model = Model("host", BlockShape(2, 1, 4, 4, EPSILON, 0.3), 0)
    for block in model.blocks:
        block["gate"] *= 100
    ids = np.arange(20)
    ours = model.decoder()(ids, model.layers(), model.turn(0, 20), "all")
    np.testing.assert_allclose(np.asarray(ours), model.wanted(ids), rtol=1e-3, atol=1e-2)


def test_a_host_block_wants_host_matrices() -> None:
    model = Model("reference", BlockShape(2, 1, 4, 4, EPSILON, 0.3), 0)
    weights = BlockWeights(
        **{
            k: linear("reference", v) if v.ndim == 2 else mx.array(v)
            for k, v in model.blocks[0].items()
        }
    )
    with pytest.raises(TypeError, match="float32 in MLX"):
        HostBlock(weights, model.shape)
