"""What a model of any size takes, told from its header: weights, a token, a snapshot, a context.

Nothing is loaded, so a file may be planned for a machine that is not this one's size. Dtypes are
those of this machine's path.
"""

import math
from dataclasses import dataclass

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.holding import experts_bytes, required_bytes, resident_bytes
from ds4tui.engine.models.decoder import DecoderConfig
from ds4tui.engine.models.registry import Config, family_of, granted_context, path_for
from ds4tui.engine.models.streams import StreamConfig
from ds4tui.engine.paging import LEFT_OPEN, Paging, PagingSettings, paged_path, paging_of
from ds4tui.errors import OutOfMemory
from ds4tui.kernels.block import BlockShape
from ds4tui.kernels.choice import ComputePath
from ds4tui.kernels.delta import DeltaShape
from ds4tui.kernels.policy import EXACT, LoadedWeightsPolicy

# So long that what buffers have to spare, and pools that are not full, round away.
LONG = 1 << 40


@dataclass(frozen=True, slots=True)
class StateBytes:
    """`token`: of a row in the layers that keep all rows. `snapshot`: of what the other layers
    keep at one position. `slack`: of each further row that windows keep to go back by."""

    token: int
    snapshot: int = 0
    slack: int = 0


@dataclass(frozen=True, slots=True)
class BytesPlan:
    """`weights_bytes` are resident, `experts_bytes` of them those of experts, of which a token
    picks a few; `loading_bytes` is the peak. `longest_tokens`: of context in `memory_bytes`, at
    most the model's own `own_tokens`; 0 if the weights and a least context do not fit. `paging`:
    what is held of the experts where not all of them are; None: all."""

    weights_bytes: int
    experts_bytes: int
    loading_bytes: int
    state: StateBytes
    own_tokens: int
    memory_bytes: int
    longest_tokens: int
    paging: Paging | None = None


def plan_bytes(
    gguf: GGUFFile,
    memory_bytes: int,
    policy: LoadedWeightsPolicy = EXACT,
    wish: PagingSettings = LEFT_OPEN,
) -> BytesPlan:
    """Raises GGUFError for a file that is not read."""
    config: Config = family_of(gguf).config(gguf)
    whole = path_for(policy, config.is_hybrid)
    path = paged_path(gguf, config, whole, wish, memory_bytes)
    try:
        longest = granted_context(config, gguf, path, 0, memory_bytes)
    except OutOfMemory:
        longest = 0
    return BytesPlan(
        weights_bytes=resident_bytes(gguf, whole),
        experts_bytes=experts_bytes(gguf, path),
        loading_bytes=required_bytes(gguf, path),
        state=state_bytes(config, path),
        own_tokens=config.context_tokens,
        memory_bytes=memory_bytes,
        longest_tokens=longest,
        paging=paging_of(gguf, path),
    )


def state_bytes(config: Config, path: ComputePath) -> StateBytes:
    """Of a config that does not tell its layers apart, a token takes the growth of `kv_bytes`,
    in which the largest layer counts twice, and a snapshot what is there without rows."""
    size = path.activations.size
    if isinstance(config, DecoderConfig):
        return _of_blocks(config, size)
    if isinstance(config, StreamConfig):
        growth = sum(kept.growing_bytes(LONG, size) for kept in config.kept)
        snapshot = sum(kept.snapshot_bytes(size) for kept in config.kept)
        slack = sum(kept.slack_bytes(size) for kept in config.kept)
        return StateBytes(_growth(growth), snapshot, slack)
    return StateBytes(_growth(config.kv_bytes(LONG, path)), config.kv_bytes(0, path))


def _of_blocks(config: DecoderConfig, size: int) -> StateBytes:
    attending = [s for s in config.blocks if isinstance(s, BlockShape)]
    windows = [(s.row_values * size, s.window) for s in attending if s.window is not None]
    return StateBytes(
        token=sum(s.row_values * size for s in attending if s.window is None),
        snapshot=sum(row * (window - 1) for row, window in windows)
        + sum(s.state_bytes for s in config.blocks if isinstance(s, DeltaShape)),
        slack=sum(row for row, _ in windows),
    )


def _growth(nbytes: int) -> int:
    return math.floor(nbytes / LONG + 0.5)
