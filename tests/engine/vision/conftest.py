"""Exactness is a matter of float32: these tests run on the CPU, whatever else the machine has."""

from collections.abc import Iterator

import mlx.core as mx
import pytest


@pytest.fixture(scope="package", autouse=True)
def on_the_cpu() -> Iterator[None]:
    device = mx.default_device()
    mx.set_default_device(mx.Device(mx.DeviceType.cpu))
    yield
    mx.set_default_device(device)
