"""Exactness is a matter of float32: these tests run on the CPU, whatever else the machine has."""

from collections.abc import Iterator

import pytest

from tests.devices import on_cpu


@pytest.fixture(scope="package", autouse=True)
def on_the_cpu() -> Iterator[None]:
    with on_cpu():
        yield
