"""Does a twin agree with the plain-MLX reference here? One small case per shape class.

A class is a set of shapes that takes its own path through a library: one row (a matrix-vector
product), a few rows, many rows; queries with and without a past. A check returns what is wrong,
or "". The randomised tests in tests/kernels are the thorough ones.
"""

from collections.abc import Callable, Iterable

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.kernels import attention
from ds4tui.kernels.block import Block, BlockShape, BlockWeights
from ds4tui.kernels.cpu.attention import attend as cpu_attend
from ds4tui.kernels.cpu.decoder import HostBlock
from ds4tui.kernels.cpu.linear import HostLinear
from ds4tui.kernels.linear import DenseLinear, Linear
from ds4tui.kernels.rope import Turn

Check = Callable[[], str]
Floats = npt.NDArray[np.float32]

TOLERANCE = 1e-4  # float32 sums of some hundred terms of size 1 in another order: about 1e-6
HALF_TOLERANCE = 2e-2  # the same in float16


def host_linear() -> str:
    random = np.random.default_rng(1)
    weight, bias = _draw(random, 96, 160), mx.array(_draw(random, 96))
    twin, reference = _host(weight), DenseLinear(mx.array(weight))
    twin.add_bias(bias)
    reference.add_bias(bias)
    inputs = {count: mx.array(_draw(random, count, 160)) for count in (1, 3, 64)}
    return _first_wrong(
        (f"{count} rows", twin(x), reference(x), TOLERANCE) for count, x in inputs.items()
    )


def host_attention() -> str:
    return _attention(cpu_attend, mx.float32, TOLERANCE)


def fused_attention() -> str:
    return _attention(attention.attend_fused, mx.float16, HALF_TOLERANCE)


def host_block() -> str:
    """A chunk without a past (rows enough for several threads), a chunk with one, one row."""
    shape = BlockShape(4, 2, 16, 16, 1e-5, 0.25)
    random = np.random.default_rng(2)
    dense = {name: _draw(random, *size) / np.sqrt(size[1]) for name, size in _MATRICES.items()}
    norms = [mx.array(1 + 0.1 * _draw(random, 64)) for _ in range(2)]
    reference = Block(_weights(norms, dense, _dense), shape, attention.attend)
    twin = HostBlock(_weights(norms, dense, _host), shape)
    theirs, ours = _DeviceRows(), _HostRows()
    results = []
    for start, end in ((0, 70), (70, 75), (75, 76)):
        x = _draw(random, end - start, 64)
        turn = Turn.at(np.arange(start, end, dtype=np.int32), 0.5 ** np.arange(8.0))
        wanted = reference(mx.array(x), theirs, turn.device(mx.float32))
        results.append((f"rows {start} to {end}", twin(x, ours, turn), wanted, TOLERANCE))
    return _first_wrong(results)


def _attention(twin: Callable[..., mx.array], dtype: mx.Dtype, tolerance: float) -> str:
    random = np.random.default_rng(3)
    results = []
    for count, past in ((1, 0), (1, 40), (33, 0), (33, 40)):
        q, k, v = (
            mx.array(_draw(random, heads, rows, 32)).astype(dtype)
            for heads, rows in ((6, count), (2, past + count), (2, past + count))
        )
        name = f"{count} queries after {past} rows"
        wanted = attention.attend(q, k, v, 0.2, past)
        results.append((name, twin(q, k, v, 0.2, past), wanted, tolerance))
    return _first_wrong(results)


def _first_wrong(
    results: Iterable[tuple[str, mx.array | Floats, mx.array, float]],
) -> str:
    for name, ours, wanted, tolerance in results:
        gap = float(np.abs(np.asarray(ours, np.float32) - np.asarray(wanted, np.float32)).max())
        if not gap <= tolerance:  # a NaN is not
            return f"{name}: differs from the reference by {gap:.2g} (at most {tolerance:g})"
    return ""


_MATRICES = {
    "q": (64, 64),
    "k": (32, 64),
    "v": (32, 64),
    "output": (64, 64),
    "gate": (96, 64),
    "up": (96, 64),
    "down": (64, 96),
}


class _DeviceRows:
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


class _HostRows:
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


def _weights(
    norms: list[mx.array], dense: dict[str, Floats], linear: Callable[[Floats], Linear]
) -> BlockWeights:
    matrices = {name: linear(matrix) for name, matrix in dense.items()}
    return BlockWeights(attn_norm=norms[0], ffn_norm=norms[1], **matrices)


def _draw(random: np.random.Generator, *shape: int) -> Floats:
    return random.standard_normal(shape, np.float32)


def _dense(weight: Floats) -> Linear:
    return DenseLinear(mx.array(weight))


def _host(weight: Floats) -> HostLinear:
    return HostLinear.read((weight.shape[0], weight.shape[1]), lambda rows: weight[rows])
