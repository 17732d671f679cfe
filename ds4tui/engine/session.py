"""A Session is one live KV state and the Timeline it stands for. Owned by the engine thread.

Callers hand over the whole wanted timeline; `Session.sync` decides through `plan_sync` what is
kept and is, with the steps it leads to, the only thing that changes KV state.

                    ┌───────────────────────── sync ──────────────────────────┐
                    ▼                                                         │
    EMPTY ─sync─▶ PREFILLING ─Prefill.step, the last one─▶ READY ─append─▶ DECODING ─┐
      ▲            │  ▲ │ ▲                              ▲  │                 ▲      │
      │            │  │ │ └─sync────────────────────────────┘                 └append┘
      │            │  │ └────Prefill.close, rows are held┘
      └────────────┘  └─sync, overtaking an open Prefill
       Prefill.close, no row is held

    any state ─a rewind, step or append that raises; poison()─▶ POISONED ─sync─▶ PREFILLING

    EMPTY       nothing is resident
    PREFILLING  a Prefill is open: the timeline is the part of the wanted one evaluated so far
    READY       at rest; append and sync may follow
    DECODING    as READY; what is resident ends in tokens that `append` fed one at a time
    POISONED    a step failed, nothing can be trusted: the state is already dropped, the timeline
                is empty, and the next sync starts cold with that reason

Invariants, asserted after every change when DS4TUI_DEBUG=1 (1 and 2 are always checked):
  (1) Outside a step every layer of the state holds exactly len(timeline) rows.
  (2) A row is in the timeline only after `forward` has returned and the state holds it.
  (3) In PREFILLING the timeline is a true prefix of the wanted one; else no Prefill is open.
  (4) EMPTY and POISONED have an empty timeline; POISONED has no state. Others have rows.
  (5) A plan is executed only on the timeline it was made for.
  (6) The last token of every prefill (or the image it ends in) is evaluated alone.
  (7) len(timeline) <= context_tokens; more is refused before anything changes.
  (8) Whether a rewind is possible is asked before anything changes.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ds4tui.cache.plan import PlanKind, SyncPlan, plan_sync
from ds4tui.cache.timeline import Timeline
from ds4tui.engine.models.rows import Logits, Rows
from ds4tui.errors import ContextOverflow, EngineError

Floats = npt.NDArray[np.float32]

_log = logging.getLogger(__name__)

# A fixed set, so that schedules and kernel shapes repeat. 512 rows feed a matrix product well on
# every device. Steps of 32 do any rest in at most two chunks: each one reads all weights, and with
# (512, 128, 32) a prompt of 127 tokens took four and 30 % more CPU time.
CHUNK_STEP = 32
CHUNK_SIZES = tuple(range(512, 0, -CHUNK_STEP))


class State(Protocol):
    """What a session needs of engine.state.ModelState."""

    @property
    def length(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def can_rewind(self, to: int) -> bool: ...
    def rewind(self, to: int) -> None: ...


class Model(Protocol):
    """What a session needs of a model. When `forward` returns, the rows are in the state and
    computed; it gives float32 [n, vocab] for the rows asked for, None for logits="none"."""

    @property
    def context_tokens(self) -> int: ...
    def new_state(self) -> Any: ...
    def forward(self, rows: Rows, state: Any) -> Any: ...
    def kv_bytes(self, tokens: int) -> int: ...


class SessionState(StrEnum):
    EMPTY = "EMPTY"
    PREFILLING = "PREFILLING"
    READY = "READY"
    DECODING = "DECODING"
    POISONED = "POISONED"


class Session:
    """`chunk_sizes` are the row counts of prefill chunks; `context_tokens` may be less than the
    model's own."""

    def __init__(
        self,
        model: Model,
        chunk_sizes: Sequence[int] = CHUNK_SIZES,
        context_tokens: int | None = None,
    ) -> None:
        self.chunk_sizes = tuple(sorted(set(chunk_sizes), reverse=True))
        if not self.chunk_sizes or self.chunk_sizes[-1] < 1:
            raise ValueError(f"chunk sizes must be positive: {chunk_sizes}")
        self.context_tokens = min(context_tokens or model.context_tokens, model.context_tokens)
        self._model = model
        self._state: State | None = None
        self._timeline = Timeline.empty()
        self._name = SessionState.EMPTY
        self._prefill: Prefill | None = None
        self._poison: str | None = None
        self._debug = os.environ.get("DS4TUI_DEBUG") == "1"

    @property
    def timeline(self) -> Timeline:
        """What the state holds, and nothing else."""
        return self._timeline

    @property
    def state_name(self) -> SessionState:
        return self._name

    @property
    def kv_bytes(self) -> int:
        """Bytes that are allocated for the state."""
        return self._state.nbytes if self._state is not None else 0

    def growth_bytes(self, tokens: int) -> int:
        """How many more bytes a state of `tokens` rows takes than what is allocated now."""
        return max(0, self._model.kv_bytes(tokens) - self.kv_bytes)

    def plan(self, wanted: Timeline) -> SyncPlan:
        """How to get to `wanted`; changes nothing. ValueError if it is empty."""
        return plan_sync(self._timeline, wanted, can_rewind=self._can_rewind, poisoned=self._poison)

    def sync(self, wanted: Timeline, plan: SyncPlan | None = None) -> "Prefill":
        """Keep what the plan keeps, drop the rest, and return the work that is left to do.

        Raises ContextOverflow, ValueError (empty) or EngineError (a `plan` that was made for
        another timeline) before anything changes. A rewind that fails poisons the session.
        """
        if len(wanted) > self.context_tokens:
            raise ContextOverflow(len(wanted), self.context_tokens)
        current = self.plan(wanted)
        if plan is not None and plan != current:
            raise EngineError(
                "The plan was made for another state of the session.", "Ask for a new plan."
            )
        self._execute(current, wanted)
        self._prefill = Prefill(self, wanted, current)
        self._name = SessionState.PREFILLING
        self._check()
        return self._prefill

    def append(self, token_id: int) -> Floats:
        """Feed one text token; its logits, float32 [vocab].

        It is sync(timeline + token_id), whose plan is `extend` by construction. Raises
        ContextOverflow, ValueError (no text token) or EngineError (the session is not at rest)
        before anything changes; a step that fails poisons the session.
        """
        if self._name not in (SessionState.READY, SessionState.DECODING):
            raise EngineError(f"A session that is {self._name} cannot take a token.")
        if len(self._timeline) == self.context_tokens:
            raise ContextOverflow(len(self._timeline) + 1, self.context_tokens)
        wanted = self._timeline.extended([token_id])
        logits = self._evaluate(wanted, len(wanted), "last")
        assert logits is not None
        self._name = SessionState.DECODING
        self._check()
        return logits

    def poison(self, reason: str) -> None:
        """Give the state up: nothing of it is used again, its memory is free at once."""
        _log.warning("session poisoned: %s", reason)
        self._poison = reason
        self._state = None
        self._timeline = Timeline.empty()
        self._prefill = None
        self._name = SessionState.POISONED

    def _can_rewind(self, to: int) -> bool:
        return self._state is not None and self._state.can_rewind(to)

    def _execute(self, plan: SyncPlan, wanted: Timeline) -> None:
        self._prefill = None
        if plan.kind is PlanKind.COLD:
            # The old rows go before new ones are allocated.
            self._state, self._timeline = None, Timeline.empty()
            self._state, self._poison = self._model.new_state(), None
        elif plan.kind is PlanKind.REWIND:
            with self._poisoned_by_failure("rewind"):
                assert self._state is not None
                self._state.rewind(plan.kept)
                self._expect_rows(plan.kept)
        # Equal to what was live, in the wanted one's buffer: it grows there without copying.
        self._timeline = wanted.prefix(plan.kept)

    def _evaluate(self, wanted: Timeline, end: int, logits: Logits) -> Floats | None:
        """Rows [len(timeline), end) of `wanted`: the one place that feeds the model."""
        start = len(self._timeline)
        rows = Rows(
            ids=wanted.ids[start:end],
            embeddings=None,
            positions=np.arange(start, end, dtype=np.int32),
            spans=tuple(s for s in wanted.spans if start <= s.start < end),
            logits=logits,
        )
        with self._poisoned_by_failure("evaluating tokens"):
            returned = self._model.forward(rows, self._state)
            values = _vector(returned) if logits == "last" else None
            self._expect_rows(end)
        self._timeline = wanted.prefix(end)  # credited now that it is there
        return values

    def _expect_rows(self, count: int) -> None:
        assert self._state is not None
        if self._state.length != count:
            raise EngineError(f"The state holds {self._state.length} rows instead of {count}.")

    @contextmanager
    def _poisoned_by_failure(self, what: str) -> Iterator[None]:
        try:
            yield
        except BaseException as exc:  # an interrupt tears a step as well as an error does
            self.poison(f"{what} failed: {type(exc).__name__}: {exc}")
            raise

    def _check(self) -> None:
        """The invariants that can be seen from here, when the debug switch is on."""
        if not self._debug:
            return
        rows, name = len(self._timeline), self._name
        lengths = {layer.length for layer in getattr(self._state, "layers", ())}
        assert lengths <= {rows}, f"(1) layers of {lengths} rows for {rows} ids"
        assert (self._prefill is not None) == (name is SessionState.PREFILLING), f"(3) {name}"
        if self._prefill is not None:
            wanted = self._prefill.wanted
            assert rows < len(wanted), "(3) nothing left to do"
            assert self._timeline.common_prefix(wanted) == rows, "(3) not a prefix"
        is_empty = name in (SessionState.EMPTY, SessionState.POISONED)
        assert name is SessionState.PREFILLING or is_empty == (rows == 0), f"(4) {name}, {rows}"
        assert rows <= self.context_tokens, f"(7) {rows} rows"


class Prefill:
    """The tokens of one sync that are still to be evaluated; resumable after each step.

    `total` were to be evaluated, `done` of them are; `plan` is what was decided. Made by
    Session.sync only; the next sync closes it.
    """

    def __init__(self, session: Session, wanted: Timeline, plan: SyncPlan) -> None:
        self.wanted = wanted
        self.plan = plan
        self.total = plan.to_evaluate
        self.done = 0
        self._session = session
        self._last_start = wanted.snapped(len(wanted) - 1)
        self._logits: Floats | None = None

    @property
    def finished(self) -> bool:
        return self.done == self.total

    @property
    def logits(self) -> Floats:
        """float32 [vocab] after the last token. EngineError before the prefill is finished."""
        if self._logits is None:
            raise EngineError("The prefill is not finished: there are no logits yet.")
        return self._logits

    def step(self, max_rows: int) -> None:
        """Evaluate one chunk of at most `max_rows` rows; more only for an image, never cut.

        Raises what the model raises, and the session is poisoned then. EngineError if this
        prefill is finished, closed or overtaken by another sync.
        """
        session = self._session
        if session._prefill is not self:
            raise EngineError("This prefill is over.", "Call sync again.")
        end = self._chunk_end(len(session.timeline), max_rows)
        is_last = end == len(self.wanted)
        self._logits = session._evaluate(self.wanted, end, "last" if is_last else "none")
        self.done = end - self.plan.kept
        if is_last:
            self._end(SessionState.READY)
        session._check()

    def close(self) -> None:
        """Stop here. What is evaluated stays resident; nothing happens if it is over already."""
        if self._session._prefill is self:
            resident = len(self._session.timeline)
            self._end(SessionState.READY if resident else SessionState.EMPTY)
            self._session._check()

    def _end(self, name: SessionState) -> None:
        self._session._prefill = None
        self._session._name = name

    def _chunk_end(self, start: int, max_rows: int) -> int:
        if start == self._last_start:
            return len(self.wanted)
        rows = chunk_rows(self._last_start - start, max_rows, self._session.chunk_sizes)
        end = self.wanted.snapped(start + rows)
        if end > start:
            return end
        return next(span.end for span in self.wanted.spans if span.start == start)


def chunk_rows(remaining: int, max_rows: int, sizes: Sequence[int]) -> int:
    """Rows of the next chunk: the largest of `sizes` (descending) that fits both limits. What is
    less than the smallest goes in one chunk of its own: single steps would read all weights
    once for each."""
    room = max(1, min(remaining, max_rows))
    return next((size for size in sizes if size <= room), room)


def _vector(returned: object) -> Floats:
    """What `forward` returned, [1, vocab], as a float32 [vocab] of the caller's own."""
    logits: Floats = np.array(returned, dtype=np.float32)
    if logits.ndim != 2 or len(logits) != 1:
        raise EngineError(f"The model returned logits of shape {logits.shape}, not [1, vocab].")
    row: Floats = logits[0]
    return row
