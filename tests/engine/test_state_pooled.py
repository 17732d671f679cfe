"""Raw rows and pools of them, side by side, through random histories: what a step is given, what
segments and snapshots hold, and how far a rewind goes."""

from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.cache.kvarrays import Pooled
from ds4tui.engine import capacity
from ds4tui.engine.state import (
    BoundedState,
    LayerBounded,
    LayerRows,
    ModelState,
    Needed,
    PoolLayer,
    RawRowsLayer,
    RowSegment,
)
from tests.scale import scaled

SIZE, LARGE, SLACK = 4, 12, 20
KINDS = (Needed(last=5), Needed(pool=SIZE), Needed(pool=SIZE, before=True), Needed(pool=LARGE))


def small_buffers(patch: pytest.MonkeyPatch) -> None:
    for name, rows in (("MOVE_ROWS", 24), ("ALIGNED_ROWS", 4), ("BLOCK_ROWS", 8)):
        patch.setattr(capacity, name, rows)


def rows_of(ids: list[int], kind: int) -> np.ndarray:
    """[1, n, 2]: of each position its number."""
    return np.array([[[i + 1000 * kind, kind] for i in ids]], np.float32).reshape(1, -1, 2)


def pools_of(ids: list[int]) -> np.ndarray:
    """[1, P, 3]: of each whole pool what its rows say."""
    whole = len(ids) // SIZE * SIZE
    sums = np.array(ids[:whole], np.float32).reshape(-1, SIZE).sum(axis=1)
    return np.repeat(sums[None, :, None], 3, axis=2)


def new_state() -> ModelState:
    return ModelState([RawRowsLayer(*KINDS, slack=SLACK), PoolLayer(SIZE, 1)])


def parts(state: ModelState) -> tuple[RawRowsLayer, PoolLayer]:
    raw, pools = state.layers
    assert isinstance(raw, RawRowsLayer) and isinstance(pools, PoolLayer)
    return raw, pools


@dataclass
class Judge:
    """Plays what is asked for, and compares all with the ids that were fed."""

    state: ModelState = field(default_factory=new_state)
    ids: list[int] = field(default_factory=list)
    kept: list[tuple[list[int], RowSegment, BoundedState | None]] = field(default_factory=list)
    fed: int = 0

    def feed(self, count: int) -> None:
        raw, pools = parts(self.state)
        first = len(self.ids)
        new = list(range(self.fed, self.fed + count))
        self.fed, self.ids = self.fed + count, self.ids + new
        given_rows = (mx.array(rows_of(new, kind)) for kind in range(len(KINDS)))
        views = raw.append(*given_rows)
        for kind, (view, needed) in enumerate(zip(views, KINDS, strict=True)):
            wanted = rows_of(self.ids[first - needed.at(first) :], kind)
            np.testing.assert_array_equal(np.asarray(view), wanted)
        whole = mx.array(pools_of(self.ids)[:, first // SIZE :])
        (held,) = pools.append(count, whole)
        np.testing.assert_array_equal(np.asarray(held), pools_of(self.ids))
        mx.eval(raw.buffers(), pools.buffers())

    def rewind(self, share: float) -> None:
        to = round(share * len(self.ids))
        if self.state.can_rewind(to):
            self.state.rewind(to)
            self.ids = self.ids[:to]
        else:
            with pytest.raises(ValueError, match="refuses"):
                self.state.rewind(to)

    def put_away(self, share: float) -> None:
        """In two segments, cut anywhere."""
        end = len(self.ids)
        snapshot = self.state.snapshot()
        assert snapshot is not None and snapshot.nbytes == self.state.snapshot_bytes
        self.kept.append((self.ids, self.state.copy_rows(0, end), snapshot))

    def restore(self, share: float) -> None:
        if not self.kept:
            return
        self.ids, segment, snapshot = self.kept[int(share * (len(self.kept) - 1))]
        middle, end = round(share * len(self.ids)), len(self.ids)
        self.state = new_state()
        self.state.rebuild(0, [(segment, 0, middle), (segment, middle, end)], snapshot)
        assert self.state.length == end


steps = st.one_of(
    st.tuples(st.just("feed"), st.sampled_from([1, 1, 2, 3, 7, 13, 40, 90])),
    st.tuples(st.sampled_from(["rewind", "put_away", "restore"]), st.floats(0, 1)),
    st.tuples(st.just("rewind"), st.floats(0.9, 1)),
)


@settings(max_examples=scaled(60), deadline=None)
@given(st.lists(steps, max_size=30))
def test_any_history_leaves_what_its_ids_say(history: list[tuple[str, float]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        small_buffers(patch)
        judge = Judge()
        for name, number in [*history, ("feed", 3), ("feed", 14)]:
            getattr(judge, name)(number)


@pytest.mark.parametrize("chunk", [1, 7, 90])
def test_a_rewind_within_the_slack_needs_no_snapshot(chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        small_buffers(patch)
        judge = Judge()
        while len(judge.ids) < 300:
            judge.feed(chunk)
            if len(judge.ids) > 60:
                assert all(judge.state.can_rewind(len(judge.ids) - i) for i in range(SLACK + 1))
        assert not judge.state.can_rewind(100)
        assert parts(judge.state)[0].nbytes <= len(KINDS) * 2 * 4 * 90


def test_the_founding_tail_is_rewound_at_once() -> None:
    """340,263 tokens were held, of which 340,144 are in a prompt of 340,551: 407 are left."""
    state = ModelState([RawRowsLayer(Needed(last=127), Needed(pool=128)), PoolLayer(128, 1)])
    raw, pools = state.layers
    assert isinstance(raw, RawRowsLayer) and isinstance(pools, PoolLayer)
    start, live, common, prompt = 339_968, 340_263, 340_144, 340_551
    held = Pooled(128, 0, start)
    state.rebuild(
        0,
        [
            (
                RowSegment(
                    0, start, (None, LayerRows((mx.zeros((1, held.count, 2)),), (1,), held))
                ),
                0,
                start,
            )
        ],
        BoundedState(start, (LayerBounded((mx.zeros((1, 127, 2)), mx.zeros((1, 0, 2)))), None)),
    )
    rows = mx.arange(start, live).astype(mx.float32)[None, :, None]
    raw.append(mx.repeat(rows, 2, axis=2), mx.repeat(rows, 2, axis=2))
    pools.append(live - start, mx.zeros((1, live // 128 - start // 128, 2)))
    assert state.can_rewind(common)
    state.rewind(common)
    assert (state.length, prompt - state.length) == (common, 407)
    window, own = raw.append(mx.zeros((1, 1, 2)), mx.zeros((1, 1, 2)))
    assert window[0, :-1, 0].tolist() == list(range(common - 127, common))
    assert own[0, :-1, 0].tolist() == list(range(common // 128 * 128, common))


def test_pools_that_do_not_follow_are_refused() -> None:
    pools = PoolLayer(4, 1)
    with pytest.raises(ValueError, match="do not follow"):
        pools.put(LayerRows((mx.zeros((1, 1, 2)),), (1,), Pooled(4, 4, 8)))
    with pytest.raises(ValueError, match="end 2 pools"):
        pools.append(9, mx.zeros((1, 1, 2)))
    assert pools.length == 0


def test_a_snapshot_of_another_position_is_refused() -> None:
    judge = Judge()
    judge.feed(30)
    raw, bounded = parts(judge.state)[0], parts(judge.state)[0].bounded()
    assert raw.can_restore(bounded, 30) and not raw.can_restore(bounded, 29)
    with pytest.raises(ValueError, match="not the rows"):
        raw.restore(bounded, 29)
