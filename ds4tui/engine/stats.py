"""What the engine is doing, as one frozen value that panels and /v1/cache poll. No mlx."""

from dataclasses import dataclass, field
from typing import Literal

from ds4tui.cache.kvconversations import StoredConversation
from ds4tui.cache.kvtally import DiskStats
from ds4tui.engine.layout import Run
from ds4tui.events import Decision, EncodingProgress, PrefillProgress, Usage
from ds4tui.kernels.expert_cache import ExpertStats

EngineState = Literal["loading", "idle", "prefilling", "decoding", "closed"]

# How many decisions and notes are kept to be looked at: a screen or two.
DECISIONS_KEPT = 64
NOTES_KEPT = 64
# Of the conversations on disk, the last used ones; /v1/cache/conversations lists all.
CONVERSATIONS_KEPT = 50


@dataclass(frozen=True, slots=True)
class SessionStats:
    """One resident session."""

    session: int  # its number, from 1
    state: str = "EMPTY"  # EMPTY | PREFILLING | DECODING | POISONED; READY: with rows, at rest
    resident_tokens: int = 0
    kv_bytes: int = 0
    snapshots: int = 0  # of bounded states, on the path that is resident
    worst_replay: int = 0  # tokens that an edit anywhere of it computes again at most; 0: none
    what: str = ""  # in words: who used it last, and how the conversation begins
    job_id: str = ""  # the job at work in it, "" while it rests
    used_s: float = 0.0  # when a job last began in it, in seconds since 1970; 0: never
    layout: tuple[Run, ...] = ()  # of what is resident, but for what was sampled since a job began
    snapshots_at: tuple[int, ...] = ()  # where the snapshots stand, ascending
    prefill: PrefillProgress | None = None  # of the job at work in it, while its prompt is read


@dataclass(frozen=True, slots=True)
class MemoryNote:
    """Something that the memory tier gave up, refused or thinned, and why."""

    time_s: float  # in seconds since 1970
    kind: str  # evicted | refused | thinned | pruned | dropped | tripwire
    text: str  # the whole of it in words
    tokens: int = 0
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Swapped by reference by the engine thread; readers never lock and never wait."""

    state: EngineState = "loading"
    model: str = ""
    context_tokens: int = 0
    resident_tokens: int = 0
    kv_bytes: int = 0
    weights_bytes: int = 0  # of the image encoder, too
    memory_active_bytes: int = 0  # a GPU: of its allocator; a CPU: resident of this process
    memory_peak_bytes: int = 0
    compute_path: str = ""  # in words: device, weight form, which matrix products
    job_id: str = ""  # the job at work, "" while idle
    origin: str = ""  # who asked for it
    queued_jobs: int = 0
    decision: Decision | None = None  # of the job at work, else of the last one
    prefill: PrefillProgress | None = None  # of the job at work, else of the last one
    encoding: EncodingProgress | None = None  # of the job at work, else of the last one
    usage: Usage = field(default_factory=Usage)  # of the job at work so far, else the last one
    decode_rates: tuple[float, ...] = ()  # tokens a second, of the last seconds with any
    requests: int = 0  # since the start
    total_prompt_tokens: int = 0
    total_cached_tokens: int = 0
    total_evaluated_tokens: int = 0
    total_completion_tokens: int = 0
    total_replayed_tokens: int = 0  # of the evaluated: held, and computed again all the same
    sessions: tuple[SessionStats, ...] = ()
    parked_states: int = 0  # whole states of branches that are not live
    parked_tokens: int = 0
    parked_bytes: int = 0
    segments: int = 0  # runs of KV rows of branches that are not live
    segment_tokens: int = 0
    segment_bytes: int = 0
    snapshots: int = 0  # of bounded states (recurrent, windowed layers), of all sessions
    snapshot_bytes: int = 0
    cache_budget_bytes: int = 0  # what parked states, segments and snapshots may take together
    encoder: str = ""  # the file of the image encoder; "": the model sees no pictures
    images_encoded: int = 0  # since the start
    images_held: int = 0  # whose vectors are held
    images_bytes: int = 0  # of those vectors
    images_budget_bytes: int = 0
    last_encode_ms: float = 0.0
    experts: ExpertStats | None = None  # copied on demand; None: all are held
    disk: DiskStats | None = None  # what outlives the process; None: nothing shall
    is_storing: bool = False  # an idle engine still copies or writes what shall go to disk
    conversations: tuple[StoredConversation, ...] = ()  # on disk, the last used first
    conversation_count: int = 0  # all of them
    decisions: tuple[Decision, ...] = ()  # the last DECISIONS_KEPT, oldest first
    notes: tuple[MemoryNote, ...] = ()  # the last NOTES_KEPT, oldest first
    tripwire: str = ""  # many requests and no reuse, in words, with the usual cause; "": all well
    tripwire_cause: str = ""  # that cause, a ds4tui.cache.causes.Cause
