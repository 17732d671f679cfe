"""Arrays on their way to disk and back, of every kind of layer, to the bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from ds4tui.cache.kvstore import DiskTier
from ds4tui.cache.timeline import Timeline
from ds4tui.engine.disk_arrays import bounded_state, host_rows, host_snapshot
from ds4tui.engine.disk_rows import DiskRows, bounded_from_disk
from ds4tui.engine.state import (
    HostKVLayer,
    HostRecurrentLayer,
    HostWindowLayer,
    KVLayer,
    ModelState,
    RecurrentLayer,
    WindowLayer,
)

SHAPES = ((2, 3, 4), (3, 5))
KINDS: dict[str, list[Callable[[], Any]]] = {
    "MLX": [KVLayer, lambda: WindowLayer(8), lambda: RecurrentLayer(*SHAPES), KVLayer],
    "NumPy": [
        HostKVLayer,
        lambda: HostWindowLayer(8),
        lambda: HostRecurrentLayer(*SHAPES),
        HostKVLayer,
    ],
    "a window of one row": [HostKVLayer, lambda: HostWindowLayer(1)],
    "only rows": [KVLayer],
}
DTYPES = {"f32": mx.float32, "f16": mx.float16, "bf16": mx.bfloat16}


def grown(layers: list[Any], rows: int, dtype: Any, seed: int = 1) -> ModelState:
    """A state of random rows, fed in pieces so that windows move."""
    random = np.random.default_rng(seed)
    at = 0
    while at < rows:
        count = min(7, rows - at)
        for layer in layers:
            feed(layer, count, dtype, random)
        at += count
    return ModelState(layers)


def feed(layer: Any, count: int, dtype: Any, random: np.random.Generator) -> None:
    if hasattr(layer, "replace"):
        arrays = [random.standard_normal(shape).astype(np.float32) for shape in SHAPES]
        is_host = isinstance(layer, HostRecurrentLayer)
        layer.replace(*(arrays if is_host else map(mx.array, arrays)), count)
        return
    pair: list[Any] = [random.standard_normal((2, count, 4)).astype(np.float32) for _ in range(2)]
    if not isinstance(layer, HostKVLayer | HostWindowLayer):
        pair = [mx.array(array).astype(dtype) for array in pair]
    layer.append(*pair)


def bits(array: Any) -> bytes:
    if isinstance(array, mx.array):
        array = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
    return np.array(array).tobytes()


def assert_same(one: ModelState, other: ModelState) -> None:
    assert one.length == other.length
    for a, b in zip(one.layers, other.layers, strict=True):
        held: list[Any] = [x.rows(0, x.length) or x.bounded() for x in (a, b)]
        pairs = list(zip(held[0].arrays, held[1].arrays, strict=True))
        assert [x.dtype for x, _ in pairs] == [y.dtype for _, y in pairs]
        assert [bits(x) for x, _ in pairs] == [bits(y) for _, y in pairs]


@pytest.fixture(params=DTYPES)
def dtype(request: pytest.FixtureRequest) -> Any:
    return DTYPES[request.param]


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_comes_back_from_disk_to_the_bit(kind: str, dtype: Any, tmp_path: Path) -> None:
    state = grown([make() for make in KINDS[kind]], 40, dtype)
    timeline = Timeline.of(list(range(40)))
    disk = DiskTier(tmp_path / "kv", 1 << 30, b"one", floor_bytes=0)
    for start, end in ((0, 25), (25, 40)):
        rows = [state.rows(i, start, end) for i in range(len(state.layers))]
        host = [None if r is None else host_rows(r) for r in rows]
        assert disk.put_page(timeline.prefix(end), start, host)
    bounded = state.snapshot()
    if bounded is not None:
        assert disk.put_snapshot(timeline, host_snapshot(bounded).layers, "turn")
    assert disk.flush(30.0)
    assert disk.close(5.0)

    again = DiskTier(tmp_path / "kv", 1 << 30, b"one", floor_bytes=0)
    pages, snapshots = again.offers(timeline)
    layers = [make() for make in KINDS[kind]]
    parts = [(DiskRows(again, p.holder_id, p.start, p.end, layers), p.start, p.end) for p in pages]
    found = bounded_from_disk(again, snapshots[-1].snapshot_id, layers) if snapshots else None
    fresh = ModelState(layers)
    fresh.rebuild(0, parts, found)
    assert_same(fresh, state)
    feeders = [np.random.default_rng(9), np.random.default_rng(9)]
    for target, random in zip((fresh, state), feeders, strict=True):
        for layer in target.layers:
            feed(layer, 5, dtype, random)
    assert_same(fresh, state)
    again.close(5.0)


def test_copies_alias_nothing_that_is_written(dtype: Any) -> None:
    state = grown([HostKVLayer(), HostRecurrentLayer(*SHAPES)], 10, dtype)
    rows = state.rows(0, 0, 10)
    assert rows is not None
    host, before = host_rows(rows), [bits(a) for a in rows.arrays]
    bounded = state.snapshot()
    assert bounded is not None
    snapshot = host_snapshot(bounded)
    restored = bounded_state(snapshot, state.layers)
    layer: Any = state.layers[0]
    layer._keys.array[...] = 7.0
    part = restored.layers[1]
    assert part is not None and snapshot.layers[1] is not None
    assert not any(
        np.shares_memory(a, b) for a, b in zip(part.arrays, snapshot.layers[1].arrays, strict=True)
    )
    assert [bits(a) for a in host.arrays] == before


def test_a_snapshot_of_another_model_is_refused() -> None:
    state = grown([HostKVLayer(), HostRecurrentLayer(*SHAPES)], 3, mx.float32)
    bounded = state.snapshot()
    assert bounded is not None
    with pytest.raises(ValueError, match="2 layers"):
        bounded_state(host_snapshot(bounded), state.layers[:1])


def test_a_part_of_a_page_is_that_part(tmp_path: Path) -> None:
    state = grown([KVLayer(), KVLayer()], 30, mx.bfloat16)
    disk = DiskTier(tmp_path / "kv", 1 << 30, b"one", floor_bytes=0)
    found = [state.rows(i, 0, 30) for i in range(2)]
    host = tuple(host_rows(rows) for rows in found if rows is not None)
    timeline = Timeline.of(list(range(30)))
    assert disk.put_page(timeline, 0, host)
    pages, _ = disk.offers(Timeline.of([*range(20), 99, 98]))
    assert [(p.start, p.reach) for p in pages] == [(0, 20)]
    layers = [KVLayer(), KVLayer()]
    fresh = ModelState(layers)
    fresh.rebuild(0, [(DiskRows(disk, pages[0].holder_id, 0, 20, layers), 0, 20)])
    state.rewind(20)
    assert_same(fresh, state)
    disk.close(5.0)
