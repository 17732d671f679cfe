"""Which device tests compute on."""

from collections.abc import Iterator
from contextlib import contextmanager

import mlx.core as mx


@contextmanager
def on_cpu() -> Iterator[None]:
    """MLX computes on the CPU, whatever else the machine has."""
    device = mx.default_device()
    mx.set_default_device(mx.Device(mx.DeviceType.cpu))
    try:
        yield
    finally:
        mx.set_default_device(device)
