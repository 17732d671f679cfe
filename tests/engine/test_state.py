"""Layer states and the state of a model; the numbers are those of engine/state/__init__.py."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.engine.capacity import BLOCK_ROWS, GROWTH_ROWS_MAX, grown_capacity
from ds4tui.engine.state import HostKVLayer, KVLayer, ModelState
from tests.scale import scaled

HEADS, KEY, VALUE = 2, 4, 3
MIB = 2**20


class Kind:
    """One storage of rows; `given` and `read` go from and to NumPy."""

    def __init__(self, layer: Callable[[], Any], given: Any, read: Any) -> None:
        self.layer, self.given, self.read = layer, given, read


KINDS = {
    "mlx": Kind(KVLayer, mx.array, np.asarray),
    "host": Kind(HostKVLayer, np.asarray, np.asarray),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def draw(random: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    return (
        random.standard_normal((HEADS, rows, KEY), np.float32),
        random.standard_normal((HEADS, rows, VALUE), np.float32),
    )


def append(kind: Kind, layer: Any, rows: tuple[np.ndarray, np.ndarray]) -> list[np.ndarray]:
    """All live keys and values after appending, as copies."""
    views = layer.append(kind.given(rows[0]), kind.given(rows[1]))
    return [np.array(kind.read(view)) for view in views]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 400)),
        st.tuples(st.just("rewind"), st.floats(0, 1)),
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=scaled(40), deadline=None)
@given(steps=steps, seed=st.integers(0, 99))
def test_live_rows_are_bit_for_bit_those_appended(
    name: str, steps: list[tuple[str, Any]], seed: int
) -> None:
    """(2), (4): any history of appends and truncations against two plain arrays."""
    kind, random = KINDS[name], np.random.default_rng(seed)
    layer, wanted = kind.layer(), [a[:, :0] for a in draw(random, 1)]
    for what, value in steps:
        if what == "append":
            rows = draw(random, value)
            wanted = [np.concatenate(p, axis=1) for p in zip(wanted, rows, strict=True)]
            ours = append(kind, layer, rows)
            assert [a.tobytes() for a in ours] == [a.tobytes() for a in wanted]
        else:
            to = int(value * layer.length)
            assert layer.can_rewind(to)
            layer.rewind(to)
            wanted = [a[:, :to] for a in wanted]
        assert layer.length == wanted[0].shape[1]


def test_rewind_beyond_what_was_reached_is_an_error(kind: Kind) -> None:
    """(4) Never clamp."""
    layer = kind.layer()
    append(kind, layer, draw(np.random.default_rng(0), 10))
    for to in (-1, 11, 300):
        assert not layer.can_rewind(to)
        with pytest.raises(ValueError, match="10 rows"):
            layer.rewind(to)
    assert layer.length == 10
    layer.rewind(4)
    with pytest.raises(ValueError):
        layer.rewind(5)


def test_room_is_told_as_it_is(kind: Kind) -> None:
    """Where it says that there is room, nothing is allocated; where not, something is."""
    layer, random = kind.layer(), np.random.default_rng(0)
    for _ in range(3 * BLOCK_ROWS):
        had_room, before = layer.has_room(1), layer.nbytes
        append(kind, layer, draw(random, 1))
        assert had_room == (layer.nbytes == before)


def test_nbytes_is_what_is_allocated(kind: Kind) -> None:
    """(5)"""
    layer, random = kind.layer(), np.random.default_rng(0)
    assert layer.nbytes == 0
    append(kind, layer, draw(random, 10))
    row = HEADS * (KEY + VALUE) * 4
    assert layer.nbytes == BLOCK_ROWS * row
    append(kind, layer, draw(random, BLOCK_ROWS))
    grown = layer.nbytes
    assert grown == grown_capacity(BLOCK_ROWS + 10) * row
    layer.rewind(3)
    assert layer.nbytes == grown, "a truncation frees nothing"
    layer.rewind(0)
    assert layer.nbytes == 0, "an empty layer holds nothing"


@given(st.integers(1, 2_000_000))
def test_capacity_holds_the_rows_with_modest_slack(rows: int) -> None:
    capacity = grown_capacity(rows)
    assert rows <= capacity < rows + min(rows // 8, GROWTH_ROWS_MAX) + BLOCK_ROWS
    assert capacity % BLOCK_ROWS == 0
    assert grown_capacity(rows + 1) >= capacity, "monotone, so a prediction is a bound"


def test_growing_is_amortised() -> None:
    copied, capacity = 0, 0
    for rows in range(1, 20_000):
        if rows > capacity:
            copied, capacity = copied + rows, grown_capacity(rows)
    assert copied < 10 * 20_000


def test_appending_in_place_copies_no_buffer() -> None:
    """A lingering reference to the buffer would make each write copy it whole."""
    layer = KVLayer()
    wide = [mx.zeros((8, 2000, 128)) for _ in range(2)]
    mx.eval(layer.append(*wide), layer.buffers())
    del wide
    one = [mx.ones((8, 1, 128)) for _ in range(2)]
    mx.eval(one)
    mx.reset_peak_memory()
    before, buffer = mx.get_active_memory(), layer.nbytes // 2
    for _ in range(5):
        layer.append(*one)
        mx.eval(layer.buffers())
    assert mx.get_peak_memory() - before < buffer / 4
    assert mx.get_active_memory() - before < buffer / 4


def test_growing_peaks_at_the_state_and_one_layer() -> None:
    layers = [KVLayer() for _ in range(6)]
    state = ModelState([*layers])
    rows = [mx.zeros((8, BLOCK_ROWS, 256)) for _ in range(2)]
    mx.eval(rows)
    for layer in layers:
        layer.append(*rows)
    mx.eval([layer.buffers() for layer in layers])
    mx.clear_cache()
    before = mx.get_active_memory() - state.nbytes
    mx.reset_peak_memory()
    for layer in layers:  # as a step does it: all layers, and only then the end of the step
        layer.append(*rows)
    mx.eval([layer.buffers() for layer in layers])
    layer_bytes = state.nbytes // len(layers)
    assert mx.get_peak_memory() - before <= state.nbytes + layer_bytes + MIB


class Window:
    """A layer that can only go back a little, as sliding windows will."""

    def __init__(self, length: int, slack: int) -> None:
        self.length, self.nbytes, self._slack = length, 8, slack

    def can_rewind(self, to: int) -> bool:
        return self.length - self._slack <= to <= self.length

    def rewind(self, to: int) -> None:
        assert self.can_rewind(to)
        self.length = to


def test_a_rewind_happens_in_all_layers_or_in_none(kind: Kind) -> None:
    """(3) The layer that refuses is asked before the first one changes."""
    full = kind.layer()
    append(kind, full, draw(np.random.default_rng(0), 20))
    state = ModelState([full, Window(20, slack=4)])
    assert state.can_rewind(16) and not state.can_rewind(15)
    with pytest.raises(ValueError):
        state.rewind(15)
    assert [layer.length for layer in state.layers] == [20, 20]
    state.rewind(16)
    assert state.length == 16
    assert state.nbytes == full.nbytes + 8


def test_uneven_layers_are_told() -> None:
    """(1) What a failed step leaves behind is not a length."""
    with pytest.raises(RuntimeError, match="failed step"):
        _ = ModelState([Window(3, 0), Window(4, 0)]).length


def full_states(kind: Kind, rows: int, seed: int = 0) -> ModelState:
    state, random = ModelState([kind.layer() for _ in range(3)]), np.random.default_rng(seed)
    for layer in state.layers:
        append(kind, layer, draw(random, rows))
    return state


def bits(state: Any, start: int, end: int) -> list[bytes]:
    found = [state.rows(i, start, end) for i in range(3)]
    return [np.asarray(array).tobytes() for rows in found for array in rows.arrays]


def test_a_segment_is_a_copy_and_answers_as_the_state_did(kind: Kind) -> None:
    """(6)"""
    state = full_states(kind, 50)
    wanted, part = bits(state, 10, 40), bits(state, 15, 20)
    segment = state.copy_rows(10, 40)
    assert segment.nbytes == state.rows_bytes(10, 40) == 3 * 30 * HEADS * (KEY + VALUE) * 4
    state.rewind(5)
    for layer in state.layers:
        append(kind, layer, draw(np.random.default_rng(9), 45))
    assert bits(segment, 10, 40) == wanted and bits(segment, 15, 20) == part
    for start, end in ((9, 20), (20, 41), (20, 19)):
        with pytest.raises(ValueError):
            segment.rows(0, start, end)
    assert not state.needs_snapshots and state.snapshot() is None


def test_a_state_is_rebuilt_from_kept_rows_segments_and_another_state(kind: Kind) -> None:
    state, other = full_states(kind, 300), full_states(kind, 500, seed=1)
    kept, end = bits(state, 0, 100), bits(other, 150, 500)
    segment, middle = state.copy_rows(100, 150), bits(state, 100, 150)
    state.rebuild(100, [(segment, 100, 150), (other, 150, 500)])
    assert state.length == 500 and other.length == 500
    assert (bits(state, 0, 100), bits(state, 100, 150)) == (kept, middle)
    assert bits(state, 150, 500) == end == bits(other, 150, 500)
    fresh = ModelState([kind.layer() for _ in range(3)])
    fresh.rebuild(0, [(state, 0, 500)])
    assert bits(fresh, 0, 500) == bits(state, 0, 500)
    assert fresh.nbytes == full_states(kind, 500).nbytes, "room is made once"


def test_a_rebuild_that_cannot_be_changes_nothing(kind: Kind) -> None:
    """(3)"""
    state, other = full_states(kind, 50), full_states(kind, 60, seed=1)
    before, segment = bits(state, 0, 50), other.copy_rows(20, 40)
    for keep, parts in (
        (51, []),
        (10, [(segment, 20, 40)]),
        (20, [(segment, 20, 41)]),
        (20, [(segment, 20, 30), (segment, 31, 40)]),
        (20, [(segment, 20, 40), (other, 40, 61)]),
        (20, [(state, 20, 50)]),
    ):
        with pytest.raises(ValueError):
            state.rebuild(keep, parts)
        assert bits(state, 0, 50) == before and state.length == 50
