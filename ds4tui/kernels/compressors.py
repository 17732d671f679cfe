"""Rows pooled into one, channel by channel, in plain MLX (DeepSeek V4).

Of each row c = Wkv n and z = Wgate n + a_i are made, i the row's place in its pool of r rows. A
pool is Σ softmax(z) * c, each channel by itself, over its rows; RMSNorm, its end turned as at the
position of its first row. Where pools overlap c and z have two halves, and a pool is over the
first halves of the rows of the pool before and the second ones of its own; the first pool has none
before it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.kernels.block import Cosines, rms_norm
from ds4tui.kernels.linear import Linear
from ds4tui.kernels.rope import turned

TurnAt = Callable[[npt.NDArray[np.int32]], Cosines]


@dataclass(frozen=True, slots=True)
class CompressorWeights:
    """position [r, values of c]; norm [values of a pool]."""

    kv: Linear
    gate: Linear
    position: mx.array
    norm: mx.array


class Compressor:
    """`turn_at` gives the rotation at positions."""

    def __init__(self, weights: CompressorWeights, epsilon: float, turn_at: TurnAt) -> None:
        self._w, self._epsilon, self._turn_at = weights, epsilon, turn_at
        self.size, whole = weights.position.shape
        self.values = weights.norm.shape[0]
        self.overlaps = whole == 2 * self.values

    def rows(self, n: mx.array) -> tuple[mx.array, mx.array]:
        """Of n [T, width] what is kept: c and Wgate n, [1, T, values of c]."""
        return self._w.kv(n)[None], self._w.gate(n)[None]

    def pooled(self, first: int, c: mx.array, z: mx.array) -> mx.array:
        """Pools [P, values] from pool `first` on. c and z [1, R, values of c] are of their rows;
        where pools overlap, and it is not the first, those of the pool before stand in front."""
        held, gates = c[0].astype(mx.float32), z[0].astype(mx.float32)
        held = held.reshape(-1, self.size, held.shape[-1])
        gates = gates.reshape(held.shape) + self._w.position
        if self.overlaps:
            held, gates = (
                self._with_those_before(first, held),
                self._with_those_before(first, gates, -mx.inf),
            )
        mixed = (mx.softmax(gates, axis=1) * held).sum(axis=1)
        normed = rms_norm(mixed, self._w.norm, self._epsilon)
        at = np.arange(first, first + normed.shape[0], dtype=np.int32) * np.int32(self.size)
        return turned_end(normed, self._turn_at(at))

    def _with_those_before(self, first: int, rows: mx.array, missing: float = 0.0) -> mx.array:
        """[P (+ 1), r, 2 D] to [P, 2 r, D]."""
        before, own = rows[..., : self.values], rows[..., self.values :]
        if first:
            own = own[1:]
        else:
            nothing = mx.full((1, *before.shape[1:]), missing, before.dtype)
            before = mx.concatenate([nothing, before])
        return mx.concatenate([before[:-1], own], axis=1)


def turned_end(x: mx.array, cosines: Cosines, backwards: bool = False) -> mx.array:
    """x [.., T, D] with its last values rotated, or rotated back."""
    cos, sin = cosines
    plain = x.shape[-1] - 2 * cos.shape[-1]
    end = turned(x[..., plain:], cos, -sin if backwards else sin)
    return mx.concatenate([x[..., :plain], end], axis=-1) if plain else end
