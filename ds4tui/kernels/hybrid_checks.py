"""Do the twins of hybrids agree with the plain-MLX reference here? (kernels/checks.py)

Blocks of both kinds and both orders of heads, with a shared expert and without: a chunk without a
past, one with a past, one row.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.kernels import attention, checks
from ds4tui.kernels.block import AttentionWeights, Block, BlockShape, BlockWeights
from ds4tui.kernels.checks import WIDTH, MakeLinear, MakeStack, draw_floats
from ds4tui.kernels.cpu.delta import HostRule, numpy_rule
from ds4tui.kernels.cpu.hybrid import HostDeltaBlock, HostGatedBlock
from ds4tui.kernels.cpu.native.build import Unavailable
from ds4tui.kernels.delta import (
    DeltaBlock,
    DeltaBlockWeights,
    DeltaRule,
    DeltaShape,
    DeltaWeights,
    delta_fused,
    delta_steps,
)
from ds4tui.kernels.delta_chunks import delta_chunks
from ds4tui.kernels.feed_forward import ExpertsWeights, FeedForwardWeights, GatedWeights
from ds4tui.kernels.rope import Turn

Floats = npt.NDArray[np.float32]
MakeRule = Callable[[DeltaShape], HostRule]

CHUNKS = ((0, 70), (70, 75), (75, 76))
GROUPED = DeltaShape(2, 4, 16, 12, 4, 1e-5, tiled=False)
TILED = DeltaShape(2, 6, 12, 16, 3, 1e-5, tiled=True)
GATED = BlockShape(4, 2, 16, 16, 1e-5, 0.25, gated=True)


def host_hybrid_blocks() -> str:
    return wrong_with(checks.host_linear_of, checks.host_stack_of, numpy_rule)


def wrong_with(linear: MakeLinear, stack: MakeStack, rule: MakeRule) -> str:
    """What is wrong with the CPU's blocks over such matrices and with such a rule."""
    random = np.random.default_rng(6)
    for shape in (GROUPED, TILED):
        delta = _Drawn(random, shape)
        reference = DeltaBlock(delta.weights(checks.dense_linear), shape, delta_steps)
        twin = HostDeltaBlock(delta.weights(linear), shape, rule(shape))
        wrong = _wrong(random, reference, twin, DeviceRecurrent(shape), HostRecurrent(shape))
        if wrong:
            return f"delta, {wrong}"
    gated = _gated(random)
    made = gated(checks.dense_linear, checks.dense_stack), gated(linear, stack)
    block, twin_block = Block(made[0], GATED, attention.attend), HostGatedBlock(made[1], GATED)
    wrong = _wrong(random, block, twin_block, checks.DeviceRows(), checks.HostRows())
    return f"gated attention, {wrong}" if wrong else ""


def fused_rule() -> str:
    """Raises Unavailable where MLX computes it operation by operation, as our reference does."""
    if not mx.metal.is_available():
        raise Unavailable("MLX has a kernel for it on Metal only")
    return rule_wrong(delta_fused)


def chunked_rule() -> str:
    return rule_wrong(delta_chunks)


def rule_wrong(rule: DeltaRule) -> str:
    """For several chunks, a few rows and one, in float32."""
    random = np.random.default_rng(7)
    results = []
    for count, heads, size in ((150, 4, 32), (5, 2, 64), (1, 4, 128), (70, 2, 128)):
        q, k, v = (mx.array(draw_floats(random, count, heads, size)) for _ in range(3))
        q, k = (x / mx.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
        g = mx.array(-0.1 * np.abs(draw_floats(random, count, heads)))
        rates = mx.sigmoid(mx.array(draw_floats(random, count, heads)))
        state = mx.array(draw_floats(random, heads, size, size))
        wanted = delta_steps(q, k, v, g, rates, state)
        for what, ours, theirs in zip(
            ("output", "state"), rule(q, k, v, g, rates, state), wanted, strict=True
        ):
            name = f"{what} of {count} rows, heads of {size}"
            results.append((name, ours, theirs, checks.TOLERANCE))
    return checks.first_wrong(results)


def _wrong(random: np.random.Generator, reference: Any, twin: Any, theirs: Any, ours: Any) -> str:
    results = []
    for start, end in CHUNKS:
        x = draw_floats(random, end - start, WIDTH)
        turn = Turn.at(np.arange(start, end, dtype=np.int32), 0.5 ** np.arange(4.0))
        wanted = reference(mx.array(x), theirs, turn.device(mx.float32))
        results.append((f"rows {start} to {end}", twin(x, ours, turn), wanted, checks.TOLERANCE))
    return checks.first_wrong(results)


class DeviceRecurrent:
    """The least that a reference block needs of a layer state."""

    def __init__(self, shape: DeltaShape) -> None:
        self._kept = mx.zeros(shape.matrices_shape), mx.zeros(shape.tail_shape)

    def held(self) -> tuple[mx.array, mx.array]:
        return self._kept

    def replace(self, matrices: mx.array, tail: mx.array, count: int) -> None:
        self._kept = matrices, tail

    def buffers(self) -> list[mx.array]:
        return list(self._kept)


class HostRecurrent:
    """The same for the CPU twin."""

    def __init__(self, shape: DeltaShape) -> None:
        shapes = shape.matrices_shape, shape.tail_shape
        self._kept = np.zeros(shapes[0], np.float32), np.zeros(shapes[1], np.float32)

    def held(self) -> tuple[Floats, Floats]:
        return self._kept

    def replace(self, matrices: Floats, tail: Floats, count: int) -> None:
        self._kept = matrices, tail


class _Drawn:
    """The same weights of a delta block in any form; inputs in one matrix where heads are not
    tiled, in two where they are."""

    def __init__(self, random: np.random.Generator, shape: DeltaShape) -> None:
        sizes = [shape.channels, shape.values, 2 * shape.value_heads]
        inputs, z, rates = (checks.drawn_matrix(random, size, WIDTH) for size in sizes)
        self._inputs = (inputs, z) if shape.tiled else (np.concatenate([inputs, z]),)
        self._rates, self._output = rates, checks.drawn_matrix(random, WIDTH, shape.values)
        self._convolution = mx.array(draw_floats(random, shape.channels, shape.kernel))
        self._decay = mx.array(-np.exp(draw_floats(random, shape.value_heads)))
        self._decay_bias = mx.array(draw_floats(random, shape.value_heads) - 3)
        self._norm = checks.drawn_norm(random, shape.value_size)
        self._norms = [checks.drawn_norm(random, WIDTH) for _ in range(2)]
        self._gated = [checks.drawn_matrix(random, *size) for size in checks.GATED_SIZES]

    def weights(self, linear: MakeLinear) -> DeltaBlockWeights:
        delta = DeltaWeights(
            inputs=tuple(linear(part) for part in self._inputs),
            rates=(linear(self._rates),),
            convolution=self._convolution,
            decay=self._decay,
            decay_bias=self._decay_bias,
            norm=self._norm,
            output=linear(self._output),
        )
        gate, up, down = (linear(part) for part in self._gated)
        return DeltaBlockWeights(
            self._norms[0], delta, self._norms[1], GatedWeights(gate, up, down)
        )


def _gated(random: np.random.Generator) -> checks.MakeWeights:
    norms = [checks.drawn_norm(random, size) for size in (WIDTH, WIDTH, 16, 16)]
    sizes = ((128, WIDTH), (32, WIDTH), (32, WIDTH), (WIDTH, 64))
    q, k, v, o = (checks.drawn_matrix(random, *size) for size in sizes)
    experts = _experts(random)

    def weights(linear: MakeLinear, stack: MakeStack) -> BlockWeights:
        mixing = AttentionWeights(linear(q), linear(k), linear(v), linear(o), norms[2], norms[3])
        return BlockWeights(norms[0], mixing, norms[1], experts(linear, stack))

    return weights


def _experts(
    random: np.random.Generator,
) -> Callable[[MakeLinear, MakeStack], FeedForwardWeights]:
    router = checks.drawn_matrix(random, 6, WIDTH) * np.float32(2)
    gate, up = (draw_floats(random, 6, 32, WIDTH) / np.float32(8) for _ in range(2))
    down = draw_floats(random, 6, WIDTH, 32) / np.float32(6)
    of_shared = [checks.drawn_matrix(random, *size) for size in checks.GATED_SIZES]
    shared_gate = mx.array(draw_floats(random, WIDTH) / np.float32(8))

    def weights(linear: MakeLinear, stack: MakeStack) -> FeedForwardWeights:
        of_gate, of_up, of_down = (linear(part) for part in of_shared)
        shared = GatedWeights(of_gate, of_up, of_down)
        stacks = stack(gate), stack(up), stack(down)
        return ExpertsWeights(linear(router), *stacks, 2, "silu", shared, shared_gate)

    return weights
