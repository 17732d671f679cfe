"""Matrix products over NumPy rows, in whatever form a CPU holds its matrices.

A product is made by the engine's thread and shares its work among threads by itself.
"""

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import numpy.typing as npt

from ds4tui.kernels.cpu.linear import HostLinear
from ds4tui.kernels.cpu.native.linear import NativeLinear, NativeStack
from ds4tui.kernels.cpu.stack import HostStack
from ds4tui.kernels.cpu.threads import workers
from ds4tui.kernels.linear import Linear
from ds4tui.kernels.stack import Stack

Floats = npt.NDArray[np.float32]
Product = Callable[[Floats], Floats]  # x [T, in] to a new [T, out]


def product(*linears: Linear) -> Product:
    """Of all that read the same rows: [y1 | y2 | ..]. TypeError if they are not all in NumPy or
    all in blocks of the file."""
    if all(isinstance(linear, HostLinear) for linear in linears):
        parts = cast(tuple[HostLinear, ...], linears)
        return _shared(parts[0] if len(parts) == 1 else HostLinear.side_by_side(*parts))
    if all(isinstance(linear, NativeLinear) for linear in linears):
        return _joined([linear.apply for linear in cast(tuple[NativeLinear, ...], linears)])
    forms = ", ".join(linear.form for linear in linears)
    raise TypeError(f"Matrices are held as {forms}: not what the CPU kernels multiply.")


def stack_products(*stacks: Stack) -> list[Product]:
    """For each expert, the product with its matrix of each of the stacks. TypeError as above."""
    if all(isinstance(stack, HostStack) for stack in stacks):
        hosts = cast(tuple[HostStack, ...], stacks)
        return [product(*parts) for parts in zip(*(s.matrices for s in hosts), strict=True)]
    if all(isinstance(stack, NativeStack) for stack in stacks):
        natives = cast(tuple[NativeStack, ...], stacks)
        return [_joined(parts) for parts in zip(*(s.products() for s in natives), strict=True)]
    forms = ", ".join(stack.form for stack in stacks)
    raise TypeError(f"Matrices are held as {forms}: not what the CPU kernels multiply.")


def _shared(linear: HostLinear) -> Product:
    threads = workers()

    def multiply(x: Floats) -> Floats:
        tiles = threads.tiles(len(x))
        if len(tiles) == 1:
            return linear.apply(x)
        y = np.empty((len(x), linear.shape[0]), np.float32)

        def tile(rows: slice) -> None:
            y[rows] = linear.apply(x[rows])

        threads.each(tiles, tile)
        return y

    return multiply


def _joined(products: Sequence[Product]) -> Product:
    if len(products) == 1:
        return products[0]
    return lambda x: np.concatenate([multiply(x) for multiply in products], axis=1)
