"""What the engine says while it works: frozen values, each with its job's id.

The app, the HTTP server and one-shot are three readers of this one stream. An event holds
plain Python values only (no device arrays), so any thread may keep it. A job's events come in
this order: Queued, then Decision, then PrefillProgress (one a chunk, the last one with
done == total), with EncodingProgress (one a picture that is encoded) between them, then TokenText
until exactly one of Finished or Failed ends the job. A cancelled job ends with
Finished(stop_reason="cancelled").

The engine says nothing but TokenText of a reply. The Assistant tells reasoning and tool calls
apart (chat/reply_reader.py): its listeners get ReasoningText and the ToolCall events between,
and the stop_reason "tool_calls" where a reply asks for tools.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:  # numpy must not be loaded for the sake of a name
    from ds4tui.cache.plan import SyncPlan

StopReason = Literal["stop", "length", "cancelled", "tool_calls"]


@dataclass(frozen=True, slots=True)
class Event:
    job_id: str


# Called on the engine thread: it must be quick; what it raises is logged and dropped.
Listener = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Queued(Event):
    """The job was accepted; `ahead` jobs are before it."""

    ahead: int


@dataclass(frozen=True, slots=True)
class Decision(Event):
    """How the session gets to the wanted timeline: a SyncPlan in plain values.

    All counts are tokens. live = resident before; prompt = wanted; common = common prefix;
    kept + evaluated = prompt; dropped = live - kept. `divergence` is the first differing
    position, or None when one timeline is a prefix of the other. `held` is the longest prefix of
    the prompt that anything resident matches; `replayed` of the evaluated were held and must yet
    be computed again. The windows are text around the divergence: what both sides share just
    before it, then how what was resident and what is wanted go on ("" where a side ends there).
    """

    kind: str  # extend | rewind | restore | load | cold
    source: str  # memory | parked | segment | snapshot | disk, joined by +; or none
    grade: str  # restore-exact | recompute-equal
    live: int
    prompt: int
    common: int
    kept: int
    dropped: int
    evaluated: int
    images: str  # match | changed | removed | none
    reason: str
    divergence: int | None = None
    cause: str | None = None  # a ds4tui.cache.causes.Cause; None: only new tokens are evaluated
    held: int = 0
    replayed: int = 0
    estimated_ms: float = 0.0
    base: str = ""  # the state that is gone on with: live | parked | fresh
    put_away: str = ""  # what becomes of the dropped rows: nothing | whole | tail | drop
    shared_window: str = ""
    live_window: str = ""
    wanted_window: str = ""
    origin: str = ""  # who asked: person | agent
    session: int = 0  # the number of the session that took it, from 1
    time_s: float = 0.0  # when, in seconds since 1970
    tripwire: str = ""  # new with this decision, in words: many long prompts, and no reuse
    what: str = ""  # in EngineStats: who asked, and how the conversation begins
    images_left_out: int = 0  # earlier ones that the model is not shown (images_kept)

    @classmethod
    def of(
        cls,
        job_id: str,
        plan: "SyncPlan",
        windows: tuple[str, str, str] = ("", "", ""),
        origin: str = "",
        session: int = 0,
        time_s: float = 0.0,
        tripwire: str = "",
        images_left_out: int = 0,
    ) -> "Decision":
        """`windows`: what both sides share, how the live one goes on, how the wanted one does."""
        shared, live, wanted = windows
        return cls(
            job_id,
            kind=plan.kind.value,
            source=plan.source,
            grade=plan.grade,
            live=plan.live,
            prompt=plan.prompt,
            common=plan.common,
            kept=plan.kept,
            dropped=plan.dropped,
            evaluated=plan.to_evaluate,
            images=plan.images,
            reason=plan.reason,
            divergence=plan.divergence.position if plan.divergence else None,
            cause=plan.cause.value if plan.cause else None,
            held=plan.held,
            replayed=plan.replayed,
            estimated_ms=plan.estimated_ms,
            base=plan.base,
            put_away=plan.put_away,
            shared_window=shared,
            live_window=live,
            wanted_window=wanted,
            origin=origin,
            session=session,
            time_s=time_s,
            tripwire=tripwire,
            images_left_out=images_left_out,
        )


@dataclass(frozen=True, slots=True)
class PrefillProgress(Event):
    """`done` of `total` tokens to evaluate are evaluated; `cached` were already resident.
    `slowed` says in words why it goes more slowly than alone."""

    done: int
    total: int
    cached: int
    tokens_per_s: float
    eta_s: float
    slowed: str = ""


@dataclass(frozen=True, slots=True)
class EncodingProgress(Event):
    """`done` of `total` pictures are encoded: those among the tokens to evaluate whose vectors
    were not held. `name` is of the one that took `took_ms`."""

    done: int
    total: int
    name: str
    took_ms: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One candidate token: its id, its bytes, its natural-log probability."""

    token_id: int
    token_bytes: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A sampled token with its log-probability and the best alternatives asked for."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenText(Event):
    """Text that is final: whole characters, no part of a stop string that may yet complete.

    `text` may be empty (a token that only holds half a character) and may belong to several
    tokens. `tokens` are the tokens sampled since the last TokenText; their logprobs are nan
    unless asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    tokens: tuple[SampledToken, ...] = ()  # filled when logprobs were asked for


@dataclass(frozen=True, slots=True)
class ReasoningText(Event):
    """What the model tells itself before it replies; the fields are those of TokenText."""

    text: str
    token_ids: tuple[int, ...]
    tokens: tuple[SampledToken, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCallBegun(Event):
    """Tool call `index` (0, 1, ..) of the reply has its name."""

    index: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments(Event):
    """More of the JSON text of a call's arguments, as the model writes it."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnded(Event):
    """A call is complete. `arguments` is JSON text of an object, in one layout."""

    index: int
    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCallRejected(Event):
    """Call `index`, which had begun, is none after all: its text follows as TokenText."""

    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int = 0
    cached_tokens: int = 0  # resident before the job and really used by it
    evaluated_tokens: int = 0  # prompt tokens computed by the job
    completion_tokens: int = 0  # sampled; an end-of-turn token counts, though it is not shown
    ttft_ms: float = 0.0  # from submission to the first sampled token, queueing included
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    encode_ms: float = 0.0  # of pictures, beside prefill_ms

    @property
    def prefill_tps(self) -> float:
        return self.evaluated_tokens / self.prefill_ms * 1e3 if self.prefill_ms else 0.0

    @property
    def decode_tps(self) -> float:
        # The first token comes out of the prefill: n tokens take n - 1 decode steps.
        steps = self.completion_tokens - 1
        return steps / self.decode_ms * 1e3 if steps > 0 and self.decode_ms else 0.0


@dataclass(frozen=True, slots=True)
class Finished(Event):
    """The job is done. `token_ids` are all sampled ids without the end-of-turn token.

    `stop_string` is the stop string that ended it; it and what follows are not in any TokenText.
    """

    stop_reason: StopReason
    usage: Usage
    token_ids: tuple[int, ...] = field(default=())
    stop_string: str | None = None


@dataclass(frozen=True, slots=True)
class Failed(Event):
    """The job ended with an error; `error_type` is a class name of ds4tui.errors."""

    error: Exception
    usage: Usage = field(default_factory=Usage)


def as_json(event: Event) -> dict[str, Any]:
    """An event as JSON-ready values, `type` first; what `-p --json` prints a line of."""
    values: dict[str, Any] = {"type": type(event).__name__}
    values.update({k: _plain(v) for k, v in asdict(event).items()})
    return values


def _plain(value: Any) -> Any:
    if isinstance(value, Exception):
        return {"type": type(value).__name__, "message": str(value)}
    if isinstance(value, bytes):
        return list(value)
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value
