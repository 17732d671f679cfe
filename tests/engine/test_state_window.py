"""Layers that keep the last rows only, with buffers as long as they really are."""

import gc
import weakref
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4tui.engine.capacity import (
    ALIGNED_ROWS,
    MOVE_ROWS,
    SLACK_ROWS_MAX,
    grown_capacity,
    layer_capacity,
    slack_rows,
    window_capacity,
)
from ds4tui.engine.session import CHUNK_SIZES
from ds4tui.engine.state import HostWindowLayer, KVLayer, LayerBounded, ModelState, WindowLayer

HEADS, SIZE = 2, 4
ROW_BYTES = HEADS * 2 * SIZE * 4
KINDS = {"mlx": (WindowLayer, mx.array), "host": (HostWindowLayer, np.asarray)}
MIB = 2**20


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Any:
    return KINDS[request.param]


def rows(start: int, end: int) -> np.ndarray:
    """[heads, n, size], each of its position's own value."""
    positions = np.arange(start, end, dtype=np.float32)[None, :, None]
    return np.broadcast_to(positions, (HEADS, end - start, SIZE)).copy()


def feed(kind: Any, layer: Any, count: int, chunk: int = 512) -> None:
    """Rows behind those that are there; their queries must find what they see."""
    end = layer.length + count
    while layer.length < end:
        start, stop = layer.length, min(layer.length + chunk, end)
        given_rows = kind[1](rows(start, stop))
        found = layer.append(given_rows, given_rows)
        low = max(0, start + 1 - layer.window)
        for array in found:
            seen = np.asarray(array)[:, array.shape[1] - (stop - low) :]
            np.testing.assert_array_equal(seen, rows(low, stop))
    if isinstance(layer, WindowLayer):
        mx.eval(layer.buffers())


def last_rows(layer: Any) -> np.ndarray:
    """Of the values."""
    arrays = layer.bounded().arrays
    return np.asarray(arrays[1]) if arrays else np.zeros((HEADS, 0, SIZE))


def test_where_there_is_room_nothing_is_allocated(kind: Any) -> None:
    layer = kind[0](100)
    for _ in range(1500):
        had_room, before = layer.has_room(1), layer.nbytes
        feed(kind, layer, 1)
        assert layer.nbytes == before or not had_room
    assert layer.has_room(1)


@pytest.mark.parametrize("window", [1, 2, 128, 512, 1024])
def test_rewinds_within_the_slack_are_truncations_and_others_are_refused(
    kind: Any, window: int
) -> None:
    """At each length around two moves of the rows: as far back as promised, and not a row
    further than what is still there."""
    layer = kind[0](window)
    feed(kind, layer, window_capacity(window) - 40)
    for _ in range(40):
        feed(kind, layer, 1)
        assert layer.can_rewind(layer.length - slack_rows(window))
    feed(kind, layer, 2 * MOVE_ROWS)
    moved = layer.held_from
    assert moved > 0 or window == 1
    first_possible = next(n for n in range(1, layer.length) if layer.can_rewind(n))
    assert first_possible <= layer.length - slack_rows(window)
    if window > 1:
        assert first_possible - (window - 1) == moved
        with pytest.raises(ValueError, match=f"rows {moved:} to {layer.length}"):
            layer.rewind(first_possible - 1)
    assert not layer.can_rewind(layer.length + 1) and not layer.can_rewind(-1)
    layer.rewind(first_possible)
    assert not layer.can_rewind(first_possible + 1), "forgotten"
    np.testing.assert_array_equal(
        last_rows(layer), rows(first_possible - min(window - 1, first_possible), first_possible)
    )
    feed(kind, layer, 3 * MOVE_ROWS, chunk=100)
    layer.rewind(0)
    assert layer.length == layer.nbytes == 0
    feed(kind, layer, 20)


def test_a_short_sequence_goes_back_anywhere(kind: Any) -> None:
    """Nothing was dropped yet."""
    layer = kind[0](64)
    feed(kind, layer, window_capacity(64))
    assert all(layer.can_rewind(to) for to in range(layer.length + 1))
    layer.rewind(7)
    np.testing.assert_array_equal(last_rows(layer), rows(0, 7))


@pytest.mark.parametrize("chunk", [1, 63, 512, 1100, 3000])
def test_chunks_of_any_length_leave_buffers_of_their_length(kind: Any, chunk: int) -> None:
    """Longer ones than there is room for, too."""
    layer, window = kind[0](512), 512
    feed(kind, layer, 3300, chunk)
    assert layer.nbytes == window_capacity(window) * ROW_BYTES
    assert layer.can_rewind(3300 - slack_rows(window))
    np.testing.assert_array_equal(last_rows(layer), rows(3300 - 511, 3300))
    first = np.asarray(layer._buffers[1].view(0, layer.length - layer.base))
    held = first[:, layer.held_from - layer.base :]
    np.testing.assert_array_equal(held, rows(layer.held_from, 3300))
    assert layer.base % ALIGNED_ROWS == 0


@given(st.integers(1, 5000), st.integers(1, 100_000))
def test_buffers_are_bounded_and_predicted(window: int, length: int) -> None:
    most = window_capacity(window)
    assert layer_capacity(length, window) == min(grown_capacity(length), most)
    assert most >= window - 1 + slack_rows(window) + ALIGNED_ROWS - 1 + MOVE_ROWS
    assert most <= 1.25 * window + MOVE_ROWS + 2 * ALIGNED_ROWS
    assert slack_rows(window) <= SLACK_ROWS_MAX
    assert max(CHUNK_SIZES) <= MOVE_ROWS, "a chunk never needs more than there is room for"


@pytest.mark.parametrize("length", [1, 5, 511, 512, 700, 1216, 1217, 5000])
def test_a_window_is_put_back_to_the_bit(kind: Any, length: int) -> None:
    layer, other, more = kind[0](512), kind[0](512), kind[0](512)
    feed(kind, layer, length)
    bounded = layer.bounded()
    assert bounded.nbytes == layer.bounded_bytes == min(511, length) * ROW_BYTES
    feed(kind, more, 9000)
    for restored in (other, more):  # into nothing, and over other rows
        assert restored.can_restore(bounded, length)
        restored.restore(bounded, length)
        assert restored.nbytes <= layer_capacity(9000, 512) * ROW_BYTES
        np.testing.assert_array_equal(last_rows(restored), rows(max(0, length - 511), length))
        assert restored.can_rewind(length)
        assert restored.can_rewind(length - 1) == (length <= 511), "its first row is not there"
        feed(kind, restored, 1500, chunk=33)
    assert other.nbytes <= layer_capacity(length + 1500, 512) * ROW_BYTES


def test_what_is_no_window_of_that_length_is_refused(kind: Any) -> None:
    layer, other = kind[0](512), kind[0](512)
    feed(kind, layer, 600)
    feed(kind, other, 30)
    bounded = layer.bounded()
    for wrong, length in ((bounded, 510), (bounded, -1), (LayerBounded(()), 600)):
        assert not other.can_restore(wrong, length)
        with pytest.raises(ValueError, match="window of 512"):
            other.restore(wrong, length)
    np.testing.assert_array_equal(last_rows(other), rows(0, 30))
    with pytest.raises(TypeError):
        other.put(KVLayer().rows(0, 0))
    with pytest.raises(ValueError, match="at least one row"):
        kind[0](0)


# -- memory ------------------------------------------------------------------------------------

WIDE = (4, 256)  # heads, size


def wide_state(layers: int, length: int, window: int | None = 512) -> ModelState:
    state = ModelState(
        [KVLayer() if window is None else WindowLayer(window) for _ in range(layers)]
    )
    for start in range(0, length, 500):
        part = mx.zeros((WIDE[0], min(500, length - start), WIDE[1]))
        for layer in state.layers:
            layer.append(part, part)
        mx.eval([layer.buffers() for layer in state.layers])
    del part
    mx.clear_cache()
    return state


def settled_bytes() -> int:
    gc.collect()
    mx.clear_cache()
    return mx.get_active_memory()


def test_a_window_s_memory_stays_as_it_is_however_long_the_sequence() -> None:
    before = settled_bytes()
    state = wide_state(2, 1500)
    held, allocated = settled_bytes() - before, state.nbytes
    assert allocated == 2 * 2 * window_capacity(512) * WIDE[0] * WIDE[1] * 4
    assert abs(held - allocated) < MIB
    del state
    longer = wide_state(2, 6000)
    assert longer.nbytes == allocated and abs(settled_bytes() - before - allocated) < MIB


@pytest.mark.parametrize("window", [None, 512])
def test_what_is_copied_out_is_its_own_and_is_freed(window: int | None) -> None:
    """Its bytes are those that it says; writing after it copies no buffer, and no more is held
    when it is gone."""
    state = wide_state(2, 1500, window)
    before = settled_bytes()
    taken = state.snapshot() if window else state.copy_rows(0, 1500)
    assert taken is not None
    assert abs(settled_bytes() - before - taken.nbytes) < MIB
    one = mx.ones((WIDE[0], 1, WIDE[1]))
    mx.eval(one)
    mx.reset_peak_memory()
    for layer in state.layers:
        layer.append(one, one)
    mx.eval([layer.buffers() for layer in state.layers])
    assert mx.get_peak_memory() - before - taken.nbytes < MIB, "a shared buffer would be copied"
    dies = weakref.ref(taken.layers[0].arrays[0])
    del taken
    assert settled_bytes() - before < MIB and dies() is None


@pytest.mark.parametrize("window", [None, 512])
def test_a_rebuild_peaks_at_the_state_and_one_layer(window: int | None) -> None:
    source = wide_state(6, 1500, window)
    state, segment, snapshot = wide_state(6, 1000, window), source.copy_rows(0, 1500), None
    snapshot = source.snapshot()
    whole = source.nbytes
    del source
    before = settled_bytes() - state.nbytes
    mx.reset_peak_memory()
    state.rebuild(0, [(segment, 0, 1500)], snapshot)
    assert state.length == 1500 and state.nbytes <= whole
    assert mx.get_peak_memory() - before <= whole + whole / 6 + MIB
    assert abs(settled_bytes() - before - state.nbytes) < MIB


def test_all_is_freed_with_the_state() -> None:
    before = settled_bytes()
    state = wide_state(3, 3000)
    state.rewind(2900)
    snapshot = state.snapshot()
    assert snapshot is not None
    state.rewind(0)
    assert settled_bytes() - before <= snapshot.nbytes + MIB, "an empty state holds nothing"
    del state, snapshot
    assert settled_bytes() - before < MIB


@pytest.mark.parametrize(("place", "window"), [("layer", None), ("window", 512)])
def test_a_planted_view_of_a_live_buffer_is_seen(
    place: str, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"ds4tui.engine.state.{place}.own_copies"
    monkeypatch.setattr(name, lambda pairs: tuple(view for view, _ in pairs))
    with pytest.raises(AssertionError):
        test_what_is_copied_out_is_its_own_and_is_freed(window)
