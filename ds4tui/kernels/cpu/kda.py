"""The CPU twin of `kernels.kda`'s rule, in NumPy: row by row, however many rows there are."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def kda_rows(q: Floats, k: Floats, v: Floats, g: Floats, rates: Floats, state: Floats) -> Floats:
    """q, k, v and g [T, H, D], β [T, H], S [H, D, D], which it changes, to o [T, H, D]."""
    out, kept = np.empty_like(v), np.exp(g)
    for t in range(len(q)):
        key = k[t, :, :, None]
        state *= kept[t, :, None, :]
        changes = rates[t, :, None, None] * (v[t, :, :, None] - state @ key)
        state += changes * k[t, :, None, :]
        out[t] = (state @ q[t, :, :, None])[..., 0]
    return out
