"""A Session is one live KV state and the Timeline it stands for. Owned by the engine thread.

Callers hand over the whole wanted timeline; `Session.sync` decides through `plan_sync` what is
kept and is, with the steps it leads to, the only thing that changes KV state. What is not kept
goes to the memory tier where that is worth its place: a whole state is parked, a tail of rows
copied into a segment, bounded parts snapshotted; what is kept may come from there.

                    ┌───────────────────────── sync ──────────────────────────┐
                    ▼                                                         │
    EMPTY ─sync─▶ PREFILLING ─Prefill.step, the last one─▶ READY ─append─▶ DECODING ─┐
      ▲            │  ▲ │ ▲                              ▲  │                 ▲      │
      │            │  │ │ └─sync────────────────────────────┘                 └append┘
      │            │  │ └────Prefill.close, rows are held┘
      └────────────┘  └─sync, overtaking an open Prefill
       Prefill.close, no row is held

    READY, DECODING ─end_turn─▶ the same: the bounded part is snapshotted, nothing changes
    EMPTY, READY, DECODING ─clear─▶ EMPTY: the state is parked or given up
    any state ─a rebuild, step or append that raises; poison()─▶ POISONED ─sync─▶ PREFILLING
    any state ─sync, of which a record on disk cannot be read─▶ READY with the rows before it, or
               EMPTY: to be planned anew

    EMPTY       nothing is resident
    PREFILLING  a Prefill is open: the timeline is the part of the wanted one evaluated so far
    READY       at rest; append and sync may follow
    DECODING    as READY; what is resident ends in tokens that `append` fed one at a time
    POISONED    a step failed, nothing can be trusted: the state is already dropped, the timeline
                is empty, and the next sync starts without it and with that reason

Invariants, asserted after every change when DS4TUI_DEBUG=1 (1, 2 and 5 are always checked):
  (1) Outside a step every layer of the state holds exactly len(timeline) rows.
  (2) A row is in the timeline only after `forward`, or the rebuild that copied it, has returned
      and the state holds it.
  (3) In PREFILLING the timeline is a true prefix of the wanted one; else no Prefill is open.
  (4) EMPTY and POISONED have an empty timeline; POISONED has no state. Others have rows.
  (5) A plan is executed only on the timeline it was made for, and only once.
  (6) The last token of every prefill (or the image it ends in) is evaluated alone.
  (7) len(timeline) <= context_tokens; more is refused before anything changes.
  (8) Whether a rewind or rebuild is possible is asked of every layer before anything changes.
  (9) All that a plan takes from elsewhere is looked up before anything is dropped.
 (10) A state that is parked is nobody's live state: it has one owner, the session or the tier.
 (11) A snapshot is taken of a timeline at rest only, and is of exactly that timeline.
 (12) While `changes` stays the same, rows that the state holds stay the same, to the bit.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from enum import StrEnum

from ds4tui.cache.causes import Cause
from ds4tui.cache.kvformat import CorruptRecord
from ds4tui.cache.kvstore import DiskTier
from ds4tui.cache.memory_tier import MemoryTier
from ds4tui.cache.offers import NO_OFFERS, Offers, Sizes
from ds4tui.cache.outline import Outline
from ds4tui.cache.plan import SyncPlan, plan_sync
from ds4tui.cache.timeline import Timeline
from ds4tui.engine.fork_points import Point
from ds4tui.engine.models.rows import Logits
from ds4tui.engine.no_memory import is_no_memory
from ds4tui.engine.pieces import Model, Pieces, State, look_up, neighbours_rows
from ds4tui.engine.prefill import CHUNK_SIZES, CHUNK_STEP, Floats, Prefill, chunk_rows, vector
from ds4tui.engine.putting_away import Branch, add_snapshot
from ds4tui.engine.switching import Switch
from ds4tui.engine.vision.rows import Images, rows_of
from ds4tui.errors import ContextOverflow, EngineError, LostRecord

__all__ = [
    "CHUNK_SIZES",
    "CHUNK_STEP",
    "Floats",
    "Model",
    "Prefill",
    "Session",
    "SessionState",
    "chunk_rows",
]

_log = logging.getLogger(__name__)

# After so many records in a row that could not be read nothing is asked of the disk.
_LOST_RECORDS_MAX = 8

# From how many rows on the bytes of one are told: what a buffer takes besides weighs little then.
_SIZED_ROWS = 4096


class SessionState(StrEnum):
    EMPTY = "EMPTY"
    PREFILLING = "PREFILLING"
    READY = "READY"
    DECODING = "DECODING"
    POISONED = "POISONED"


class Session:
    """`chunk_sizes` are the row counts of prefill chunks; `context_tokens` may be less than the
    model's own. `memory` serves all sessions of an engine; without one nothing is kept beside
    the live state, and `disk` is asked for what memory does not have. `number` tells sessions
    apart, and `neighbours` are the others of the pool: rows that their live states hold can be
    copied."""

    def __init__(
        self,
        model: Model,
        chunk_sizes: Sequence[int] = CHUNK_SIZES,
        context_tokens: int | None = None,
        memory: MemoryTier | None = None,
        number: int = 1,
        disk: DiskTier | None = None,
        images: Images | None = None,
    ) -> None:
        self.chunk_sizes = tuple(sorted(set(chunk_sizes), reverse=True))
        if not self.chunk_sizes or self.chunk_sizes[-1] < 1:
            raise ValueError(f"chunk sizes must be positive: {chunk_sizes}")
        self.context_tokens = min(context_tokens or model.context_tokens, model.context_tokens)
        self.number = number
        self.neighbours: tuple[Session, ...] = ()
        self.emptied: Cause | None = None  # why nothing is live before the first prompt
        self.shares_room = False  # whether the memory tier gets what live states leave
        empty = model.new_state()
        self.needs_snapshots: bool = empty.needs_snapshots
        self._has_window = any(hasattr(layer, "window") for layer in empty.layers)
        self.changes = 0  # counts how often rows were cut off, rebuilt or given up
        self.snapshot_at = 0  # where the last snapshot of this timeline stands; 0: nowhere
        self._model = model
        self._memory = memory if memory is not None else MemoryTier(0)
        self._disk = disk
        self._lost_records = 0
        self._held = ExitStack()  # records on disk that the plan takes
        self._state: State | None = None
        self._images = images
        self._timeline = Timeline.empty()
        self._outline: Outline = ()
        self._name = SessionState.EMPTY
        self._prefill: Prefill | None = None
        self._planned: tuple[SyncPlan, Timeline, Outline] | None = None
        self._poison: str | None = None
        self._detach = self._memory.attach(lambda: self._timeline)
        self._debug = os.environ.get("DS4TUI_DEBUG") == "1"

    @property
    def timeline(self) -> Timeline:
        """What the state holds, and nothing else."""
        return self._timeline

    @property
    def outline(self) -> Outline:
        """Of the timeline that was last wanted; what lies behind the resident one counts not."""
        return self._outline

    @property
    def state_name(self) -> SessionState:
        return self._name

    @property
    def state(self) -> State | None:
        """For who copies out of it, on the engine thread."""
        return self._state

    @property
    def kv_bytes(self) -> int:
        """Bytes that are allocated for the state."""
        return self._state.nbytes if self._state is not None else 0

    def has_room(self, count: int) -> bool:
        """Whether `count` rows more are fed without allocating: asked before each token."""
        return self._state is not None and self._state.has_room(count)

    @property
    def is_sound(self) -> bool:
        """Whether the state holds the rows of the timeline and no others, as its name says. What
        fails inside a step or a rebuild poisons; after a fault beside them this tells whether
        the state can be gone on with."""
        rows, name = len(self._timeline), self._name
        lengths = {layer.length for layer in getattr(self._state, "layers", ())}
        is_held = lengths <= {rows} and (self._state is not None or not rows)
        is_empty = name in (SessionState.EMPTY, SessionState.POISONED)
        return is_held and (name is SessionState.PREFILLING or is_empty == (not rows))

    def snapshots_at(self) -> tuple[int, ...]:
        """Where the snapshots stand that are held of what is resident, ascending."""
        return self._memory.snapshots_of(self._timeline) if self.needs_snapshots else ()

    def worst_replay(self) -> int:
        """The most tokens that an edit of what is resident, wherever it is, makes a state compute
        again that the rows of are held; 0 for a state that can be cut anywhere."""
        return self._memory.worst_replay(self._timeline) if self.needs_snapshots else 0

    def growth_bytes(self, tokens: int, plan: SyncPlan | None = None) -> int:
        """How many more bytes are taken when `plan` is executed and the state grows to `tokens`
        rows, beside what it must let go before; without a plan, when the live state grows."""
        live = self.kv_bytes
        if plan is None:
            return max(0, self._model.kv_bytes(tokens) - live)
        given = self._memory.handle(plan.base_id).nbytes if plan.base_id is not None else 0
        begins_with = live if plan.base == "live" else given
        grown = max(self._model.kv_bytes(tokens), begins_with)
        return max(0, grown + plan.put_away_bytes - live - given)

    def plan(
        self,
        wanted: Timeline,
        outline: Outline = (),
        *,
        puts_away: bool = True,
        device_bytes: int | None = None,
        holds: bool = True,
    ) -> SyncPlan:
        """How to get to `wanted`; changes nothing. Where there is no memory for what would be
        put away, `puts_away` is False; `device_bytes` is what can be allocated now, None: what
        the tier has room for. What is to come from disk is held there (see `_hold`) unless
        `holds` is False. ValueError if `wanted` is empty."""
        offers = self._memory.offers(wanted, self._timeline)
        offers = offers.joined(Offers(rows=neighbours_rows(self.neighbours, wanted)))
        offers = offers.joined(self._on_disk(wanted, counts=holds))
        offers = replace(
            offers, takes=puts_away, is_shared=self.shares_room, device_bytes=device_bytes
        )
        plan = plan_sync(
            self._timeline,
            wanted,
            can_rewind=self._can_rewind,
            needs_snapshots=self.needs_snapshots,
            has_window=self._has_window,
            poisoned=self._poison,
            emptied=self.emptied if _has_history(outline) else None,
            offers=offers,
            rates=self._memory.rates,
            sizes=self._sizes(len(wanted) + 1),
            live_outline=self._outline,
            wanted_outline=outline,
        )
        self._planned = plan, wanted, outline
        if holds:
            self._hold(plan)
        return plan

    def foreseen(
        self, wanted: Timeline, outline: Outline = (), device_bytes: int | None = None
    ) -> SyncPlan:
        """What `plan` would be; the last plan that was made can still be executed."""
        planned = self._planned
        try:
            return self.plan(wanted, outline, device_bytes=device_bytes, holds=False)
        finally:
            self._planned = planned

    def forget_plan(self) -> None:
        """The last plan will not be executed: what it held on disk may go."""
        self._planned = None
        self._held.close()

    def sync(
        self, wanted: Timeline, plan: SyncPlan | None = None, outline: Outline = ()
    ) -> Prefill:
        """Keep what the plan keeps, put away the rest, and return the work that is left to do.

        Without a `plan` one is made. Raises ContextOverflow, ValueError (empty) or EngineError
        (a `plan` that was made for something else, or before something that it takes was
        evicted) before anything changes. LostRecord if something that the plan takes from disk
        cannot be read: the session is as it was, or has what is sound of `wanted`, and a new plan
        is to be made. A rebuild that fails otherwise poisons the session.
        """
        if len(wanted) > self.context_tokens:
            raise ContextOverflow(len(wanted), self.context_tokens)
        if plan is None:
            plan = self.plan(wanted, outline)
        made, self._planned = self._planned, None
        if made is None or made[0] is not plan or made[1] != wanted:
            raise EngineError(
                "The plan was made for another state of the session.", "Ask for a new plan."
            )
        with self._held:
            self._execute(plan, wanted, made[2])
        self._name = SessionState.PREFILLING
        self._prefill = Prefill(self, wanted, plan)
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
        if self._is_snapshot_due():
            self._snapshot("decode")
        self._check()
        return logits

    def end_turn(self) -> None:
        """A reply is over: who edits or goes on finds the bounded part as it is here.

        The last sampled token is not fed, so this is where the next prompt goes on: its first
        new token is that one. A snapshot here serves those who fork behind it before the next
        border, and a branch that is left and comes back.
        """
        if self._name in (SessionState.READY, SessionState.DECODING):
            self._snapshot("turn")

    def clear(self, reason: str, park: bool = True) -> None:
        """Give the live state up, parked if that is wanted and there is room, and be EMPTY."""
        self._close_prefill()
        if self._name is SessionState.POISONED or self._state is None:
            return
        left = self._branch()
        _log.info("session %d cleared: %s", self.number, reason)
        self._forget(SessionState.EMPTY)
        if park:
            left.park(self._memory)
        else:
            left.give_up(self._memory, 0, reason=reason)
        self._memory.settle()
        self._check()

    def poison(self, reason: str) -> None:
        """Give the state up: nothing of it is used again, its memory is free at once."""
        _log.warning("session poisoned: %s", reason)
        try:
            self._branch().give_up(self._memory, 0, Cause.SESSION_POISONED)
        finally:  # whatever could not be written down
            self._poison = reason
            self._forget(SessionState.POISONED)

    # -- planning ------------------------------------------------------------------------------

    def _can_rewind(self, to: int) -> bool:
        return self._state is not None and self._state.can_rewind(to)

    def _on_disk(self, wanted: Timeline, counts: bool) -> Offers:
        if self._disk is None or self._lost_records >= _LOST_RECORDS_MAX:
            return NO_OFFERS
        return Offers(*self._disk.offers(wanted, counts=counts))

    def _hold(self, plan: SyncPlan) -> None:
        """What the plan takes from disk stays there until it is executed or another is made."""
        self._held.close()
        if self._disk is not None:
            self._held.enter_context(self._disk.holding(plan.uses))

    def _sizes(self, wanted_tokens: int) -> Sizes:
        state, rows = self._state, len(self._timeline)
        wanted_bytes = self._model.kv_bytes(wanted_tokens)
        if state is None or not rows:
            row_bytes = max(1, self._model.kv_bytes(_SIZED_ROWS) // _SIZED_ROWS)
            return Sizes(row_bytes, wanted_bytes=wanted_bytes)
        row_bytes = max(1, state.rows_bytes(rows - 1, rows))
        return Sizes(row_bytes, state.snapshot_bytes, state.nbytes, wanted_bytes)

    # -- executing a plan ----------------------------------------------------------------------

    def _execute(self, plan: SyncPlan, wanted: Timeline, outline: Outline) -> None:
        with self._lost_records_told():
            pieces = self._look_up(plan)
        self._close_prefill()
        if plan.put_away_bytes:
            # While all is held as it was when the plan was made: things weigh the same.
            self._memory.let_go(plan.lacking_bytes, plan.uses, plan.worth_ms)
        switch = self._begun_switch(plan)
        snapshot_at = self.snapshot_at if plan.base == "live" else 0
        is_whole = plan.base == "live" and plan.kept == plan.base_rows == len(self._timeline)
        # From here on nothing is live until the rows of `wanted` are; a state that is neither
        # parked, copied from nor gone on with is free before new rows are allocated.
        self._forget(SessionState.EMPTY, is_changed=not is_whole)
        with self._poisoned_by_failure("changing branches"), self._lost_records_told():
            try:
                self._state = switch.made(pieces)
                self._expect_rows(plan.kept)
            except CorruptRecord:
                self._keep_sound(switch, wanted, outline)
                raise
            except BaseException as exc:
                switch.failed(is_state_sound=is_no_memory(exc))
                raise
        self._poison = self.emptied = None
        self._lost_records = 0
        # Equal to what the state holds, in the wanted one's buffer: it grows there without
        # copying.
        self._timeline, self._outline = wanted.prefix(plan.kept), outline
        switch.done()
        pieces.keep_bounded(self._memory, self._timeline, switch.put_away)
        self._memory.settle()
        is_behind = snapshot_at > plan.kept
        self.snapshot_at = plan.kept if plan.snapshot_id else 0 if is_behind else snapshot_at

    def _keep_sound(self, switch: Switch, wanted: Timeline, outline: Outline) -> None:
        """A page could not be read: what is in place before it stays live, what was cut off is
        put away all the same."""
        rows = switch.sound_rows()
        if rows:
            self._state, self._name = switch.base.state, SessionState.READY
            self._timeline, self._outline = wanted.prefix(rows), outline
        switch.done(rows)
        lost = switch.plan.kept - rows
        _log.warning("session %d: %d rows stay, %d are lost", self.number, rows, lost)

    def _look_up(self, plan: SyncPlan) -> Pieces:
        neighbours = {-other.number: other._state for other in self.neighbours}
        layers = self._model.new_state().layers if self._disk is not None else ()
        return look_up(plan, self._memory, self._state, neighbours, self._disk, layers)

    def _branch(self) -> Branch:
        return Branch(self._state, self._timeline, self._outline)

    def _begun_switch(self, plan: SyncPlan) -> Switch:
        left = self._branch()
        base = left if plan.base == "live" else self._taken_base(plan)
        return Switch(self._memory, plan, left, base)

    def _taken_base(self, plan: SyncPlan) -> Branch:
        if plan.base_id is None:
            return Branch(self._model.new_state(), Timeline.empty(), ())
        timeline = self._memory.timeline(plan.base_id)
        outline = self._memory.outline(plan.base_id)
        return Branch(self._memory.take_parked(plan.base_id), timeline, outline)

    # -- steps ---------------------------------------------------------------------------------

    def _evaluate(self, wanted: Timeline, end: int, logits: Logits) -> Floats | None:
        """Rows [len(timeline), end) of `wanted`: the one place that feeds the model."""
        start = len(self._timeline)
        rows = rows_of(wanted, start, end, logits, self._images)
        self._planned = None
        with self._poisoned_by_failure("evaluating tokens"):
            returned = self._model.forward(rows, self._state)
            values = vector(returned) if logits == "last" else None
            self._expect_rows(end)
        self._timeline = wanted.prefix(end)  # credited now that it is there
        return values

    def _prefill_ended(self) -> None:
        self._prefill = None
        self._name = SessionState.READY if len(self._timeline) else SessionState.EMPTY

    def _close_prefill(self) -> None:
        if self._prefill is not None:
            self._prefill_ended()

    def _forget(self, name: SessionState, is_changed: bool = True) -> None:
        self.changes += is_changed
        self._state, self._timeline, self._outline = None, Timeline.empty(), ()
        self._prefill = self._planned = None
        self.snapshot_at = 0
        self._name = name

    # -- snapshots -----------------------------------------------------------------------------

    def _snapshot(self, point: Point) -> None:
        """Give the bounded part, as it is now, to the memory tier, if there is one and room."""
        if self._state is not None and self.snapshot_at != len(self._timeline):
            self.snapshot_at = len(self._timeline)  # also if it is refused: not asked at once
            add_snapshot(self._memory, self._state, self._timeline, point)

    def _is_snapshot_due(self) -> bool:
        if not self.needs_snapshots or self._state is None:
            return False
        interval = self._memory.spacing_tokens(self._state.snapshot_bytes)
        return len(self._timeline) - self.snapshot_at >= interval

    # -- checks --------------------------------------------------------------------------------

    def _expect_rows(self, count: int) -> None:
        assert self._state is not None
        if self._state.length != count:
            raise EngineError(f"The state holds {self._state.length} rows instead of {count}.")

    @contextmanager
    def _lost_records_told(self) -> Iterator[None]:
        try:
            yield
        except CorruptRecord as exc:
            self._lost_records += 1
            self._memory.settle()
            raise LostRecord(f"A record on disk is of no use: {exc.message}") from exc

    @contextmanager
    def _poisoned_by_failure(self, what: str) -> Iterator[None]:
        try:
            yield
        except LostRecord as exc:  # what is half built is dropped; the rest is as it was
            _log.warning("session %d: %s", self.number, exc)
            raise
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
        assert self.snapshot_at <= rows, f"(11) a snapshot at {self.snapshot_at} of {rows}"


def _has_history(outline: Outline) -> bool:
    """Whether a conversation was going on before this prompt."""
    return any(turn.role == "assistant" for turn in outline)
