"""What loading a model gives the engine thread."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ds4tui.cache.causes import Cause
from ds4tui.cache.kvstore import DiskTier
from ds4tui.cache.kvtally import DiskStats
from ds4tui.engine import device_memory
from ds4tui.engine.session import CHUNK_SIZES
from ds4tui.engine.session import Model as SessionModel
from ds4tui.engine.tokenizer import Tokenizer
from ds4tui.kernels.expert_cache import ExpertStats

if TYPE_CHECKING:  # a model that sees nothing needs neither Pillow nor encoders
    from ds4tui.engine.vision.held import HeldImages


class Model(SessionModel, Protocol):
    """What the engine needs of a model (engine.models.registry.Model is one)."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def weights_bytes(self) -> int: ...
    @property
    def compute_path(self) -> str: ...


def _unknown_use() -> tuple[int, int]:
    return 0, 0


def _nothing_kept() -> None:
    pass


def _all_held() -> None:
    return None


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Made by the engine's `load`, on the engine thread.

    `context_tokens` may be less than the model's own, None is the model's own. `chunk_sizes` are
    the row counts of prefill chunks. `memory_use` gives (active, peak) bytes, of a GPU's
    allocator or of this process, `available_bytes` what a state may still take; `give_back`
    returns what an allocator keeps of what was freed. `expert_stats`: of experts that are copied
    on demand, None if all are held. `sessions` live states are resident at
    once. What is put away beside them takes at most `put_away_bytes`; None: what they leave of
    the memory there is (cache/pools.py). `disk` keeps what shall outlive the process; the engine
    closes it; `no_disk` says why there is none though one is wanted. `emptied` is why a
    conversation that goes on finds nothing resident. `images` sees pictures; None: it sees none.
    """

    name: str
    model: Model
    tokenizer: Tokenizer
    context_tokens: int | None = None
    chunk_sizes: tuple[int, ...] = CHUNK_SIZES
    memory_use: Callable[[], tuple[int, int]] = field(default=_unknown_use)
    available_bytes: Callable[[], int] = field(default=device_memory.available_bytes)
    give_back: Callable[[], None] = field(default=_nothing_kept)
    expert_stats: Callable[[], ExpertStats | None] = field(default=_all_held)
    sessions: int = 1
    put_away_bytes: int | None = None
    emptied: Cause | None = None
    disk: DiskTier | None = None
    no_disk: DiskStats | None = None
    images: "HeldImages | None" = None

    @property
    def weights_bytes(self) -> int:
        """Of the model and of what sees pictures for it."""
        seeing = self.images.weights_bytes if self.images is not None else 0
        return self.model.weights_bytes + seeing
