"""Random histories of sessions, and the judge who compares each step with a cold run.

A `Rig` is a kind of model: the fake one is judged to the bit, a real one to a tolerance. After
every operation the judge looks at what the states and the memory tier really hold, not at what
they say.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from hypothesis import strategies as st

from ds4tui.cache.kvarrays import Pooled
from ds4tui.cache.memory_tier import MemoryTier
from ds4tui.cache.outline import Outline, Turn
from ds4tui.cache.timeline import Timeline
from ds4tui.engine.session import Model, Prefill, Session, SessionState
from tests.fake_model import FakeModel
from tests.fake_state import FakeLayer

PLENTY = 1 << 40


class DeviceFault(Exception):
    """What a failing forward pass raises here."""


class Rig(Protocol):
    vocab_size: int
    tolerance: float  # of logits against a cold run; 0: bit for bit
    truncates: bool  # whether every layer can be cut anywhere

    def session(self, memory: MemoryTier, number: int = 1) -> Session: ...
    def cold_logits(self, ids: list[int]) -> np.ndarray: ...
    def timeline(self, ids: list[int]) -> Timeline:
        """Of ids as a judge keeps them: those of a timeline, rows of images included."""

    def new_ids(self, operation: "Operation") -> list[int]: ...
    def examine(self, state: Any, ids: list[int]) -> None:
        """AssertionError if a layer holds something else than `ids` say, where what it must hold
        is known to the bit."""


class FailingModel:
    """Another model with faults between its passes; `fed` counts the rows that it was given."""

    def __init__(self, model: Any) -> None:
        self.inner = model
        self.passes_left: int | None = None
        self.context_tokens: int = model.context_tokens
        self.fed = 0

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
        self.fed += len(rows.ids)
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
        self.truncates = not any(layer_type.is_bounded for layer_type in self.layer_types)
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

    def session(self, memory: MemoryTier, number: int = 1) -> Session:
        model = FailingModel(self.model())
        return self.session_type(model, self.chunk_sizes, None, memory, number)

    def timeline(self, ids: list[int]) -> Timeline:
        return Timeline.of(ids)

    def new_ids(self, operation: "Operation") -> list[int]:
        return operation.new_ids(self.vocab_size)

    def cold_logits(self, ids: list[int]) -> np.ndarray:
        key = tuple(ids)
        if key not in self._cold:
            types = [sound_type(t) for t in self.layer_types]
            model = FakeModel(vocab_size=self.vocab_size, layer_types=types)
            self._cold[key] = drain(Session(model).sync(Timeline.of(ids))).logits
        return self._cold[key]

    def examine(self, state: Any, ids: list[int]) -> None:
        rows = list(zip(ids, range(len(ids)), strict=True))
        for layer in state.layers:
            right = sound_type(type(layer)).expected(rows)
            assert np.array_equal(layer.content(), right), "a layer holds other rows"


def sound_type(layer_type: type[FakeLayer]) -> type[FakeLayer]:
    """The kind of layer that one with a planted fault was made from."""
    return next(t for t in layer_type.__mro__ if t.__module__ == FakeLayer.__module__)


def held_rows(state: Any) -> list[np.ndarray]:
    """Copies of what the append-only layers of a state hold, positions first."""
    found = [layer.rows(0, layer.length) for layer in state.layers] if state is not None else []
    return [
        _by_position(np.moveaxis(np.array(array), axis, 0), rows.pooled)
        for rows in found
        if rows is not None
        for array, axis in zip(rows.arrays, rows.axes, strict=True)
    ]


def _by_position(rows: np.ndarray, pooled: Pooled | None) -> np.ndarray:
    """A copy; pools stand at the last of their positions, and zeros at others."""
    if pooled is None:
        return rows.copy()
    apart = np.zeros((pooled.positions, *rows.shape[1:]), rows.dtype)
    apart[pooled.size - 1 :: pooled.size] = rows
    return apart


def drain(prefill: Prefill, max_rows: int = 1 << 30) -> Prefill:
    while not prefill.finished:
        prefill.step(max_rows)
    return prefill


def outline_of(length: int, every: int) -> Outline:
    """Turns of `every` tokens, the first of them the system prompt."""
    roles = ("system", *["user", "assistant"] * (length // every + 1))
    starts = range(0, length, every)
    return tuple(
        Turn(start, min(start + every, length), role, b"")
        for start, role in zip(starts, roles, strict=False)
    )


@dataclass(frozen=True)
class Operation:
    """`kind` on ids made from `seed`; `share` (0 to 1) picks a place in what is resident, or one
    of the branches that were."""

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
    "edit",  # one id, or image, replaced somewhere
    "drop",  # one left out
    "again",  # just the same
    "shorter",  # a strict prefix
    "anew",  # something else altogether
    "branch",  # back to one of the branches that were, and more
    "decode",  # tokens fed one at a time
    "turn",  # an extension and a reply, to its end
    "regenerate",  # the last prompt again, and another reply
    "cancel",  # an extension or fork, stopped after a step
    "overtake",  # the same, left open for the next sync
    "fail",  # the same, with a pass that raises
    "switch",  # another session
    "evict",  # memory is short
    "clear",  # the live state is put away
)

operations = st.builds(
    Operation,
    kind=st.sampled_from(KINDS),
    share=st.floats(0, 1),
    count=st.integers(1, 25),
    seed=st.integers(0, 5),
)
histories = st.lists(operations, min_size=1, max_size=10)


class Judge:
    """Plays operations on `sessions` sessions that share a memory tier of `budget_bytes`, and
    raises AssertionError when anything is not what it says.

    As long as nothing was evicted, refused or torn, all that was ever resident is held: then a
    family that can be cut anywhere must evaluate just what is new (`is_complete`).
    """

    def __init__(self, rig: Rig, sessions: int = 1, budget_bytes: int = PLENTY) -> None:
        self.rig = rig
        self.memory = MemoryTier(budget_bytes)
        self.sessions = [rig.session(self.memory, number + 1) for number in range(sessions)]
        for session in self.sessions:
            session.neighbours = tuple(s for s in self.sessions if s is not session)
        self.session = self.sessions[0]
        self.branches: list[list[int]] = []  # what was ever resident
        self.prompts: list[list[int]] = []
        self.archive: list[tuple[list[int], list[np.ndarray]]] = []  # and its rows
        self.is_complete = budget_bytes == PLENTY
        self.evaluated = self.needed = 0
        self._seen: dict[int, None] = {}  # holders that were looked at

    @property
    def model(self) -> Any:
        return self.session._model

    def play(self, history: list[Operation]) -> None:
        for operation in history:
            getattr(self, f"_{operation.kind}", self._whole)(operation)
            self.examine()

    # -- what is looked at ---------------------------------------------------------------------

    def examine(self) -> None:
        """What is resident is the timeline: as many rows, and the right ones."""
        for session in self.sessions:
            ids = session.timeline.ids.tolist()
            state: Any = session._state
            lengths = {layer.length for layer in state.layers} if state is not None else {0}
            assert lengths == {len(ids)}, "rows and timeline differ"
            if state is not None:
                self.rig.examine(state, ids)
                self._remember(ids, state)
            if session.state_name is SessionState.POISONED:
                assert not ids, "a poisoned session claims rows"
        assert self.memory.nbytes <= self.memory.budget_bytes, "the budget does not hold"
        live = [id(session._state) for session in self.sessions if session._state is not None]
        for branch in self.branches:
            for held in self.memory.offers(self.rig.timeline(branch)).rows:
                assert id(self.memory.handle(held.holder_id)) not in live, "(10) two owners"
                self._examine_holder(held)

    def _examine_holder(self, held: Any) -> None:
        if held.holder_id in self._seen:
            return
        self._seen[held.holder_id] = None
        handle = self.memory.handle(held.holder_id)
        ids = self.memory.timeline(held.holder_id).ids.tolist()
        assert held.end == len(ids)
        if held.kind == "parked":
            assert handle.length == len(ids), "a parked state of another length"
            self.rig.examine(handle, ids)
        else:
            assert (handle.start, handle.end) == (held.start, held.end)

    def _remember(self, ids: list[int], state: Any) -> None:
        if not ids:
            return
        if ids not in self.branches:
            self.branches.append(ids)
        rows = held_rows(state)
        # What was computed anew, after a failure, may have other bits.
        old = (known for old_ids, known in self.archive if old_ids == ids)
        if not any(all(map(np.array_equal, rows, known)) for known in old):
            self.archive.append((ids, rows))

    def _expect_old_bits(self, wanted: list[int], kept: int) -> None:
        """Each of the `kept` rows is bit for bit one that was there before for these ids."""
        now = held_rows(self.session._state)
        for place, rows in enumerate(now):
            found = np.zeros(kept, dtype=bool)
            for ids, old in self.archive:
                both = min(self.common(ids, wanted), kept)
                if both:
                    same = old[place][:both] == rows[:both]
                    found[:both] |= same.reshape(both, -1).all(axis=1)
            assert found.all(), "a kept row has changed"

    # -- what is done --------------------------------------------------------------------------

    def _wanted(self, operation: Operation) -> list[int]:
        live = self.session.timeline.ids.tolist()
        new = self.rig.new_ids(operation)
        place = self.snapped(live, int(operation.share * len(live)))
        behind = live[self.one_later(live, place) :]
        old = (
            self.branches[int(operation.share * (len(self.branches) - 1))] if self.branches else []
        )
        wanted = {
            "again": live,
            "shorter": live[:place],
            "anew": new,
            "edit": [*live[:place], *new[: self.one_later(new, 0)], *behind],
            "drop": [*live[:place], *behind],
            "fork": live[:place] + new,
            "branch": old + new[: self.snapped(new, operation.seed)],
            "turn": live + new,
            "regenerate": self.prompts[-1] if self.prompts else live,
        }.get(operation.kind, live + new if operation.share < 0.5 else live[:place] + new)
        wanted = wanted or new
        return wanted[: self.snapped(wanted, self.session.context_tokens - 30)]

    def snapped(self, ids: list[int], place: int) -> int:
        """`place`, or where the image begins that it would cut."""
        return self.rig.timeline(ids).snapped(min(place, len(ids)))

    def one_later(self, ids: list[int], place: int) -> int:
        """Behind the token or image that begins at `place`."""
        spans = self.rig.timeline(ids).spans
        return next((span.end for span in spans if span.start == place), place + 1)

    def common(self, one: list[int], other: list[int]) -> int:
        return self.rig.timeline(one).common_prefix(self.rig.timeline(other))

    def outline(self, wanted: list[int], every: int) -> Outline:
        """Turns whose borders cut no image."""
        borders = {turn.end: turn.role for turn in outline_of(len(wanted), every)}
        turns, start = [], 0
        for end, role in borders.items():
            end = self.snapped(wanted, end) if end < len(wanted) else end
            if end > start:
                turns.append(Turn(start, end, role, b""))
                start = end
        return tuple(turns)

    def _whole(self, operation: Operation) -> None:
        wanted = self._wanted(operation)
        self.prompts.append(wanted)
        outline = self.outline(wanted, 3 + operation.seed)
        plan = self.session.plan(self.rig.timeline(wanted), outline)
        self._expect_needed(plan, wanted)
        fed = self.model.fed
        prefill = drain(self.session.sync(self.rig.timeline(wanted), plan))
        assert prefill.done == plan.to_evaluate
        assert self.model.fed - fed == plan.to_evaluate, "other counts than the plan's"
        self.evaluated += plan.to_evaluate
        assert self.session.timeline.ids.tolist() == wanted
        assert self.session.state_name is SessionState.READY
        self._expect_old_bits(wanted, plan.kept)
        self._compare(prefill.logits, wanted)

    def _expect_needed(self, plan: Any, wanted: list[int]) -> None:
        """Only what is new is evaluated, where that can be."""
        most = max((self.common(ids, wanted) for ids in self.branches), default=0)
        kept = min(most, self.snapped(wanted, len(wanted) - 1))
        self.needed += len(wanted) - kept
        assert plan.kept <= kept, "more is kept than there ever was"
        if self.is_complete and self.rig.truncates:
            assert plan.kept == kept, f"{plan.kept} of {kept} that are held are kept: {plan}"
        if self.is_complete:
            assert plan.kept + plan.replayed == kept, f"{kept} are held: {plan}"

    def _decode(self, operation: Operation) -> None:
        if self.session.state_name not in (SessionState.READY, SessionState.DECODING):
            return
        for token in operation.new_ids(self.rig.vocab_size):
            if len(self.session.timeline) == self.session.context_tokens:
                return
            logits = self.session.append(token)
            self._compare(logits, self.session.timeline.ids.tolist())

    def _turn(self, operation: Operation) -> None:
        self._whole(operation)
        self._decode(Operation("decode", count=3, seed=operation.seed + 1))
        self.session.end_turn()

    def _regenerate(self, operation: Operation) -> None:
        self._whole(operation)
        self._decode(Operation("decode", count=2, seed=operation.seed + 2))
        self.session.end_turn()

    def _cancel(self, operation: Operation) -> None:
        self._part(operation).close()
        assert self.session.state_name in (SessionState.READY, SessionState.EMPTY)

    def _overtake(self, operation: Operation) -> None:
        self._part(operation)

    def _part(self, operation: Operation) -> Prefill:
        prefill = self.session.sync(self.rig.timeline(self._wanted(operation)))
        self.examine()
        for _ in range(operation.seed):
            if not prefill.finished:
                prefill.step(4)
                self.examine()
        return prefill

    def _fail(self, operation: Operation) -> None:
        self.model.passes_left = operation.seed
        self.is_complete = False
        try:
            drain(self.session.sync(self.rig.timeline(self._wanted(operation))), 4)
        except DeviceFault:
            self.examine()
            assert self.session.state_name is SessionState.POISONED, "a torn state is kept"
        finally:  # also where a record on disk was lost before any pass
            self.model.passes_left = None

    def _switch(self, operation: Operation) -> None:
        self.session = self.sessions[operation.seed % len(self.sessions)]

    def _evict(self, operation: Operation) -> None:
        memory = self.memory
        self.is_complete = False
        gone = int((1 - operation.share) * memory.nbytes)
        memory.make_room(memory.budget_bytes - memory.nbytes + gone)
        assert memory.drain_notes() or not gone

    def _clear(self, operation: Operation) -> None:
        self.session.clear("as a test")
        assert self.session.state_name in (SessionState.EMPTY, SessionState.POISONED)

    def _compare(self, logits: np.ndarray, ids: list[int]) -> None:
        cold = self.rig.cold_logits(ids)
        assert logits.dtype == np.float32
        assert logits.shape == cold.shape
        if self.rig.tolerance == 0:
            assert np.array_equal(logits, cold), "other logits than a cold run"
        else:
            is_near = np.abs(logits - cold).max() <= self.rig.tolerance
            assert is_near or self._has_tied_experts(ids), "other logits than cold"

    def _has_tied_experts(self, ids: list[int]) -> bool:
        """Whether rounding chooses an expert somewhere in these ids: no history can be judged by
        what comes out then."""
        gap = getattr(self.rig, "least_gap_of_experts", None)
        return gap is not None and gap(ids) < TIED


# Between the scores of the last expert that is chosen and the first that is not: of two runs in
# other chunks they differ by some 1e-6.
TIED = 1e-5


def every_kind() -> Iterator[list[Operation]]:
    """One long history of all kinds from several places: what planted faults must not survive."""
    for seed in range(4):
        for share in (0.2, 0.9):
            yield [
                Operation("anew", count=20, seed=seed),
                *(Operation(kind, share, 9, seed + i) for i, kind in enumerate(KINDS)),
                *(Operation(kind, share, 7, seed + 1) for kind in reversed(KINDS)),
            ]
