"""Does a twin agree with the plain-MLX reference here? One small case per shape class.

A class is a set of shapes that takes its own path through a library: one row (a matrix-vector
product), a few rows, many rows; queries with and without a past, with and without a window. A
check returns what is wrong, or "". The randomised tests in tests/kernels are the thorough ones.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.kernels import attention
from ds4tui.kernels.block import AttentionWeights, Block, BlockShape, BlockWeights
from ds4tui.kernels.cpu.attention import attend as cpu_attend
from ds4tui.kernels.cpu.decoder import HostBlock
from ds4tui.kernels.cpu.linear import HostLinear
from ds4tui.kernels.cpu.stack import HostStack
from ds4tui.kernels.decoder import ImageRows
from ds4tui.kernels.feed_forward import ExpertsWeights, GatedWeights
from ds4tui.kernels.linear import DenseLinear, Linear
from ds4tui.kernels.rope import Turn
from ds4tui.kernels.stack import DenseStack, Stack

Check = Callable[[], str]
Floats = npt.NDArray[np.float32]

TOLERANCE = 1e-4  # float32 sums of some hundred terms of size 1 in another order: about 1e-6
HALF_TOLERANCE = 2e-2  # the same in float16


def host_linear() -> str:
    random = np.random.default_rng(1)
    weight, bias = draw_floats(random, 96, 160), mx.array(draw_floats(random, 96))
    twin, reference = host_linear_of(weight), DenseLinear(mx.array(weight))
    twin.add_bias(bias)
    reference.add_bias(bias)
    inputs = {count: mx.array(draw_floats(random, count, 160)) for count in (1, 3, 64)}
    return first_wrong(
        (f"{count} rows", twin(x), reference(x), TOLERANCE) for count, x in inputs.items()
    )


def host_attention() -> str:
    return _attention(cpu_attend, mx.float32, TOLERANCE)


def fused_attention() -> str:
    return _attention(attention.attend_fused, mx.float16, HALF_TOLERANCE)


def host_block() -> str:
    """Each kind of block: a chunk without a past (rows enough for several threads), a chunk with
    one, one row."""
    for kind, draw in BLOCKS.items():
        wrong = _block(np.random.default_rng(2), draw)
        if wrong:
            return f"{kind}, {wrong}"
    return ""


def _block(random: np.random.Generator, draw: "DrawBlock") -> str:
    drawn, shape = draw(random)
    reference = Block(drawn(dense_linear, dense_stack), shape, attention.attend)
    twin = HostBlock(drawn(host_linear_of, host_stack_of), shape)
    theirs, ours = DeviceRows(), HostRows()
    results = []
    for start, end in ((0, 70), (70, 75), (75, 76)):
        x = draw_floats(random, end - start, WIDTH)
        turn = Turn.at(np.arange(start, end, dtype=np.int32), 0.5 ** np.arange(8.0))
        wanted = reference(mx.array(x), theirs, turn.device(mx.float32))
        results.append((f"rows {start} to {end}", twin(x, ours, turn), wanted, TOLERANCE))
    return first_wrong(results)


def _attention(twin: Callable[..., mx.array], dtype: mx.Dtype, tolerance: float) -> str:
    random = np.random.default_rng(3)
    results = []
    cases = [(count, past, None) for count in (1, 33) for past in (0, 40)]
    for count, past, window in [*cases, (1, 40, 9), (33, 0, 9), (33, 40, 9), (33, 40, 60)]:
        q, k, v = (
            mx.array(draw_floats(random, heads, rows, 32)).astype(dtype)
            for heads, rows in ((6, count), (2, past + count), (2, past + count))
        )
        name = f"{count} queries after {past} rows" + (f", window {window}" if window else "")
        wanted = attention.attend(q, k, v, 0.2, past, window)
        results.append((name, twin(q, k, v, 0.2, past, window), wanted, tolerance))
    return first_wrong(results)


def first_wrong(
    results: Iterable[tuple[str, mx.array | Floats, mx.array, float]],
) -> str:
    for name, ours, wanted, tolerance in results:
        gap = float(np.abs(np.asarray(ours, np.float32) - np.asarray(wanted, np.float32)).max())
        if not gap <= tolerance:  # a NaN is not
            return f"{name}: differs from the reference by {gap:.2g} (at most {tolerance:g})"
    return ""


MakeLinear = Callable[[Floats], Linear]
MakeStack = Callable[[Floats], Stack]
MakeWeights = Callable[[MakeLinear, MakeStack], BlockWeights]  # the same values in any form
Drawn = tuple[MakeWeights, BlockShape]
DrawBlock = Callable[[np.random.Generator], Drawn]

WIDTH, _HEADS, _KV_HEADS, _HEAD = 64, 4, 2, 16
_SHAPE = BlockShape(_HEADS, _KV_HEADS, _HEAD, _HEAD, 1e-5, 0.25)


class DeviceRows:
    """The least that a reference block needs of a layer state."""

    def __init__(self) -> None:
        self._rows: list[mx.array] = []

    @property
    def length(self) -> int:
        return self._rows[0].shape[1] if self._rows else 0

    def append(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        new = [keys, values]
        old = self._rows
        self._rows = (
            [mx.concatenate([*p], axis=1) for p in zip(old, new, strict=True)] if old else new
        )
        return self._rows[0], self._rows[1]

    def buffers(self) -> list[mx.array]:
        return self._rows


class HostRows:
    """The same for the CPU twin."""

    def __init__(self) -> None:
        self._rows: list[Floats] = []

    @property
    def length(self) -> int:
        return self._rows[0].shape[1] if self._rows else 0

    def append(self, keys: Floats, values: Floats) -> tuple[Floats, Floats]:
        new = [keys, values]
        old = self._rows
        self._rows = [np.concatenate(p, axis=1) for p in zip(old, new, strict=True)] if old else new
        return self._rows[0], self._rows[1]


def _plain(random: np.random.Generator) -> Drawn:
    norms = [drawn_norm(random, WIDTH) for _ in range(2)]
    q, k, v, o, *ffn = (drawn_matrix(random, *size) for size in _ATTENTION + GATED_SIZES)

    def weights(linear: MakeLinear, _: MakeStack) -> BlockWeights:
        attention = AttentionWeights(linear(q), linear(k), linear(v), linear(o))
        gate, up, down = (linear(matrix) for matrix in ffn)
        return BlockWeights(norms[0], attention, norms[1], GatedWeights(gate, up, down))

    return weights, _SHAPE


def _normed(random: np.random.Generator) -> Drawn:
    """Norms of heads and of results, GELU, a window."""
    plain, shape = _plain(random)
    heads, posts = ([drawn_norm(random, size) for _ in range(2)] for size in (_HEAD, WIDTH))

    def weights(linear: MakeLinear, stack: MakeStack) -> BlockWeights:
        of = plain(linear, stack)
        assert isinstance(of.feed_forward, GatedWeights)
        return replace(
            of,
            attention=replace(of.attention, q_norm=heads[0], k_norm=heads[1]),
            feed_forward=replace(of.feed_forward, activation="gelu"),
            attn_post_norm=posts[0],
            ffn_post_norm=posts[1],
        )

    return weights, replace(shape, window=20)


def _experts(random: np.random.Generator) -> Drawn:
    plain, shape = _plain(random)
    router = drawn_matrix(random, 6, WIDTH) * np.float32(2)
    gate, up = (draw_floats(random, 6, 32, WIDTH) / np.float32(8) for _ in range(2))
    down = draw_floats(random, 6, WIDTH, 32) / np.float32(6)

    def weights(linear: MakeLinear, stack: MakeStack) -> BlockWeights:
        experts = ExpertsWeights(linear(router), stack(gate), stack(up), stack(down), used=2)
        return replace(plain(linear, stack), feed_forward=experts)

    return weights, shape


_ATTENTION = ((64, WIDTH), (32, WIDTH), (32, WIDTH), (WIDTH, 64))
GATED_SIZES = ((96, WIDTH), (96, WIDTH), (WIDTH, 96))
BLOCKS: dict[str, DrawBlock] = {
    "plain": _plain,
    "norms and a window": _normed,
    "experts": _experts,
}


def drawn_matrix(random: np.random.Generator, out: int, columns: int) -> Floats:
    matrix: Floats = draw_floats(random, out, columns) / np.float32(np.sqrt(columns))
    return matrix


def drawn_norm(random: np.random.Generator, size: int) -> mx.array:
    return mx.array(1 + 0.1 * draw_floats(random, size))


def draw_floats(random: np.random.Generator, *shape: int) -> Floats:
    return random.standard_normal(shape, np.float32)


def image_rows(random: np.random.Generator, count: int, start: int, end: int) -> ImageRows:
    """Of `count` rows, those from `start` to `end` are an image that is seen whole, to which
    something is added behind the first block."""
    added = np.zeros((count, WIDTH), np.float32)
    added[start:end] = draw_floats(random, end - start, WIDTH)
    sight = np.arange(1, count + 1, dtype=np.int32)
    sight[start:end] = end
    return ImageRows((added,), sight)


def dense_linear(weight: Floats) -> Linear:
    return DenseLinear(mx.array(weight))


def host_linear_of(weight: Floats) -> HostLinear:
    return HostLinear.read((weight.shape[0], weight.shape[1]), lambda rows: weight[rows])


def dense_stack(weights: Floats) -> Stack:
    return DenseStack(mx.array(weights))


def host_stack_of(weights: Floats) -> Stack:
    return HostStack.read(len(weights), lambda experts: weights[experts])
