"""Which failures are a lack of memory, and what is lost by them."""

import pytest

from ds4tui.engine.no_memory import is_no_memory


@pytest.mark.parametrize(
    "exc",
    [
        MemoryError(),
        MemoryError("std::bad_alloc"),
        RuntimeError("[malloc] Unable to allocate 1024 bytes."),
        RuntimeError("cudaMallocAsync(&data, size, stream) failed: out of memory"),
        RuntimeError("[metal::malloc] Resource limit (499000) exceeded."),
        RuntimeError("[metal::malloc] Attempting to allocate 9 bytes which is greater than ..."),
        RuntimeError("[METAL] Command buffer execution failed: Insufficient Memory (00000008)"),
    ],
)
def test_no_memory(exc: BaseException) -> None:
    assert is_no_memory(exc)


@pytest.mark.parametrize(
    "exc",
    [
        RuntimeError("cudaLaunchKernel failed: an illegal memory access was encountered"),
        RuntimeError("the device is gone"),
        ValueError("out of memory"),
        KeyboardInterrupt(),
    ],
)
def test_something_else(exc: BaseException) -> None:
    assert not is_no_memory(exc)
