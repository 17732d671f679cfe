"""Attention within windows: patches see those of their own window only (Qwen2.5-VL).

Rows are put in an order in which windows are contiguous, and windows of one shape follow each
other: the inner ones, those cut off at the right edge, at the lower one, and in the corner.
"""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.engine.vision.operations import Attend


@dataclass(frozen=True, slots=True)
class Windows:
    """order int64 [T]: the rows, a row of patches after the other, of each place; back: the
    places of the rows. groups: windows of one shape, and patches of each."""

    order: npt.NDArray[np.int64]
    groups: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, rows: int, columns: int, side: int) -> "Windows":
        """`rows` x `columns` patches in windows of `side` a side."""
        parts = [
            _cut(part, high, wide)
            for band, high in _whole_and_rest(np.arange(rows * columns).reshape(rows, -1), side)
            for part, wide in ((p.T, w) for p, w in _whole_and_rest(band.T, side))
        ]
        order = np.concatenate([part.reshape(-1) for part in parts])
        return cls(order, tuple((len(part), part.shape[1]) for part in parts))

    @property
    def back(self) -> npt.NDArray[np.int64]:
        return np.argsort(self.order)

    def each(self, attend: Attend, q: mx.array, k: mx.array, v: mx.array, scale: float) -> mx.array:
        """[H, T, D] of each window on its own; windows of one shape at once, as heads."""
        heads, count, size = q.shape
        mixed, start = [], 0
        for windows, patches in self.groups:
            end = start + windows * patches
            shape = (heads * windows, patches, size)
            own = [x[:, start:end].reshape(shape) for x in (q, k, v)]
            mixed.append(
                attend(own[0], own[1], own[2], scale).reshape(heads, windows * patches, size)
            )
            start = end
        assert start == count
        return mx.concatenate(mixed, axis=1)


def _whole_and_rest(
    numbers: npt.NDArray[np.int64], side: int
) -> list[tuple[npt.NDArray[np.int64], int]]:
    """What is filled by whole windows, and what is left, along the first axis, each with the
    extent of its windows."""
    whole = len(numbers) // side * side
    parts = [(numbers[:whole], side), (numbers[whole:], len(numbers) - whole)]
    return [(part, extent) for part, extent in parts if len(part)]


def _cut(numbers: npt.NDArray[np.int64], high: int, wide: int) -> npt.NDArray[np.int64]:
    """[windows, high * wide]"""
    down, right = numbers.shape[0] // high, numbers.shape[1] // wide
    cells = numbers.reshape(down, high, right, wide)
    return cells.swapaxes(1, 2).reshape(down * right, high * wide)
