"""Random histories of a session, and the judge who compares each step with a cold run.

A `Rig` is a kind of model: the fake one is judged to the bit, a real one to a tolerance. After
every operation the judge looks at what the state really holds, not at what the session says.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from hypothesis import strategies as st

from ds4tui.cache.timeline import Timeline
from ds4tui.engine.session import Model, Prefill, Session, SessionState
from tests.fake_model import FakeModel
from tests.fake_state import FakeLayer


class DeviceFault(Exception):
    """What a failing forward pass raises here."""


class Rig(Protocol):
    vocab_size: int
    tolerance: float  # of logits against a cold run; 0: bit for bit

    def session(self) -> Session: ...
    def fail_after(self, session: Session, passes: int | None) -> None:
        """The session's model raises DeviceFault in the pass after so many, once; None: never."""

    def cold_logits(self, ids: list[int]) -> np.ndarray: ...
    def examine(self, session: Session) -> None:
        """AssertionError if a layer holds something else than the timeline says, where what it
        must hold is known to the bit."""


class FailingModel:
    """Another model with faults between its passes."""

    def __init__(self, model: Any) -> None:
        self.inner = model
        self.passes_left: int | None = None
        self.context_tokens: int = model.context_tokens

    def new_state(self) -> Any:
        return self.inner.new_state()

    def kv_bytes(self, tokens: int) -> int:
        return int(self.inner.kv_bytes(tokens))

    def forward(self, rows: Any, state: Any) -> Any:
        fails = self.passes_left == 0
        if self.passes_left is not None:
            self.passes_left = None if fails else self.passes_left - 1
        if fails:
            # Half done: one layer has taken the rows, the others have not.
            self._tear(rows, state)
            raise DeviceFault("the device is gone")
        return self.inner.forward(rows, state)

    def _tear(self, rows: Any, state: Any) -> None:
        if isinstance(self.inner, FakeModel):
            new = zip(rows.ids.tolist(), rows.positions.tolist(), strict=True)
            state.layers[0].feed(list(new))
        else:
            self.inner.forward(rows, state)
            for layer in state.layers[1:]:
                if layer.can_rewind(layer.length - len(rows)):
                    layer.rewind(layer.length - len(rows))


class FakeRig:
    vocab_size = 40
    tolerance = 0.0

    def __init__(self, session_type: type[Session] = Session, **model_arguments: Any) -> None:
        self.session_type = session_type
        self.layer_types = model_arguments.pop("layer_types", (FakeLayer, FakeLayer))
        self.model_arguments = {
            "vocab_size": self.vocab_size,
            "layer_types": self.layer_types,
            **model_arguments,
        }
        self.chunk_sizes = (8, 4, 2)
        self._cold: dict[tuple[int, ...], np.ndarray] = {}

    @property
    def name(self) -> str:
        return "-".join(t.__name__ for t in (self.session_type, *self.layer_types))

    def model(self) -> Model:
        return FakeModel(**self.model_arguments)

    def session(self) -> Session:
        return self.session_type(FailingModel(self.model()), self.chunk_sizes)

    def fail_after(self, session: Session, passes: int | None) -> None:
        session._model.passes_left = passes  # type: ignore[attr-defined]

    def cold_logits(self, ids: list[int]) -> np.ndarray:
        key = tuple(ids)
        if key not in self._cold:
            types = [sound_type(t) for t in self.layer_types]
            model = FakeModel(vocab_size=self.vocab_size, layer_types=types)
            self._cold[key] = drain(Session(model).sync(Timeline.of(ids))).logits
        return self._cold[key]

    def examine(self, session: Session) -> None:
        state: Any = session._state
        ids = session.timeline.ids.tolist()
        rows = list(zip(ids, range(len(ids)), strict=True))
        for layer in state.layers if state is not None else ():
            right = sound_type(type(layer)).expected(rows)
            assert np.array_equal(layer.content(), right), "a layer holds other rows"


def kept_rows(session: Session) -> list[np.ndarray]:
    """Copies of what the append-only layers hold, positions first."""
    state: Any = session._state
    found = [layer.rows(0, layer.length) for layer in state.layers] if state is not None else []
    return [
        np.moveaxis(np.array(array), axis, 0).copy()
        for rows in found
        if rows is not None
        for array, axis in zip(rows.arrays, rows.axes, strict=True)
    ]


def sound_type(layer_type: type[FakeLayer]) -> type[FakeLayer]:
    """The kind of layer that one with a planted fault was made from."""
    return next(t for t in layer_type.__mro__ if t.__module__ == FakeLayer.__module__)


def drain(prefill: Prefill, max_rows: int = 1 << 30) -> Prefill:
    while not prefill.finished:
        prefill.step(max_rows)
    return prefill


@dataclass(frozen=True)
class Operation:
    """`kind` on ids made from `seed`; `share` (0 to 1) picks a place in what is resident."""

    kind: str
    share: float = 0.5
    count: int = 3
    seed: int = 0

    def new_ids(self, vocab_size: int) -> list[int]:
        generator = np.random.default_rng(self.seed)
        return [int(i) for i in generator.integers(0, vocab_size, self.count)]


KINDS = (
    "extend",  # the resident timeline and more
    "fork",  # a part of it and something else
    "edit",  # one id replaced somewhere
    "again",  # just the same
    "shorter",  # a strict prefix
    "anew",  # something else altogether
    "decode",  # tokens fed one at a time
    "cancel",  # an extension or fork, stopped after a step
    "overtake",  # the same, left open for the next sync
    "fail",  # the same, with a pass that raises
)

operations = st.builds(
    Operation,
    kind=st.sampled_from(KINDS),
    share=st.floats(0, 1),
    count=st.integers(1, 25),
    seed=st.integers(0, 5),
)
histories = st.lists(operations, min_size=1, max_size=8)


class Judge:
    """Plays operations on one session and raises AssertionError when it is not what it says."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.session = rig.session()
        self.evaluated = 0

    def play(self, history: list[Operation]) -> None:
        for operation in history:
            getattr(self, f"_{operation.kind}", self._whole)(operation)
            self.examine()

    def examine(self) -> None:
        """What is resident is the timeline: as many rows, and the right ones."""
        session, ids = self.session, self.session.timeline.ids.tolist()
        state: Any = session._state
        lengths = {layer.length for layer in state.layers} if state is not None else {0}
        assert lengths == {len(ids)}, "rows and timeline differ"
        self.rig.examine(session)
        if session.state_name is SessionState.POISONED:
            assert not ids, "a poisoned session claims rows"

    def _wanted(self, operation: Operation) -> list[int]:
        live = self.session.timeline.ids.tolist()
        new = operation.new_ids(self.rig.vocab_size)
        place = int(operation.share * len(live))
        wanted = {
            "again": live,
            "shorter": live[:place],
            "anew": new,
            "edit": [*live[:place], new[0], *live[place + 1 :]],
            "fork": live[:place] + new,
        }.get(operation.kind, live + new if operation.share < 0.5 else live[:place] + new)
        return wanted or new

    def _whole(self, operation: Operation) -> None:
        wanted = self._wanted(operation)
        before = kept_rows(self.session)
        plan = self.session.plan(Timeline.of(wanted))
        prefill = drain(self.session.sync(Timeline.of(wanted), plan))
        assert prefill.done == plan.to_evaluate
        assert self.session.timeline.ids.tolist() == wanted
        assert self.session.state_name is SessionState.READY
        for old, new in zip(before, kept_rows(self.session), strict=False):
            assert np.array_equal(old[: plan.kept], new[: plan.kept]), "a kept row has changed"
        self._compare(prefill.logits, wanted)

    def _decode(self, operation: Operation) -> None:
        if self.session.state_name not in (SessionState.READY, SessionState.DECODING):
            return
        for token in operation.new_ids(self.rig.vocab_size):
            logits = self.session.append(token)
            self._compare(logits, self.session.timeline.ids.tolist())

    def _cancel(self, operation: Operation) -> None:
        self._part(operation).close()
        assert self.session.state_name in (SessionState.READY, SessionState.EMPTY)

    def _overtake(self, operation: Operation) -> None:
        self._part(operation)

    def _part(self, operation: Operation) -> Prefill:
        prefill = self.session.sync(Timeline.of(self._wanted(operation)))
        for _ in range(operation.seed):
            if not prefill.finished:
                prefill.step(4)
                self.examine()
        return prefill

    def _fail(self, operation: Operation) -> None:
        self.rig.fail_after(self.session, operation.seed)
        try:
            drain(self.session.sync(Timeline.of(self._wanted(operation))), 4)
        except DeviceFault:
            self.examine()
            assert self.session.state_name is SessionState.POISONED, "a torn state is kept"
        self.rig.fail_after(self.session, None)

    def _compare(self, logits: np.ndarray, ids: list[int]) -> None:
        cold = self.rig.cold_logits(ids)
        assert logits.dtype == np.float32
        assert logits.shape == cold.shape
        if self.rig.tolerance == 0:
            assert np.array_equal(logits, cold), "other logits than a cold run"
        else:
            assert np.abs(logits - cold).max() <= self.rig.tolerance, "other logits than cold"


def every_kind() -> Iterator[list[Operation]]:
    """One long history of all kinds from several places: what planted faults must not survive."""
    for seed in range(4):
        for share in (0.2, 0.9):
            yield [
                Operation("anew", count=20, seed=seed),
                *(Operation(kind, share, 9, seed + i) for i, kind in enumerate(KINDS)),
                *(Operation(kind, share, 7, seed + 1) for kind in reversed(KINDS)),
            ]
