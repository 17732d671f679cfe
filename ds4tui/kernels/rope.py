"""Rotary positions over neighbouring values.

Values 2j and 2j+1 of a head are the real and imaginary part of one number, which row t turns
by the angle positions[t] * frequencies[j] (Su et al. 2021, arXiv 2104.09864).

GGUF's llama files have this layout. Other families pair values j and j + J of a head ("NEOX"):
the rows of their Q and K are brought to this order while loading (`neighbours`), which changes
no score, since a score is a sum over values.
"""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Turn:
    """The rotation of T rows, computed once a step: complex64 [T, J], for the first 2J values
    of each head."""

    factors: npt.NDArray[np.complex64]

    @classmethod
    def at(
        cls,
        positions: npt.NDArray[np.int32],
        frequencies: npt.NDArray[np.float64],
        magnitude: float = 1.0,
    ) -> "Turn":
        """positions [T], or [T, J] where pairs stand at positions of their own; frequencies [J] in
        radians a position; `magnitude` stretches what is turned. Angles are float64: in float32
        they would be off by 0.004 at position 100,000."""
        of_pairs = positions[:, None] if positions.ndim == 1 else positions
        angles = of_pairs.astype(np.float64) * frequencies
        return cls((magnitude * np.exp(1j * angles)).astype(np.complex64))

    def part(self, rows: slice) -> "Turn":
        return Turn(self.factors[rows])

    def device(self, dtype: mx.Dtype) -> tuple[mx.array, mx.array]:
        """Cosines and sines [T, J]."""
        return (
            mx.array(np.ascontiguousarray(self.factors.real)).astype(dtype),
            mx.array(np.ascontiguousarray(self.factors.imag)).astype(dtype),
        )


def neighbours(heads: int, size: int, rotary: int) -> npt.NDArray[np.int64]:
    """The order [heads * size] of rows in which the halves of the first `rotary` values of each
    head are dealt out in turn: 0, J, 1, J + 1, .. with J = rotary / 2."""
    head = np.arange(size)
    head[:rotary] = head[:rotary].reshape(2, -1).T.reshape(-1)
    return (np.arange(heads)[:, None] * size + head).reshape(-1)


def turned(x: mx.array, cosines: mx.array, sines: mx.array) -> mx.array:
    """x [H, T, D] with its first 2J values rotated, in the dtype of x. The rotation itself is
    done in the dtype of the cosines (float32)."""
    rotary = 2 * cosines.shape[-1]
    pairs = x[..., :rotary].reshape(*x.shape[:-1], -1, 2)
    real, imaginary = pairs[..., 0], pairs[..., 1]
    both = [real * cosines - imaginary * sines, real * sines + imaginary * cosines]
    out = mx.stack(both, axis=-1).reshape(*x.shape[:-1], rotary).astype(x.dtype)
    return out if rotary == x.shape[-1] else mx.concatenate([out, x[..., rotary:]], axis=-1)
