"""The native twin of the gated delta rule: row by row, however many rows there are.

What comes out therefore does not depend on how a prompt is cut into chunks.
"""

import numpy as np
import numpy.typing as npt

from ds4tui.kernels.cpu.native.library import DeltaStruct, Kernels
from ds4tui.kernels.delta import DeltaShape

Floats = npt.NDArray[np.float32]


class NativeRule:
    """As `kernels.cpu.delta.HostRule`."""

    def __init__(self, kernels: Kernels, shape: DeltaShape) -> None:
        self._kernels, self._shape = kernels, shape

    def __call__(
        self, q: Floats, k: Floats, v: Floats, g: Floats, rates: Floats, state: Floats
    ) -> Floats:
        """q, k and v may have room between their rows."""
        shape, out = self._shape, np.empty(v.shape, np.float32)
        kept, rates = np.exp(g), np.ascontiguousarray(rates)
        if state.shape != shape.matrices_shape or not state.flags.c_contiguous:
            raise ValueError(f"Matrices of {state.shape} are not those of this block.")
        self._kernels.delta(
            DeltaStruct(
                q=_at(q),
                k=_at(k),
                v=_at(v),
                kept=_at(kept),
                rates=_at(rates),
                state=_at(state),
                out=_at(out),
                q_stride=_row_stride(q),
                k_stride=_row_stride(k),
                v_stride=_row_stride(v),
                rows=len(q),
                key_heads=shape.key_heads,
                value_heads=shape.value_heads,
                key_size=shape.key_size,
                value_size=shape.value_size,
                tiled=shape.tiled,
            )
        )
        return out


def _at(array: Floats) -> int:
    return int(array.ctypes.data)


def _row_stride(x: Floats) -> int:
    """Of [T, H, D], whose heads lie side by side, in floats."""
    assert x.dtype == np.float32 and x[0].flags.c_contiguous
    return x.strides[0] // 4
