"""Matrices without an exact quantised form, quantised anew by MLX, and what that changed.

Only done where it was asked for (LoadedWeightsPolicy.requantise). A matrix is read and quantised
a tile at a time; its scales are float16. The error is that of what is held against gguf's
values, so it has the rounding of the scales in it.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, Self

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.engine.gguf import TILE_ELEMENTS, GGUFFile
from ds4tui.engine.holding import requantised_groups
from ds4tui.engine.weights import Weight, with_short_scales
from ds4tui.kernels.linear import QuantisedMatrix
from ds4tui.kernels.policy import LoadedWeightsPolicy, Requantise

Floats = npt.NDArray[np.float32]

_BITS: tuple[Requantise, ...] = ("8", "4")
SAMPLE_ELEMENTS = 2**16  # of one matrix, at least a row


class RowSource(Protocol):
    """What is asked of a Weight here."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    def host_rows(self, rows: slice) -> Floats: ...


@dataclass(frozen=True, slots=True)
class RequantiseError:
    """Sums over the values w of one or more tensors and their errors e.

    largest: the largest |e| of a tensor as a share of its largest |w|; the worst tensor's.
    """

    name: str
    bits: int
    error_squares: float
    value_squares: float
    largest: float

    @property
    def relative_rms(self) -> float:
        """sqrt(Σe² / Σw²)"""
        return math.sqrt(self.error_squares / self.value_squares) if self.value_squares else 0.0

    @classmethod
    def over(cls, name: str, errors: Iterable[Self]) -> Self:
        """Of several tensors, of which there must be one."""
        every = list(errors)
        return cls(
            name,
            every[0].bits,
            sum(e.error_squares for e in every),
            sum(e.value_squares for e in every),
            max(e.largest for e in every),
        )

    def __str__(self) -> str:
        return f"relative RMS error {self.relative_rms:.2%}, largest {self.largest:.2%}"


def requantised(
    weight: RowSource, bits: int, group_size: int, tile_elements: int = TILE_ELEMENTS
) -> tuple[QuantisedMatrix, RequantiseError]:
    """`weight` [.., out, in], `in` a multiple of `group_size`, in MLX's affine form."""
    tiles = []
    squares, largest = np.zeros(2), np.zeros(2)  # of errors, of values
    step = max(1, tile_elements // math.prod(weight.shape[1:]))
    for start in range(0, weight.shape[0], step):
        values = mx.array(weight.host_rows(slice(start, start + step)))
        tile = quantised_anew(values, bits, group_size)
        # NumPy sums in pairs and in float64; a running float32 sum of billions would not do.
        for i, part in enumerate((tile.held_for(mx.float32).values() - values, values)):
            numbers = np.asarray(part).astype(np.float64)
            squares[i] += np.square(numbers).sum()
            largest[i] = max(largest[i], np.abs(numbers).max())
        tiles.append(tile)
    share = largest[0] / largest[1] if largest[1] else 0.0
    error = RequantiseError(weight.name, bits, float(squares[0]), float(squares[1]), float(share))
    return _joined(tiles), error


def sampled_errors(gguf: GGUFFile) -> Iterator[tuple[str, RequantiseError, int]]:
    """Of each type of the file that a policy may quantise anew, and each number of bits: the
    type, the error over all its matrices, and how many weights that was measured on. Of a matrix
    some evenly spread rows are taken, SAMPLE_ELEMENTS in all."""
    for bits in _BITS:
        policy = LoadedWeightsPolicy(requantise=bits)
        errors: dict[str, list[RequantiseError]] = defaultdict(list)
        weights: Counter[str] = Counter()
        for info in gguf.tensors.values():
            groups = requantised_groups(info, policy)
            if groups is not None:
                sample = _Sample(Weight(gguf, info.name))
                errors[info.ggml_type.name].append(requantised(sample, *groups)[1])
                weights[info.ggml_type.name] += math.prod(sample.shape)
        for kind, found in errors.items():
            yield kind, RequantiseError.over(kind, found), weights[kind]


class _Sample:
    """Evenly spread rows of a matrix, or of the matrices of experts."""

    def __init__(self, weight: Weight) -> None:
        row, count = math.prod(weight.shape[1:]), weight.shape[0]
        taken = min(count, max(1, SAMPLE_ELEMENTS // row))
        self._weight, self._rows = weight, np.linspace(0, count - 1, taken).astype(int)
        self.name, self.shape = weight.name, (taken, *weight.shape[1:])

    def host_rows(self, rows: slice) -> Floats:
        parts = [self._weight.host_rows(slice(int(r), int(r) + 1)) for r in self._rows[rows]]
        return np.concatenate(parts)


def quantised_anew(values: mx.array, bits: int, group_size: int) -> QuantisedMatrix:
    packed, scales, biases = mx.quantize(values, group_size=group_size, bits=bits)
    matrix = with_short_scales(QuantisedMatrix(packed, scales, biases, group_size, bits))
    mx.eval(matrix.packed, matrix.scales, matrix.biases)
    return matrix


def _joined(tiles: list[QuantisedMatrix]) -> QuantisedMatrix:
    """One matrix of tiles of its rows; scales become float32 if those of any tile are."""
    first = tiles[0]
    packed = mx.concatenate([tile.packed for tile in tiles])
    scales = mx.concatenate([tile.scales for tile in tiles])
    biases = mx.concatenate([tile.biases for tile in tiles if tile.biases is not None])
    mx.eval(packed, scales, biases)
    return replace(first, packed=packed, scales=scales, biases=biases)
