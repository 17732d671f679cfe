"""What a prompt would cost, told before it is asked: a plan that is made and not executed."""

from dataclasses import dataclass

from ds4tui.cache.kventries import FIRST_HOLDER_ID
from ds4tui.cache.plan import SyncPlan


@dataclass(frozen=True, slots=True)
class Foreseen:
    """Counts are tokens: `prompt` = `in_memory` + `on_disk` + `to_compute`. `estimated_ms` is
    until the last of them is evaluated, by the rates that were measured so far."""

    prompt: int
    in_memory: int
    on_disk: int
    to_compute: int
    estimated_ms: float

    @classmethod
    def of(cls, plan: SyncPlan) -> "Foreseen":
        on_disk = _from_disk(plan)
        in_memory = plan.kept - on_disk
        return cls(plan.prompt, in_memory, on_disk, plan.to_evaluate, plan.estimated_ms)


def _from_disk(plan: SyncPlan) -> int:
    """Rows that come from the disk; of a state without rows all, where its snapshot does."""
    if plan.snapshot_id is not None and plan.snapshot_id <= FIRST_HOLDER_ID and not plan.parts:
        return plan.kept - plan.base_rows
    return sum(part.end - part.start for part in plan.parts if part.holder <= FIRST_HOLDER_ID)
