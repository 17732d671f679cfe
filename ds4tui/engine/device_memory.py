"""How much memory may still be taken on the device that computes.

On a CPU that is host memory. A GPU has what MLX's allocator may take: up to its limit, beside what
is in use; buffers that it keeps of what was freed are there for the asking. CUDA says how much of
the card is free, other programs counted; Metal shares the host's memory, of which it recommends to
wire no more than a part. Fields of `mlx.core.device_info` that a backend does not have are left
out, so nothing here names one.
"""

from collections.abc import Callable
from typing import Any

from ds4tui.cache.memory import available_memory_bytes


def available_bytes(
    core: Any = None, host_bytes: Callable[[], int] = available_memory_bytes
) -> int:
    """Bytes, 0 or more. `core` is mlx.core, by default the one that is installed."""
    if core is None:
        import mlx.core as core
    if core.default_device().type != core.DeviceType.gpu:
        return host_bytes()
    info = core.device_info()
    in_use, kept = core.get_active_memory(), core.get_cache_memory()
    limits: list[int] = [core.get_memory_limit() - in_use]
    if "max_recommended_working_set_size" in info:
        limits.append(info["max_recommended_working_set_size"] - in_use)
    # Memory of its own, or the host's.
    limits.append(kept + (info["free_memory"] if "free_memory" in info else host_bytes()))
    return max(0, min(limits))
