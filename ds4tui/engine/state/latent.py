"""What latent attention keeps: one row a token for all heads, and the keys of an index of rows.

Append-only, so a rewind is a cut.
"""

import mlx.core as mx

from ds4tui.engine.state.append_only import _AppendOnly
from ds4tui.engine.state.buffers import DeviceBuffer


class LatentLayer(_AppendOnly):
    """`arrays` kinds of rows in MLX buffers [1, capacity, values]."""

    def __init__(self, arrays: int) -> None:
        self._rows = tuple(DeviceBuffer() for _ in range(arrays))
        super().__init__(*self._rows)

    def append(self, *rows: mx.array) -> tuple[mx.array, ...]:
        """Add rows [1, T, values] of each kind; views of all live rows of each."""
        self._write(rows, rows[0].shape[1])
        return tuple(buffer.view(0, self.length) for buffer in self._rows)

    def buffers(self) -> list[mx.array]:
        """What `mx.eval` has to finish before a step is over."""
        return [buffer.array for buffer in self._rows if buffer.array is not None]
