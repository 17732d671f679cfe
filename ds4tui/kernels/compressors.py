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

    def rows(self, n: mx.array) -> tuple[mx.array, ...]:
        """Of n [T, width] what pools are made of, float32 [1, T, 2 * values], c and Wgate n side by
        side: for the rows' own pool, and where pools overlap for the one behind."""
        c, z = self._w.kv(n).astype(mx.float32)[None], self._w.gate(n).astype(mx.float32)[None]
        own = mx.concatenate([c[..., -self.values :], z[..., -self.values :]], axis=-1)
        if not self.overlaps:
            return (own,)
        return own, mx.concatenate([c[..., : self.values], z[..., : self.values]], axis=-1)

    def pooled(self, first: int, own: mx.array, *before: mx.array) -> mx.array:
        """Pools [P, values] from pool `first` on, as many as are whole. `own` are their rows, and
        those of an open one; `before`, where pools overlap, begin with those of the pool before,
        if it is not the first."""
        count = own.shape[1] // self.size
        if not count:
            return mx.zeros((0, self.values))
        held, gates = self._split(own[0, : count * self.size], -self.values)
        for rows in before:
            missing = 0 if first else 1
            others = self._split(rows[0, : (count - missing) * self.size], 0)
            held = _behind(others[0], held, 0.0)
            gates = _behind(others[1], gates, -mx.inf)
        mixed = (mx.softmax(gates, axis=1) * held).sum(axis=1)
        normed = rms_norm(mixed, self._w.norm, self._epsilon)
        at = np.arange(first, first + count, dtype=np.int32) * np.int32(self.size)
        return turned_end(normed, self._turn_at(at))

    def _split(self, rows: mx.array, at: int) -> tuple[mx.array, mx.array]:
        """Rows of whole pools to c and z [P, r, values]; z with the half of the rows' own values
        that begins `at`."""
        pools = rows.reshape(-1, self.size, 2 * self.values)
        position = self._w.position[:, at:] if at else self._w.position[:, : self.values]
        return pools[..., : self.values], pools[..., self.values :] + position


def _behind(before: mx.array, own: mx.array, missing: float) -> mx.array:
    """[P or P - 1, r, D] and [P, r, D] to [P, 2 r, D]: the first pool may have none before it."""
    if len(before) < len(own):
        nothing = mx.full((1, *own.shape[1:]), missing, own.dtype)
        before = mx.concatenate([nothing, before])
    return mx.concatenate([before, own], axis=1)


def turned_end(x: mx.array, cosines: Cosines, backwards: bool = False) -> mx.array:
    """x [.., T, D] with its last values rotated, or rotated back."""
    cos, sin = cosines
    plain = x.shape[-1] - 2 * cos.shape[-1]
    end = turned(x[..., plain:], cos, -sin if backwards else sin)
    return mx.concatenate([x[..., :plain], end], axis=-1) if plain else end
