"""The session: state machine, exactness on random histories, planted faults, refusals."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.cache.plan import PlanKind
from ds4tui.cache.timeline import Timeline
from ds4tui.engine.models.rows import Rows
from ds4tui.engine.pieces import Pieces
from ds4tui.engine.putting_away import Branch
from ds4tui.engine.session import Prefill, Session, SessionState, chunk_rows
from ds4tui.engine.state import ModelState
from ds4tui.errors import ContextOverflow, EngineError
from tests.cache.pictures import span, with_images
from tests.engine.histories import FakeRig, Judge, drain, every_kind, histories
from tests.fake_model import FakeModel
from tests.fake_state import FakeLayer, RecurrentLayer, WindowLayer
from tests.scale import scaled


def ready(ids: list[int], **model_arguments: Any) -> tuple[Session, FakeModel]:
    model = FakeModel(**model_arguments)
    session = Session(model, (8, 4, 2))
    drain(session.sync(Timeline.of(ids)))
    model.chunks.clear()
    return session, model


RIGS = {
    "append-only": FakeRig(),
    "recurrent": FakeRig(layer_types=(FakeLayer, RecurrentLayer)),
    "window": FakeRig(layer_types=(WindowLayer, FakeLayer)),
    "all kinds": FakeRig(layer_types=(RecurrentLayer, WindowLayer, FakeLayer)),
    "bounded only": FakeRig(layer_types=(RecurrentLayer, RecurrentLayer)),
}
by_kind = pytest.mark.parametrize("rig", RIGS.values(), ids=RIGS)


@by_kind
@given(history=histories)
@settings(max_examples=scaled(30), deadline=None)
def test_whatever_happened_before_the_logits_are_those_of_a_cold_run(
    rig: FakeRig, history: list
) -> None:
    Judge(rig).play(history)


@by_kind
@given(history=histories, budget_bytes=st.sampled_from([0, 200, 800, 3000]))
@settings(max_examples=scaled(25), deadline=None)
def test_with_little_memory_and_several_sessions_they_are_too(
    rig: FakeRig, history: list, budget_bytes: int
) -> None:
    Judge(rig, sessions=2, budget_bytes=budget_bytes).play(history)


class KeepsOneTooMany(FakeLayer):
    def rewind(self, to: int) -> None:
        del self.held[to + 1 :]


class DropsTheFirst(FakeLayer):
    def rewind(self, to: int) -> None:
        self.held[:] = self.held[1 : to + 1]


class StaleLength(FakeLayer):
    """Goes back in its length only: new rows come after the old ones that are still there."""

    forgotten = 0

    @property
    def length(self) -> int:
        return len(self.held) - self.forgotten

    def rewind(self, to: int) -> None:
        self.forgotten = len(self.held) - to


class FeedsTheLastTokenTwice(Session):
    """Takes a wholly resident prompt for one that only lacks its last token."""

    def _execute(self, plan: Any, wanted: Timeline, outline: Any) -> None:
        super()._execute(plan, wanted, outline)
        if plan.held >= plan.prompt and plan.kept:
            rows = Rows(wanted.ids[-1:], None, np.array([plan.kept]), (), "none")
            self._model.forward(rows, self._state)

    def _expect_rows(self, count: int) -> None:
        pass


class CreditsBeforeEvaluating(Session):
    def _evaluate(self, wanted: Timeline, end: int, logits: Any) -> Any:
        start = self._timeline
        try:
            return super()._evaluate(wanted, end, logits)
        except Exception:
            self._state = self._model.new_state()
            drain(Session.sync(self, start)) if len(start) else None
            self._timeline, self._name, self._prefill = wanted.prefix(end), SessionState.READY, None
            raise


class UsesWhatFailed(Session):
    def poison(self, reason: str) -> None:
        self._prefill = None
        self._name = SessionState.READY


class KeepsAnotherBranch(Session):
    """Cuts one row too few at a fork and takes it for the new one."""

    def _execute(self, plan: Any, wanted: Timeline, outline: Any) -> None:
        super()._execute(plan, wanted, outline)
        if plan.kind is PlanKind.REWIND:
            first = self._state.layers[0]  # type: ignore[union-attr]
            first.held[-1] = (first.held[-1][0] ^ 1, first.held[-1][1])


class SnapshotsLate(Session):
    """Its snapshots are of one token more than they say."""

    def _snapshot(self, point: Any) -> None:
        if self._state is not None and len(self._timeline) > 1:
            before = self._timeline.prefix(len(self._timeline) - 1)
            late = replace(self._state.snapshot(), position=len(before))
            self._memory.add_snapshot(before, late, late.nbytes, point)


class Shifted:
    """Rows of a holder from one position before those that were asked for."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def rows(self, layer: int, start: int, end: int) -> Any:
        return self.source.rows(layer, start - (start > 0), end - (start > 0))


class CopiesFromTheWrongPlace(Session):
    def _look_up(self, plan: Any) -> Pieces:
        pieces = super()._look_up(plan)
        parts = tuple((Shifted(source), start, end) for source, start, end in pieces.parts)
        return Pieces(parts, pieces.bounded)


class GoesOnWithAnotherBranch(Session):
    """Takes the longest parked state for the one that the plan names."""

    def _taken_base(self, plan: Any) -> Branch:
        if plan.base_id is None:
            return super()._taken_base(plan)
        offers = [self._memory.offers(b).rows for b in self._branches if len(b)]
        parked = {held for rows in offers for held in rows if held.kind == "parked"}
        longest = max(parked, key=lambda held: held.end)
        return super()._taken_base(replace(plan, base_id=longest.holder_id))

    def _execute(self, plan: Any, wanted: Timeline, outline: Any) -> None:
        self._branches = [*getattr(self, "_branches", []), self._timeline]
        super()._execute(plan, wanted, outline)


class SnapshotOfAnotherBranch(Session):
    """Sets the bounded part from any snapshot that stands at the right place."""

    taken: tuple[Any, ...] = ()

    def _snapshot(self, point: Any) -> None:
        super()._snapshot(point)
        if self._state is not None and len(self._timeline):
            self.taken = (*self.taken, self._state.snapshot())

    def _look_up(self, plan: Any) -> Pieces:
        pieces = super()._look_up(plan)
        fitting = [b for b in self.taken if pieces.bounded and b.position == plan.kept]
        return Pieces(pieces.parts, fitting[0] if fitting else pieces.bounded)


@pytest.mark.parametrize(
    "rig",
    [
        FakeRig(SnapshotsLate, layer_types=(WindowLayer, FakeLayer)),
        FakeRig(CopiesFromTheWrongPlace),
        FakeRig(CopiesFromTheWrongPlace, layer_types=(FakeLayer, RecurrentLayer)),
        FakeRig(GoesOnWithAnotherBranch),
        FakeRig(GoesOnWithAnotherBranch, layer_types=(FakeLayer, WindowLayer)),
        FakeRig(SnapshotOfAnotherBranch, layer_types=(FakeLayer, RecurrentLayer)),
        FakeRig(FeedsTheLastTokenTwice, layer_types=(FakeLayer, RecurrentLayer)),
        FakeRig(CreditsBeforeEvaluating, layer_types=(FakeLayer, WindowLayer)),
        FakeRig(layer_types=(KeepsOneTooMany, KeepsOneTooMany)),
        FakeRig(layer_types=(DropsTheFirst, DropsTheFirst)),
        FakeRig(layer_types=(StaleLength, StaleLength)),
        FakeRig(FeedsTheLastTokenTwice),
        FakeRig(CreditsBeforeEvaluating),
        FakeRig(UsesWhatFailed),
        FakeRig(KeepsAnotherBranch),
    ],
    ids=lambda rig: rig.name,
)
def test_planted_faults_are_caught(rig: FakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge's own test: without the debug assertions, it sees each fault by itself."""
    monkeypatch.delenv("DS4TUI_DEBUG")
    caught = 0
    for history in every_kind():
        try:
            Judge(rig).play(history)
        except (AssertionError, EngineError, RuntimeError, ValueError):
            caught += 1
    assert caught > 0


@by_kind
def test_the_faultless_rig_survives_what_catches_the_faults(rig: FakeRig) -> None:
    for history in every_kind():
        Judge(rig).play(history)
        Judge(rig, sessions=3).play(history)


def test_the_states_and_what_leads_to_them() -> None:
    model = FakeModel()
    session = Session(model, (4,))
    assert session.state_name is SessionState.EMPTY
    prefill = session.sync(Timeline.of(range(10)))
    assert session.state_name is SessionState.PREFILLING
    prefill.close()
    assert session.state_name is SessionState.EMPTY
    prefill = session.sync(Timeline.of(range(10)))
    prefill.step(100)
    assert session.state_name is SessionState.PREFILLING
    prefill.close()
    assert session.state_name is SessionState.READY
    assert len(session.timeline) == 4
    drain(session.sync(Timeline.of(range(10))))
    assert session.state_name is SessionState.READY
    session.append(5)
    session.append(6)
    assert session.state_name is SessionState.DECODING
    session.sync(Timeline.of(range(3)))
    assert session.state_name is SessionState.PREFILLING
    session.poison("as a test")
    assert session.state_name is SessionState.POISONED
    session.sync(Timeline.of(range(3)))
    assert session.state_name is SessionState.PREFILLING


def test_a_wholly_resident_prompt_costs_one_token() -> None:
    for wanted in (list(range(20)), list(range(11))):
        session, model = ready(list(range(20)))
        plan = session.plan(Timeline.of(wanted))
        drain(session.sync(Timeline.of(wanted), plan))
        assert model.chunks == [1]
        assert plan.kept == len(wanted) - 1


def test_a_fork_evaluates_only_what_is_new() -> None:
    session, model = ready(list(range(20)))
    drain(session.sync(Timeline.of([*range(15), 30, 31, 32])))
    assert model.chunks == [2, 1]


@pytest.mark.parametrize(
    ("rows", "chunks"),
    [
        (1, [1]),
        (2, [1, 1]),
        (3, [2, 1]),
        (9, [8, 1]),
        (10, [8, 1, 1]),
        (32, [8, 8, 8, 4, 2, 1, 1]),
    ],
)
def test_chunks_are_of_fixed_sizes_and_the_last_token_is_alone(
    rows: int, chunks: list[int]
) -> None:
    model = FakeModel()
    drain(Session(model, (8, 4, 2)).sync(Timeline.of(range(rows))))
    assert model.chunks == chunks


def test_chunk_rows() -> None:
    sizes = (512, 128, 32)
    assert chunk_rows(2000, 10_000, sizes) == 512
    assert chunk_rows(2000, 200, sizes) == 128
    assert chunk_rows(500, 10_000, sizes) == 128
    assert chunk_rows(31, 10_000, sizes) == 31
    assert chunk_rows(2000, 7, sizes) == 7
    assert chunk_rows(2000, 0, sizes) == 1


def test_images_are_never_cut() -> None:
    image = span(0, rows=7)
    wanted = with_images(1, 2, 3, image, 4, 5, image)
    model = FakeModel()
    prefill = Session(model, (4, 2)).sync(wanted)
    ends = []
    while not prefill.finished:
        prefill.step(4)
        ends.append(prefill.done)
    # The first chunk stops before the image, the image goes whole; so does the one at the end.
    assert ends == [3, 10, 12, 19]


class Spy(FakeModel):
    """Keeps the rows of every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def forward(self, rows: Any, state: Any) -> Any:
        self.seen.append(rows)
        return super().forward(rows, state)


def test_rows_say_positions_images_and_which_logits() -> None:
    model = Spy()
    image = span(0, rows=3)
    wanted = with_images(1, image, 2, 3)
    session = Session(model, (4, 2))
    drain(session.sync(wanted))
    session.append(9)
    assert [rows.positions.tolist() for rows in model.seen] == [[0, 1, 2, 3], [4], [5], [6]]
    assert [len(rows.spans) for rows in model.seen] == [1, 0, 0, 0]
    assert [rows.logits for rows in model.seen] == ["none", "none", "last", "last"]
    assert model.seen[0].positions.dtype == np.int32


def test_a_failed_step_poisons_and_the_next_sync_rebuilds_with_that_reason() -> None:
    session, model = ready(list(range(10)))

    def fail(rows: Any) -> None:
        raise RuntimeError("the device is gone")

    model.before_forward = fail
    with pytest.raises(RuntimeError, match="gone"):
        session.append(3)
    assert session.state_name is SessionState.POISONED
    assert len(session.timeline) == session.kv_bytes == 0
    model.before_forward = lambda rows: None
    plan = session.plan(Timeline.of(range(10)))
    assert plan.kind is PlanKind.COLD
    assert plan.reason == (
        "the state was given up (evaluating tokens failed: RuntimeError: the device is gone): "
        "10 tokens from the start"
    )
    drain(session.sync(Timeline.of(range(10))))
    assert session.plan(Timeline.of(range(11))).kind is PlanKind.EXTEND


@pytest.mark.parametrize("between", [False, True])
def test_a_tear_between_layers_poisons(between: bool) -> None:
    session, model = ready(list(range(10)))

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    model.between_layers = interrupt
    with pytest.raises(KeyboardInterrupt):
        if between:
            session.append(3)
        else:
            drain(session.sync(Timeline.of([5, 6])))
    assert session.state_name is SessionState.POISONED


class FailingRebuild(ModelState):
    def rebuild(self, *_: Any) -> None:
        raise RuntimeError("no")


def test_a_failed_rewind_poisons() -> None:
    session, _ = ready(list(range(10)))
    session._state = FailingRebuild(session._state.layers)  # type: ignore[union-attr, attr-defined]
    with pytest.raises(RuntimeError):
        session.sync(Timeline.of([0, 1, 2, 9]))
    assert session.state_name is SessionState.POISONED


class WrongShape(FakeModel):
    def forward(self, rows: Any, state: Any) -> Any:
        logits = super().forward(rows, state)
        return None if logits is None else logits[0]


def test_logits_of_another_shape_poison() -> None:
    session = Session(WrongShape())
    with pytest.raises(EngineError, match=r"\[1, vocab\]"):
        drain(session.sync(Timeline.of([1, 2])))
    assert session.state_name is SessionState.POISONED


class LosesARow(FakeModel):
    def forward(self, rows: Any, state: Any) -> Any:
        logits = super().forward(rows, state)
        for layer in state.layers:
            layer.held.pop()
        return logits


def test_rows_that_did_not_arrive_are_not_credited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DS4TUI_DEBUG")
    session = Session(LosesARow())
    with pytest.raises(EngineError, match="holds 2 rows instead of 3"):
        session.sync(Timeline.of([1, 2, 3, 4])).step(10)
    assert session.state_name is SessionState.POISONED


def refused(session: Session, act: Callable[[], Any], error: type[Exception]) -> None:
    before = session.timeline, session.state_name, session.kv_bytes
    with pytest.raises(error):
        act()
    assert (session.timeline, session.state_name, session.kv_bytes) == before


def test_refusals_change_nothing() -> None:
    session, _ = ready(list(range(10)), context_tokens=12)
    stale = session.plan(Timeline.of(range(12)))
    refused(session, lambda: session.sync(Timeline.of(range(13))), ContextOverflow)
    refused(session, lambda: session.sync(Timeline.empty()), ValueError)
    refused(session, lambda: session.append(-1), ValueError)
    session.append(1)
    refused(session, lambda: session.sync(Timeline.of(range(12)), stale), EngineError)
    session.append(2)
    refused(session, lambda: session.append(3), ContextOverflow)


def test_no_token_while_a_prefill_is_open() -> None:
    session = Session(FakeModel())
    refused(session, lambda: session.append(1), EngineError)
    session.sync(Timeline.of(range(10)))
    refused(session, lambda: session.append(1), EngineError)


def test_a_prefill_that_is_over_cannot_go_on() -> None:
    session = Session(FakeModel(), (4,))
    first = session.sync(Timeline.of(range(20)))
    first.step(4)
    second = session.sync(Timeline.of(range(30)))
    assert second.plan.kept == 4
    refused(session, lambda: first.step(4), EngineError)
    first.close()  # harmless
    assert session.state_name is SessionState.PREFILLING
    drain(second)
    refused(session, lambda: second.step(4), EngineError)
    with pytest.raises(EngineError, match="not finished"):
        _ = first.logits


def test_a_smaller_context_may_be_granted() -> None:
    model = FakeModel(context_tokens=100)
    assert Session(model, context_tokens=50).context_tokens == 50
    assert Session(model, context_tokens=500).context_tokens == 100
    assert Session(model).context_tokens == 100


def test_growth_is_what_is_not_allocated_yet() -> None:
    session, model = ready(list(range(10)))
    assert session.growth_bytes(15) == model.kv_bytes(15) - model.kv_bytes(10)
    assert session.growth_bytes(5) == 0


def test_chunk_sizes_are_checked() -> None:
    for sizes in ((), (4, 0)):
        with pytest.raises(ValueError, match="chunk sizes"):
            Session(FakeModel(), sizes)


def test_the_timeline_grows_without_copying() -> None:
    wanted = Timeline.of(range(20))
    session = Session(FakeModel())
    drain(session.sync(wanted))
    session.append(3)
    assert session.timeline._ledger is wanted._ledger


def broken(session: Session, what: str) -> None:
    if what == "(1)":
        session._state.layers[0].held.pop()  # type: ignore[union-attr, attr-defined]
    elif what == "(3)":
        session._prefill = Prefill(
            session, Timeline.of([9] * 20), session.plan(Timeline.of([9] * 20))
        )
        session._name = SessionState.PREFILLING
    elif what == "(4)":
        session._name = SessionState.EMPTY
    else:
        session.context_tokens = 3


@pytest.mark.parametrize("invariant", ["(1)", "(3)", "(4)", "(7)"])
def test_broken_invariants_are_seen_under_the_debug_switch(invariant: str) -> None:
    session, _ = ready(list(range(10)))
    session._check()
    broken(session, invariant)
    with pytest.raises(AssertionError) as raised:
        session._check()
    assert str(raised.value).startswith(invariant)
