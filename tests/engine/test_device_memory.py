"""What may still be taken, of a CPU, a card with memory of its own, and one that shares the host's:
the fields and numbers are what mlx.core gives on each."""

from types import SimpleNamespace
from typing import Any

import mlx.core as mx

from ds4tui.engine.device_memory import available_bytes

GB = 10**9


def core(info: dict[str, Any], limit: int, in_use: int, kept: int, device: str = "gpu") -> Any:
    return SimpleNamespace(
        DeviceType=mx.DeviceType,
        default_device=lambda: SimpleNamespace(type=getattr(mx.DeviceType, device)),
        device_info=lambda: info,
        get_memory_limit=lambda: limit,
        get_active_memory=lambda: in_use,
        get_cache_memory=lambda: kept,
    )


def of(made: Any, host: int = 9 * GB) -> int:
    return available_bytes(made, lambda: host)


def test_on_a_cpu_the_host_is_asked() -> None:
    assert of(core({}, 1, 0, 0, "cpu")) == 9 * GB
    assert available_bytes(mx) > 0


def test_a_card_of_its_own_is_asked_itself_whatever_the_host_has() -> None:
    info = {"device_name": "a card", "free_memory": 50 * GB, "total_memory": 140 * GB}
    assert of(core(info, 133 * GB, 80 * GB, 2 * GB), host=1) == 52 * GB
    # Other programs have left more than MLX will take.
    info = {"free_memory": 60 * GB}
    assert of(core(info, 133 * GB, 80 * GB, 2 * GB), host=1) == 53 * GB


def test_a_gpu_that_shares_the_host_s_memory_takes_what_both_allow() -> None:
    info = {"max_recommended_working_set_size": 48 * GB, "memory_size": 64 * GB}
    made = core(info, 72 * GB, 20 * GB, 1 * GB)
    assert of(made, host=40 * GB) == 28 * GB
    assert of(made, host=10 * GB) == 11 * GB  # what MLX keeps is taken already, as the host sees it


def test_nothing_is_left_where_more_is_in_use_than_may_be() -> None:
    assert of(core({"free_memory": 0}, 10 * GB, 11 * GB, 0)) == 0


def test_every_field_of_this_backend_is_known() -> None:
    """`device_info` gives a mapping here, too, and the counters exist."""
    assert isinstance(mx.device_info(), dict)
    assert min(mx.get_memory_limit(), mx.get_active_memory() + 1, mx.get_cache_memory() + 1) > 0
