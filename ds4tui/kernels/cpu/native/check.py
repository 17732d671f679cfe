"""Do the native kernels agree with the plain-MLX reference here? (kernels/checks.py)

Products in every format, for one row (weights decoded in registers), a few rows and many (in
panels); whole steps over each kind of block.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Type

from ds4tui.kernels import attention, checks, hybrid_checks
from ds4tui.kernels.block import Block
from ds4tui.kernels.cpu.native.decoder import NativeBlock, NativeDecoder
from ds4tui.kernels.cpu.native.delta import NativeRule
from ds4tui.kernels.cpu.native.formats import BLOCK_TYPES
from ds4tui.kernels.cpu.native.library import Kernels, best
from ds4tui.kernels.cpu.native.linear import NativeLinear, NativeStack
from ds4tui.kernels.decoder import NO_IMAGES, DenseDecoder, Ends
from ds4tui.kernels.rope import Turn

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def native_step() -> str:
    """Raises Unavailable where there are no native kernels."""
    return wrong_with(best())


def native_rule() -> str:
    """The same for the gated delta rule, in blocks over native products."""
    return rule_wrong_with(best())


def rule_wrong_with(kernels: Kernels) -> str:
    return hybrid_checks.wrong_with(
        lambda values: NativeLinear(kernels, FloatSource(values)),
        lambda values: NativeStack(kernels, FloatSource(values)),
        partial(NativeRule, kernels),
    )


def wrong_with(kernels: Kernels) -> str:
    random = np.random.default_rng(4)
    for kind in sorted(BLOCK_TYPES):
        wrong = checks.first_wrong(_products(kernels, kind, random))
        if wrong:
            return f"{kind.name}, {wrong}"
    for name, draw in checks.BLOCKS.items():
        wrong = checks.first_wrong(_steps(kernels, draw))
        if wrong:
            return f"{name}, {wrong}"
    return ""


Case = tuple[str, mx.array | Floats, mx.array, float]


def _products(kernels: Kernels, kind: Type, random: np.random.Generator) -> Iterator[Case]:
    """A matrix with a cut panel and, where the format has such, a cut block."""
    source = random_source(kind, 70, 512 if GGML_QUANT_SIZES[kind][0] > 1 else 500, random)
    twin, held = NativeLinear(kernels, source), mx.array(source.values)
    for count in (1, 3, 40):
        x = mx.array(checks.draw_floats(random, count, held.shape[1]))
        yield f"{count} rows", twin(x), x @ held.T, checks.TOLERANCE
    ids = np.array([69, 0])
    yield "embeddings", twin.rows(ids), held[mx.array(ids)], checks.TOLERANCE


def _steps(kernels: Kernels, draw: checks.DrawBlock) -> Iterator[Case]:
    random = np.random.default_rng(5)
    drawn, shape = draw(random)
    embedding, norm = checks.draw_floats(random, 90, checks.WIDTH), mx.ones(checks.WIDTH)
    theirs = checks.dense_linear(embedding)
    ours = NativeLinear(kernels, FloatSource(embedding))
    block = Block(drawn(checks.dense_linear, checks.dense_stack), shape, attention.attend)
    reference = DenseDecoder(Ends(theirs, norm, theirs, 1e-5), [block], mx.float32)
    native = drawn(
        lambda values: NativeLinear(kernels, FloatSource(values)),
        lambda values: NativeStack(kernels, FloatSource(values)),
    )
    twin = NativeDecoder(kernels, Ends(ours, norm, ours, 1e-5), [NativeBlock(native, shape)])
    their_rows, our_rows = checks.DeviceRows(), _Rows()
    image = checks.image_rows(random, 34, 5, 31)
    for start, end, images in (
        (0, 70, NO_IMAGES),
        (70, 75, NO_IMAGES),
        (75, 76, NO_IMAGES),
        (76, 110, image),
    ):
        turn = Turn.at(np.arange(start, end, dtype=np.int32), 0.5 ** np.arange(8.0))
        ids = np.arange(start, end) % 90
        wanted = reference(ids, [their_rows], [turn], "all", images)
        result = twin(ids, [our_rows], [turn], "all", images)
        assert wanted is not None and result is not None
        yield f"rows {start} to {end}", result, wanted, 10 * checks.TOLERANCE  # logits of size 10


@dataclass(frozen=True, slots=True)
class FloatSource:
    """A BlockSource of float32 values."""

    values: Floats
    ggml_type = Type.F32

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def blocks(self) -> Bytes:
        return self.values.view(np.uint8)

    def host_rows(self, rows: slice) -> Floats:
        return self.values[rows]


@dataclass(frozen=True, slots=True)
class RandomSource:
    """A BlockSource, and what it means by gguf.quants."""

    ggml_type: Type
    raw: Bytes
    values: Floats

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def blocks(self) -> Bytes:
        return self.raw

    def host_rows(self, rows: slice) -> Floats:
        return self.values[rows].copy()


def random_source(kind: Type, out: int, columns: int, random: np.random.Generator) -> RandomSource:
    """Values of about columns ** -0.5. Blocks hold any bytes, but for their scales; rows begin
    at odd addresses where the format has bytes."""
    if kind in _SCALES_AT:
        raw = _random_blocks(kind, out, columns, random)
    else:
        values = checks.draw_floats(random, out, columns) / np.float32(columns**0.5)
        raw = quants.quantize(values, kind).view(np.uint8).reshape(out, -1)
    return RandomSource(kind, raw, quants.dequantize(np.ascontiguousarray(raw), kind))


# Where the float16 scales of a block are, and how far its integers reach under them.
_SCALES_AT = {
    Type.Q4_0: ((0,), 8),
    Type.Q4_1: ((0, 2), 15),
    Type.Q5_0: ((0,), 16),
    Type.Q5_1: ((0, 2), 31),
    Type.Q8_0: ((0,), 128),
    Type.Q3_K: ((108,), 32 * 4),
    Type.Q4_K: ((0, 2), 63 * 15),
    Type.Q5_K: ((0, 2), 63 * 31),
    Type.Q6_K: ((208,), 128 * 32),
}


def _random_blocks(kind: Type, out: int, columns: int, random: np.random.Generator) -> Bytes:
    per_block, size = GGML_QUANT_SIZES[kind]
    places, reach = _SCALES_AT[kind]
    count = columns // per_block
    held: Bytes = random.integers(0, 256, (out, count * size + 3), dtype=np.uint8)
    for at in places:
        scales = random.uniform(-2, 2, (out, count)) / reach / columns**0.5
        low_high = scales.astype("<f2")[..., None].view(np.uint8)
        for byte in (0, 1):
            held[:, 1 + at + byte : 1 + count * size : size] = low_high[..., byte]
    return held[:, 1 : 1 + count * size]


class _Rows:
    """The least that a native step needs of a layer state."""

    base = 0

    def __init__(self) -> None:
        self.length = 0
        self._buffers: tuple[Floats, Floats] | None = None

    def reserved(
        self, count: int, keys: tuple[int, int], values: tuple[int, int]
    ) -> tuple[Floats, Floats]:
        if self._buffers is None:
            shapes = (*keys, 256), (values[0], 256, values[1])
            self._buffers = np.zeros(shapes[0], np.float32), np.zeros(shapes[1], np.float32)
        return self._buffers

    def written(self, count: int) -> None:
        self.length += count
