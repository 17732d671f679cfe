"""Whether a model fits this machine's memory, all of it or with experts read as they are picked."""

from dataclasses import dataclass

from ds4tui.cache.memory import MemoryPlan, plan_memory
from ds4tui.library.headers import Facts


@dataclass(frozen=True, slots=True)
class Fit:
    """`is_in_part`: not all experts fit, and `plan` counts no more of them than a token picks."""

    plan: MemoryPlan
    is_in_part: bool = False


def fit_of(facts: Facts, available_bytes: int, asked_tokens: int = 0) -> Fit | None:
    """`asked_tokens` of context, 0: the model's own. None where the file does not say its own."""
    own = facts.context_tokens
    if not own:
        return None

    def plan(weights_bytes: int) -> MemoryPlan:
        wanted = min(asked_tokens or own, own)
        per_token, fixed = facts.kv_bytes_per_token, facts.kv_fixed_bytes
        return plan_memory(available_bytes, weights_bytes, per_token, wanted, fixed)

    whole = plan(facts.weights_bytes)
    if whole.fits or not facts.paged_bytes:
        return Fit(whole)
    paged = plan(facts.paged_bytes)
    return Fit(paged, is_in_part=True) if paged.fits else Fit(whole)
