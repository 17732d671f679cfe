"""The resident sessions of an engine and what they share; which of them a request goes to.

A request goes where its own plan saves the most time, not where the longest prefix is common: a
session that would have to put a long conversation away for it is charged for that, so a side
request that shares only the system prompt gets an idle session, or a parked state's place, and
the long one stays. Rows that other sessions hold are copied. Owned by the engine thread.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ds4tui.cache.memory_tier import MemoryTier
from ds4tui.cache.outline import Outline
from ds4tui.cache.plan import SyncPlan
from ds4tui.cache.pools import divide
from ds4tui.cache.timeline import Timeline
from ds4tui.engine.disk_store import Storing
from ds4tui.engine.loaded import LoadedModel
from ds4tui.engine.session import Session
from ds4tui.engine.tripwire import Tripwire
from ds4tui.errors import ContextOverflow, OutOfMemory
from ds4tui.events import Usage
from ds4tui.kernels.expert_cache import ExpertStats

_log = logging.getLogger(__name__)

# What is put away has to be brought back, and may be evicted before: of the time that it would
# take to compute it, this share is what displacing another conversation costs.
DISPLACED_SHARE = 0.1
# Differences below this are no reason to displace anything, or to copy.
EQUAL_MS = 10.0
# A request waits for a busy session if that spares it at least this share of its prompt.
WAIT_SHARE = 0.5
# When the engine closes: supervisors give a process some seconds, and replies take some of them.
STORE_THE_REST_S = 1.0
# Rates are measured where there is enough to measure, and follow slowly: the estimates shall not
# jump with every busy moment of the machine.
MEASURED_TOKENS_MIN = 128
DECODED_TOKENS_MIN = 32
RATE_WEIGHT = 0.3


@dataclass(frozen=True, slots=True)
class Candidate:
    """What it costs to serve a request in one session that rests: `cost_ms` to get the prompt
    evaluated, `own` tokens of it are the session's already, `displaced` tokens of another
    conversation leave it. `used` counts uptake: the least was used longest ago."""

    number: int
    cost_ms: float
    kept: int
    own: int
    displaced: int
    used: int


def best(candidates: Sequence[Candidate]) -> Candidate:
    """The cheapest; of those that are alike, the one that displaces least, then the one that has
    most of it, then the one that was used longest ago."""
    least = min(candidate.cost_ms for candidate in candidates)
    alike = [c for c in candidates if c.cost_ms <= least + EQUAL_MS]
    return min(alike, key=lambda c: (c.displaced, -c.own, c.used, c.number))


def is_same_conversation(plan: SyncPlan, outline: Outline) -> bool:
    """Whether a prompt goes on with the conversation that is live, or forks from it: both have
    the first message of a person in common. Side requests share a system prompt at most."""
    first = next((turn for turn in outline if turn.role == "user"), None)
    if first is None:
        return plan.common > plan.live - plan.common
    return plan.common >= first.end


@dataclass(frozen=True, slots=True)
class Busy:
    """A session at work: what its job asked for, and whether that is evaluated."""

    wanted: Timeline
    is_decoding: bool


def is_worth_waiting(
    prompt: int, kept: int, busy_common: int, busy_live: int, is_decoding: bool
) -> bool:
    """Whether a request of `prompt` tokens should wait for a busy session, which wants
    `busy_common` of them and holds `busy_live` rows, rather than go where `kept` are kept at once.

    While that one still evaluates what both begin with, the same work would be done twice; as soon
    as it is past that its rows can be copied. Once it decodes, a request that goes on from all
    `busy_live` rows of it is the same conversation, whose jobs wait for each other; one that is
    wholly among them is not.
    """
    if is_decoding:
        return busy_common == busy_live < prompt and busy_common >= kept
    elsewhere = kept if kept > busy_live else 0  # else they are this one's rows, so far
    return busy_live < busy_common and busy_common - elsewhere >= WAIT_SHARE * prompt


class Pool:
    """`sessions` are numbered from 1. `room_bytes` is what there is for them, and for all that is
    put away, beside the weights. ValueError for a count of sessions below 1."""

    def __init__(self, loaded: LoadedModel, room_bytes: int) -> None:
        if loaded.sessions < 1:
            raise ValueError(f"an engine needs a session, not {loaded.sessions}")
        self.tripwire = Tripwire()
        self._loaded = loaded
        fixed = loaded.put_away_bytes
        self._shares_room = fixed is None
        self.memory = MemoryTier(self._put_away_bytes if fixed is None else fixed)
        self.sessions = tuple(
            Session(
                loaded.model,
                loaded.chunk_sizes,
                loaded.context_tokens,
                self.memory,
                number,
                loaded.disk,
                loaded.images,
            )
            for number in range(1, loaded.sessions + 1)
        )
        for session in self.sessions:
            session.neighbours = tuple(s for s in self.sessions if s is not session)
            session.shares_room = self._shares_room
            session.emptied = loaded.emptied
        self.disk, self.no_disk = loaded.disk, loaded.no_disk
        self.storing = (
            Storing(self.disk, self.memory, self.sessions) if self.disk is not None else None
        )
        self._used = dict.fromkeys(range(1, loaded.sessions + 1), 0)
        self._live_bytes = 0
        self._promised: dict[int, int] = {}  # bytes that a session was admitted for last
        self._promised_bytes = 0  # of sessions at work, not allocated yet
        self.kv_bytes = dict.fromkeys(self._used, 0)  # by session number, after the last step
        full = loaded.model.kv_bytes(self.context_tokens) * loaded.sessions
        has_snapshots = self.sessions[0].needs_snapshots
        self.images = loaded.images
        self._pools = divide(
            max(0, room_bytes),
            0,
            full,
            has_snapshots=has_snapshots,
            has_images=self.images is not None,
        )
        if self.images is not None and self._shares_room:
            self.images.budget_bytes = self._pools.embeddings_bytes

    @property
    def expert_stats(self) -> ExpertStats | None:
        """Of experts that are copied on demand; None: all are held."""
        return self._loaded.expert_stats()

    @property
    def context_tokens(self) -> int:
        return self.sessions[0].context_tokens

    def route(self, wanted: Timeline, outline: Outline, busy: Mapping[int, Busy]) -> Session | None:
        """The session that a request should go to; None: it should wait for a busy one.
        `busy` is by session number. Changes nothing."""
        free = [session for session in self.sessions if session.number not in busy]
        if not free:
            return None
        if len(self.sessions) == 1 or not 0 < len(wanted) <= self.context_tokens:
            return free[0]  # what cannot be done is told by whoever tries
        self._count_promised(busy)
        candidates = [self._candidate(session, wanted, outline) for session in free]
        chosen = best(candidates)
        for number, work in busy.items():
            live = self.sessions[number - 1].timeline
            held = live if work.is_decoding else work.wanted
            common = held.common_prefix(wanted)
            if is_worth_waiting(len(wanted), chosen.kept, common, len(live), work.is_decoding):
                return None
        return self.sessions[chosen.number - 1]

    def foreseen(self, wanted: Timeline, outline: Outline, busy: Collection[int]) -> SyncPlan:
        """How `wanted` would be got to now, in the session that it would go to, a busy one if
        there is no other. Changes nothing. Raises ContextOverflow, and ValueError if it is
        empty."""
        if len(wanted) > self.context_tokens:
            raise ContextOverflow(len(wanted), self.context_tokens)
        sessions = [s for s in self.sessions if s.number not in busy] or self.sessions
        plans = [s.foreseen(wanted, outline, self._available()) for s in sessions]
        candidates = [
            self._costed(session, plan, outline)
            for session, plan in zip(sessions, plans, strict=True)
        ]
        return plans[candidates.index(best(candidates))]

    def _put_away_bytes(self) -> int:
        """What may be put away now: live states that are not full lend what they do not use."""
        return self._pools.tier_bytes(self._live_now())

    def _live_now(self) -> int:
        return sum(session.kv_bytes for session in self.sessions)

    def stepped(self) -> None:
        """A step is over: where live states have grown into what they had lent, it comes back."""
        self.kv_bytes = {session.number: session.kv_bytes for session in self.sessions}
        live = sum(self.kv_bytes.values())
        if self._shares_room and live > self._live_bytes:
            self.memory.make_room(0)
        self._live_bytes = live

    def store_the_rest(self) -> None:
        """The engine is closed: what is resident goes to disk, as far as the time allows."""
        if self.storing is not None:
            self.storing.finish(STORE_THE_REST_S)

    def begin(self, session: Session) -> None:
        """A job begins in `session`."""
        self._used[session.number] = max(self._used.values()) + 1

    def measured(self, usage: Usage) -> None:
        """Learn from a job that has ended how fast this machine is."""
        rates = self.memory.rates
        if usage.evaluated_tokens >= MEASURED_TOKENS_MIN and usage.prefill_tps > 0:
            rate = _followed(rates.prefill_tokens_per_s, usage.prefill_tps)
            rates = replace(rates, prefill_tokens_per_s=rate)
        if usage.completion_tokens >= DECODED_TOKENS_MIN and usage.decode_tps > 0:
            rate = _followed(rates.decode_tokens_per_s, usage.decode_tps)
            rates = replace(rates, decode_tokens_per_s=rate)
        if self.disk is not None:
            loaded = self.disk.load_rate()
            if loaded is not None:
                rates = replace(rates, load_bytes_per_s=loaded)
            self.disk.rates = rates
        self.memory.rates = rates

    def admitted(
        self, session: Session, wanted: Timeline, outline: Outline, busy: Iterable[int] = ()
    ) -> SyncPlan:
        """The plan for `wanted` in `session`, with memory for it and the next token.

        What is put away displaces only what is worth less. Where the wanted state alone lacks
        memory, vectors of pictures go first, then the live states of resting sessions are parked,
        so that what is worth least of all that is held goes, and the plan is made anew on what is
        held then. Raises OutOfMemory with both numbers, and nothing of the session has changed,
        when even that does not do.
        """
        try:
            return self._admitted(session, wanted, outline, set(busy))
        except BaseException:  # no plan is executed: none holds anything on disk
            session.forget_plan()
            raise

    def _admitted(
        self, session: Session, wanted: Timeline, outline: Outline, busy: set[int]
    ) -> SyncPlan:
        self._count_promised(busy)
        if not self._can_ever_fit(session, wanted, busy):
            # Nothing makes way for what cannot be had.
            raise self._refusal(session, session.plan(wanted, outline, puts_away=False))
        resting = self._resting(session, busy)
        plan = self._plan(session, wanted, outline)
        while plan.lacking_bytes and self._makes_way(session, plan, resting):
            self._loaded.give_back()
            plan = self._plan(session, wanted, outline)
        if self._short(session, plan) > 0:
            plan = session.plan(wanted, outline, puts_away=False)
            if self._short(session, plan) > 0:
                raise self._refusal(session, plan)
        self._promised[session.number] = self._loaded.model.kv_bytes(plan.prompt + 1)
        return plan

    def admit_token(self, session: Session, busy: Iterable[int] = ()) -> None:
        """Memory for one row more of a reply, before it is fed: where buffers are full they grow
        with it. If the device is short, what no session at work needs makes way. Raises
        OutOfMemory, and nothing of the session has changed, when that does not do."""
        if session.has_room(1):
            return
        busy, tokens = set(busy), len(session.timeline) + 1
        needed = session.growth_bytes(tokens)
        if not needed:
            return
        self._count_promised(busy)
        resting = self._resting(session, busy)
        while needed > self._available() and self._gives_way(needed - self._available(), resting):
            self._loaded.give_back()
        available = self._available()
        if needed > available:
            raise OutOfMemory(f"A state of {tokens:,} tokens", needed, max(0, available))

    def _gives_way(self, short: int, resting: list[Session]) -> bool:
        """Whether something of all that is held has gone, or was parked to go next."""
        vectors = self.images.nbytes if self.images is not None else 0
        if self.images is not None:
            self.images.shrink_to(max(0, vectors - short))
            if self.images.nbytes < vectors:
                return True
        held = self.memory.nbytes
        return (held > 0 and self.memory.let_go(min(short, held))) or self._parks(resting)

    def _parks(self, resting: list[Session], uses: Collection[int] = ()) -> bool:
        """Whether one of `resting` was parked, if there is room for that; nothing of `uses`."""
        while resting:
            other = resting.pop(0)
            if other.kv_bytes and -other.number not in uses:
                if self.storing is not None:
                    self.storing.before_loss(other)
                other.clear("another session needs its memory")
                return True
        return False

    def _resting(self, session: Session, busy: Collection[int]) -> list[Session]:
        """The others that are not at work, the one that was used longest ago first."""
        resting = [s for s in self.sessions if s is not session and s.number not in busy]
        return sorted(resting, key=lambda s: self._used[s.number])

    def _count_promised(self, busy: Collection[int]) -> None:
        """What sessions at work were admitted for and have not allocated yet is not there for
        others."""
        at_work = (s for s in self.sessions if s.number in busy)
        left = (self._promised.get(s.number, 0) - s.kv_bytes for s in at_work)
        self._promised_bytes = sum(max(0, nbytes) for nbytes in left)

    def _available(self) -> int:
        return self._loaded.available_bytes() - self._promised_bytes

    def _plan(
        self, session: Session, wanted: Timeline, outline: Outline, *, holds: bool = True
    ) -> SyncPlan:
        return session.plan(wanted, outline, device_bytes=self._available(), holds=holds)

    def _makes_way(self, session: Session, plan: SyncPlan, resting: list[Session]) -> bool:
        """Whether something that `plan` can do without has gone, or was parked to be weighed."""
        short = self._short(session, plan)
        if short > 0 and self.images is not None and self.images.nbytes:
            self.images.shrink_to(max(0, self.images.nbytes - short))
            return True
        if plan.put_away_bytes:
            return self.memory.let_go(plan.lacking_bytes, plan.uses, plan.worth_ms)
        if self._parks(resting, plan.uses):
            return True
        gone = self.memory.let_go(plan.lacking_bytes, plan.uses)
        return gone or (0 < short and self.memory.let_go(short, plan.uses))

    def _can_ever_fit(self, session: Session, wanted: Timeline, busy: set[int]) -> bool:
        """Whether giving up all that is held, but by the other sessions at work, could be
        enough."""
        held = self.memory.nbytes + session.kv_bytes
        held += sum(s.kv_bytes for s in self.sessions if s is not session and s.number not in busy)
        held += self.images.nbytes if self.images is not None else 0
        grown = self._loaded.model.kv_bytes(len(wanted) + 1)
        return grown <= self._available() + held

    def _refusal(self, session: Session, plan: SyncPlan) -> OutOfMemory:
        tokens = plan.prompt + 1
        needed, available = session.growth_bytes(tokens, plan), max(0, self._available())
        return OutOfMemory(f"A state of {tokens:,} tokens", needed, available)

    def _short(self, session: Session, plan: SyncPlan) -> int:
        """How many bytes there are too few to allocate what `plan` takes; 0 or less: enough."""
        needed = session.growth_bytes(plan.prompt + 1, plan)
        return needed - self._available() if needed else 0

    def _candidate(self, session: Session, wanted: Timeline, outline: Outline) -> Candidate:
        return self._costed(session, self._plan(session, wanted, outline, holds=False), outline)

    def _costed(self, session: Session, plan: SyncPlan, outline: Outline) -> Candidate:
        displaced = 0 if is_same_conversation(plan, outline) else plan.dropped
        charge_ms = DISPLACED_SHARE * self.memory.rates.prefill_ms(displaced)
        own = min(plan.common, plan.kept)
        cost_ms = plan.estimated_ms + charge_ms
        used = self._used[session.number]
        return Candidate(session.number, cost_ms, plan.kept, own, displaced, used)


def _followed(before: float, measured: float) -> float:
    return before + RATE_WEIGHT * (measured - before)
