"""DeepSeek V4 at every chunk border, after rewinds, and with faults that must be seen."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from ds4tui.cache.kvstore import DiskTier
from ds4tui.cache.timeline import Timeline
from ds4tui.engine.disk_arrays import host_rows, host_snapshot
from ds4tui.engine.disk_rows import DiskRows, bounded_from_disk
from ds4tui.engine.models import deepseek4
from ds4tui.engine.models.registry import Model, load_model
from ds4tui.engine.models.rows import Rows
from ds4tui.engine.state import LayerBounded, PoolLayer, RawRowsLayer
from ds4tui.engine.state.buffers import DeviceBuffer
from ds4tui.errors import GGUFError
from ds4tui.kernels import compressors, window_pools
from ds4tui.kernels.compressors import Compressor
from ds4tui.kernels.hyper_streams import HyperConnection
from ds4tui.kernels.softplus_routing import SoftplusRouting, TokenRouting
from tests.engine.changed_gguf import changed
from tests.golden.files import golden, golden_path
from tests.parity.ours import Settings, load, walk

NAME, TOLERANCE = "deepseek4", 1e-4
IDS, WANTED = golden(NAME)["ids"], golden(NAME)["logits"]
# From a row up to which all is evaluated at once, the borders behind it.
BORDERS = {0: range(1, 14), 123: range(124, 132), 251: range(253, 259)}


@cache
def loaded() -> Model:
    return load(golden_path(NAME))


def rows_of(start: int, end: int) -> Rows:
    return Rows.of_ids(IDS[start:end], start, "all")


@pytest.mark.parametrize("base", BORDERS)
def test_every_border_of_two_chunks_gives_the_golden_logits(base: int) -> None:
    """A chunk may end in any row of a pool of 4 or of 128, of the first ones and of later ones."""
    model, state = loaded(), loaded().new_state()
    if base:
        model.forward(rows_of(0, base), state)
    for border in BORDERS[base]:
        state.rewind(base)
        end = min(border + 12, len(IDS))
        first = model.forward(rows_of(base, border), state)
        second = model.forward(rows_of(border, end), state)
        got = np.concatenate([np.asarray(first), np.asarray(second)])
        np.testing.assert_allclose(got, WANTED[base:end], atol=TOLERANCE, err_msg=str(border))


def test_many_borders_give_the_golden_logits() -> None:
    """Chunks of every size up to 9, in turn: pools are left open in every way, often."""
    model, state, parts, start, size = loaded(), loaded().new_state(), [], 0, 1
    while start < len(IDS):
        end = min(start + size, len(IDS))
        parts.append(np.asarray(model.forward(rows_of(start, end), state)))
        start, size = end, size % 9 + 1
    np.testing.assert_allclose(np.concatenate(parts), WANTED, atol=TOLERANCE)


@pytest.mark.parametrize("to", [1, 3, 4, 5, 127, 128, 129, 131, 200])
def test_a_rewind_to_any_row_is_bit_for_bit(to: int) -> None:
    model, state = loaded(), loaded().new_state()
    model.forward(rows_of(0, to), state)
    once = np.array(model.forward(rows_of(to, to + 40), state))
    model.forward(Rows.of_ids(IDS[::-1][:60].copy(), to + 40), state)
    state.rewind(to)
    model.forward(Rows.of_ids(IDS[::-1][:7].copy(), to), state)
    state.rewind(to)
    again = np.array(model.forward(rows_of(to, to + 40), state))
    np.testing.assert_array_equal(again, once)


# -- faults ------------------------------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]


def pools_forget_the_one_before(patch: pytest.MonkeyPatch) -> None:
    """What a published implementation does at each call: the first pool of a chunk has none."""
    pooled = Compressor.pooled

    def forgetful(self: Compressor, first: int, own: mx.array, *before: mx.array) -> mx.array:
        if not first or not before:
            return pooled(self, first, own, *before)
        rows = before[0]
        lost = mx.full((1, self.size, rows.shape[-1]), -1e30)
        return pooled(self, first, own, mx.concatenate([lost, rows[:, self.size :]], axis=1))

    patch.setattr(Compressor, "pooled", forgetful)


def a_pool_is_written_one_late(patch: pytest.MonkeyPatch) -> None:
    """As where a rewind leaves the number of pools as it was."""
    write = DeviceBuffer.write

    def late(self: DeviceBuffer, rows: mx.array, at: int) -> None:
        write(self, rows, min(at + 1, self.capacity - rows.shape[1]))

    patch.setattr(PoolLayer, "_write", shifted(PoolLayer._write, late))


def shifted(of: Any, write: Any) -> Any:
    """`of` with another DeviceBuffer.write."""

    def changed_write(self: Any, *rest: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DeviceBuffer, "write", write)
            of(self, *rest)

    return changed_write


def raw_rows_are_off_by_one(patch: pytest.MonkeyPatch) -> None:
    append = RawRowsLayer.append

    def shifted_rows(self: RawRowsLayer, *rows: mx.array) -> tuple[mx.array, ...]:
        return tuple(mx.roll(view, 1, axis=1) for view in append(self, *rows))

    patch.setattr(RawRowsLayer, "append", shifted_rows)


def the_open_pool_is_stale(patch: pytest.MonkeyPatch) -> None:
    """After a rewind the rows of a pool are those that were there before, not the new ones."""
    append = RawRowsLayer.append

    def stale(self: RawRowsLayer, *rows: mx.array) -> tuple[mx.array, ...]:
        first, *views = append(self, *rows)
        count = rows[0].shape[1]
        return first, *(
            mx.concatenate([mx.roll(v[:, :-count], 1, axis=1), v[:, -count:]], axis=1)
            if v.shape[1] > count
            else v
            for v in views
        )

    patch.setattr(RawRowsLayer, "append", stale)


def a_snapshot_is_one_row_late(patch: pytest.MonkeyPatch) -> None:
    bounded = RawRowsLayer.bounded

    def late(self: RawRowsLayer) -> LayerBounded:
        arrays = bounded(self).arrays
        return LayerBounded(tuple(mx.roll(a, 1, axis=1) for a in arrays))

    patch.setattr(RawRowsLayer, "bounded", late)


def a_pool_is_seen_one_row_early(patch: pytest.MonkeyPatch) -> None:
    whole = window_pools.whole_pools
    patch.setattr(window_pools, "whole_pools", lambda first, n, size: whole(first + 1, n, size))


def pools_turn_as_their_neighbours(patch: pytest.MonkeyPatch) -> None:
    turned_end = compressors.turned_end

    def late(x: mx.array, cosines: Any, backwards: bool = False) -> mx.array:
        return turned_end(x, tuple(mx.roll(part, 1, axis=0) for part in cosines), backwards)

    patch.setattr(compressors, "turned_end", late)


def the_window_is_a_row_too_long(patch: pytest.MonkeyPatch) -> None:
    attend = window_pools.attend_window
    patch.setattr(
        window_pools,
        "attend_window",
        lambda q, rows, sinks, scale, first, window, seen: attend(
            q, rows, sinks, scale, first, window + 1, seen
        ),
    )


def values_stay_turned(patch: pytest.MonkeyPatch) -> None:
    turned_end = window_pools.turned_end

    def forward(x: mx.array, cosines: Any, backwards: bool = False) -> mx.array:
        return x if backwards else turned_end(x, cosines)

    patch.setattr(window_pools, "turned_end", forward)


def there_are_no_sinks(patch: pytest.MonkeyPatch) -> None:
    attend = window_pools.attend_window
    patch.setattr(
        window_pools,
        "attend_window",
        lambda q, rows, sinks, *rest: attend(q, rows, sinks - 1e9, *rest),
    )


def one_pool_fewer_is_chosen(patch: pytest.MonkeyPatch) -> None:
    chosen = window_pools.chosen_pools
    patch.setattr(
        window_pools, "chosen_pools", lambda s, first, size, kept: chosen(s, first, size, kept - 1)
    )


def streams_are_mixed_the_other_way_round(patch: pytest.MonkeyPatch) -> None:
    balanced = HyperConnection._balanced
    patch.setattr(
        HyperConnection, "_balanced", lambda self, comb: balanced(self, comb).swapaxes(1, 2)
    )


def the_bias_is_in_the_shares(patch: pytest.MonkeyPatch) -> None:
    def biased(self: SoftplusRouting, scores: mx.array) -> tuple[mx.array, mx.array]:
        weights = mx.sqrt(mx.logaddexp(scores, mx.zeros_like(scores))) + self.bias
        chosen = mx.argpartition(-weights, self.used - 1, axis=-1)[:, : self.used]
        shares = mx.take_along_axis(weights, chosen, axis=-1)
        return chosen, shares / shares.sum(axis=-1, keepdims=True) * self.factor

    patch.setattr(SoftplusRouting, "__call__", biased)


def experts_are_those_of_the_token_before(patch: pytest.MonkeyPatch) -> None:
    route = TokenRouting.__call__

    def late(self: TokenRouting, scores: mx.array) -> tuple[mx.array, mx.array]:
        assert self.ids is not None
        self.ids = np.roll(self.ids, 1)
        return route(self, scores)

    patch.setattr(TokenRouting, "__call__", late)


def all_turn_by_the_same_base(patch: pytest.MonkeyPatch) -> None:
    rotations = deepseek4._rotations
    patch.setattr(deepseek4, "_rotations", lambda gguf: (rotations(gguf)[1],) * 2)


SEEN_WHOLE: list[Patch] = [
    a_pool_is_seen_one_row_early,
    pools_turn_as_their_neighbours,
    the_window_is_a_row_too_long,
    values_stay_turned,
    there_are_no_sinks,
    one_pool_fewer_is_chosen,
    streams_are_mixed_the_other_way_round,
    the_bias_is_in_the_shares,
    experts_are_those_of_the_token_before,
    all_turn_by_the_same_base,
]


@pytest.mark.parametrize("fault", SEEN_WHOLE, ids=lambda fault: fault.__name__)
def test_a_fault_is_seen(fault: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS4TUI_KERNELS", "reference")
    fault(monkeypatch)
    assert np.abs(walk(load(golden_path(NAME)), IDS) - WANTED).max() > 100 * TOLERANCE


def test_pools_that_forget_the_one_before_are_seen_in_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pools_forget_the_one_before(monkeypatch)
    assert np.abs(walk(loaded(), IDS, "chunked") - WANTED).max() > 100 * TOLERANCE


STATE_FAULTS: list[Patch] = [
    a_pool_is_written_one_late,
    raw_rows_are_off_by_one,
    the_open_pool_is_stale,
    a_snapshot_is_one_row_late,
]


def restored(to: int, end: int) -> np.ndarray:
    """Logits of rows `to` to `end` of a state that was put away at `to`, in another one."""
    model, state, other = loaded(), loaded().new_state(), loaded().new_state()
    for start in range(0, to, 50):
        model.forward(rows_of(start, min(start + 50, to)), state)
    snapshot, rows = state.snapshot(), state.copy_rows(0, to)
    other.rebuild(0, [(rows, 0, to)], snapshot)
    return np.asarray(model.forward(rows_of(to, end), other))


@pytest.mark.parametrize("to", [1, 4, 6, 127, 128, 130, 257])
def test_what_was_put_away_goes_on_with_the_golden_logits(to: int) -> None:
    np.testing.assert_allclose(restored(to, to + 12), WANTED[to : to + 12], atol=TOLERANCE)


@pytest.mark.parametrize("to", [3, 128, 130])
def test_what_comes_back_from_disk_goes_on_with_the_same_bits(to: int, tmp_path: Path) -> None:
    """From two pages, of which none or one may hold a whole pool of 128, and a snapshot."""
    model, state, other = loaded(), loaded().new_state(), loaded().new_state()
    model.forward(rows_of(0, to), state)
    timeline, start = Timeline.of(IDS[:to]), 0
    tier = DiskTier(tmp_path, 64 << 20, b"model", floor_bytes=0)
    for end in (to // 3, to):
        rows = [layer.rows(start, end) for layer in state.layers]
        page = [None if held is None else host_rows(held) for held in rows]
        assert tier.put_page(timeline.prefix(end), start, page)
        start = end
    snapshot = state.snapshot()
    assert snapshot is not None
    assert tier.put_snapshot(timeline, host_snapshot(snapshot).layers, "turn")
    assert tier.flush(60)
    held = {(e.kind, e.start, e.end): e.holder_id for e in tier.entries()}
    parts = [
        (DiskRows(tier, held["page", low, high], low, high, other.layers), low, high)
        for low, high in ((0, to // 3), (to // 3, to))
    ]
    bounded = bounded_from_disk(tier, held["snapshot", to, to], other.layers)
    other.rebuild(0, parts, bounded)
    assert tier.close(60)
    got = np.asarray(model.forward(rows_of(to, to + 12), other))
    np.testing.assert_array_equal(got, np.asarray(model.forward(rows_of(to, to + 12), state)))
    np.testing.assert_allclose(got, WANTED[to : to + 12], atol=TOLERANCE)


@pytest.mark.parametrize("fault", STATE_FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_of_the_state_is_seen(fault: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    assert np.abs(restored(131, 270) - WANTED[131:270]).max() > 100 * TOLERANCE


def test_a_snapshot_is_smallest_where_pools_end() -> None:
    """Beside the window, of a pool of 4 the rows of the one before; of one of 128 none."""
    model, state, sizes = loaded(), loaded().new_state(), []
    for start, end in ((0, 127), (127, 128), (128, 129)):
        model.forward(rows_of(start, end), state)
        snapshot = state.snapshot()
        assert snapshot is not None
        assert snapshot.nbytes == state.snapshot_bytes
        sizes.append(snapshot.nbytes)
    assert sizes[1] < sizes[2] < sizes[0]


# -- what is not read --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"attention.compress_ratios": [0, 0, 8, 128, 4]}, "pools of 8 rows are not read"),
        ({"attention.compress_ratios": [0, 0]}, "does not tell of all blocks"),
        ({"expert_gating_func": 2}, "routing of kind 2"),
        ({"attention.output_group_count": 3}, "4 heads in 3 groups"),
        ({"hyper_connection.count": 0}, "hyper_connection.count is 0"),
    ],
)
def test_what_is_not_read_is_refused_in_words(
    keys: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with changed(NAME, tmp_path / "x.gguf", keys) as file, pytest.raises(GGUFError, match=words):
        load_model(file, Settings())


def test_a_table_of_experts_that_are_not_there_is_refused(tmp_path: Path) -> None:
    table = {"blk.0.ffn_gate_tid2eid.weight": np.full((288, 2), 8, np.int32)}
    with (
        changed(NAME, tmp_path / "x.gguf", tensors=table) as file,
        pytest.raises(GGUFError, match="names experts that are not there"),
    ):
        load_model(file, Settings())


def test_rows_without_ids_are_refused() -> None:
    rows = Rows(None, mx.zeros((3, 64)), np.arange(3, dtype=np.int32))
    with pytest.raises(ValueError, match="rows need them"):
        loaded().forward(rows, loaded().new_state())
