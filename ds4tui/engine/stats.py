"""What the engine is doing, as one frozen value that panels and /v1/cache poll. No mlx."""

from dataclasses import dataclass, field
from typing import Literal

from ds4tui.events import Decision, PrefillProgress, Usage

EngineState = Literal["loading", "idle", "prefilling", "decoding", "closed"]


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Swapped by reference by the engine thread; readers never lock and never wait."""

    state: EngineState = "loading"
    model: str = ""
    context_tokens: int = 0
    resident_tokens: int = 0
    kv_bytes: int = 0
    weights_bytes: int = 0
    memory_active_bytes: int = 0  # a GPU: of its allocator; a CPU: resident of this process
    memory_peak_bytes: int = 0
    compute_path: str = ""  # in words: device, weight form, which matrix products
    job_id: str = ""  # the job at work, "" while idle
    origin: str = ""  # who asked for it
    queued_jobs: int = 0
    decision: Decision | None = None  # of the job at work, else of the last one
    prefill: PrefillProgress | None = None  # of the job at work, else of the last one
    usage: Usage = field(default_factory=Usage)  # of the job at work so far, else the last one
    requests: int = 0  # since the start
    total_prompt_tokens: int = 0
    total_cached_tokens: int = 0
    total_evaluated_tokens: int = 0
    total_completion_tokens: int = 0
