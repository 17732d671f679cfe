"""Mixtures of experts larger than the memory: what of the experts is held, decided before loading.

Where MLX holds copies of matrices, experts are copied from the file when a token picks them, into
a cache with a budget. Where products read the file's own blocks the system maps them, and keeps
in memory what fits by itself: then they are only not read ahead.
"""

import logging
from dataclasses import dataclass, replace
from typing import Protocol

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.holding import experts_bytes, is_experts, picked_bytes, required_bytes
from ds4tui.kernels.choice import ComputePath
from ds4tui.kernels.expert_cache import ExpertCache

log = logging.getLogger(__name__)

# A context that memory cuts below this is of no use: better to say so at the start.
CONTEXT_TOKENS_MIN = 512

# Of what the rest of the weights leaves: rows of a conversation, and what steps compute in
# between. Experts get the others.
_KV_SHARE, _SPARE_SHARE = 4, 16


class PagingSettings(Protocol):
    @property
    def context_tokens(self) -> int:
        """0: the model's own, or what fits the memory."""

    @property
    def expert_cache_bytes(self) -> int | None:
        """None: as the memory asks for; 0: experts are never copied on demand."""


class KVBytes(Protocol):
    @property
    def context_tokens(self) -> int: ...
    def kv_bytes(self, tokens: int, path: ComputePath) -> int: ...


@dataclass(frozen=True, slots=True)
class LoadWish:
    """As PagingSettings."""

    context_tokens: int = 0
    expert_cache_bytes: int | None = None


LEFT_OPEN = LoadWish()


@dataclass(frozen=True, slots=True)
class Paging:
    """`held_bytes` of experts are in memory at most, of `all_bytes`; a token picks
    `picked_bytes`. `held_bytes` is 0 where the system decides."""

    held_bytes: int
    all_bytes: int
    picked_bytes: int

    @property
    def words(self) -> str:
        whole = _mib(self.all_bytes)
        if self.held_bytes:
            held = f"of {whole} of experts {_mib(self.held_bytes)} are held"
        else:
            held = f"{whole} of experts are more than the memory; the system keeps what fits"
        return (
            f"{held}, others are read from the file when they are picked: a token picks "
            f"{_mib(self.picked_bytes)}, a chunk of a prompt up to all of them"
        )


def paging_of(gguf: GGUFFile, path: ComputePath) -> Paging | None:
    """What `path` (of `paged_path`) does with the experts of a file; None: they are all held."""
    if path.experts is None and not path.is_short:
        return None
    held = 0 if path.experts is None else path.experts.stats.budget_bytes
    return Paging(held, experts_bytes(gguf, path), picked_bytes(gguf, path))


def paged_path(
    gguf: GGUFFile,
    config: KVBytes,
    path: ComputePath,
    settings: PagingSettings,
    available_bytes: int,
) -> ComputePath:
    """`path`, or one that does not hold all experts: where it was asked for, or the model does not
    fit beside a least context. `path` too where that would not help: who loads then says so."""
    budget = settings.expert_cache_bytes
    if budget == 0 or not any(map(is_experts, gguf.tensors.values())):
        return path
    if budget is not None and path.copies_weights:
        return _with_cache(gguf, path, budget)
    if budget is not None:
        log.warning("expert_cache does nothing here: %s", path.words)
    least = config.kv_bytes(_least_tokens(config, settings), path)
    if required_bytes(gguf, path) + least <= available_bytes or path.matrices == "host":
        return path
    if not path.copies_weights:
        return replace(path, is_short=True)
    return _with_what_is_left(gguf, config, path, settings, available_bytes)


def _least_tokens(config: KVBytes, settings: PagingSettings) -> int:
    own = config.context_tokens
    return min(settings.context_tokens or CONTEXT_TOKENS_MIN, own)


def _with_what_is_left(
    gguf: GGUFFile,
    config: KVBytes,
    path: ComputePath,
    settings: PagingSettings,
    available_bytes: int,
) -> ComputePath:
    others = required_bytes(gguf, replace(path, experts=ExpertCache(0)))
    room = available_bytes - others
    kv = config.kv_bytes(_least_tokens(config, settings), path)
    if not settings.context_tokens:
        own = config.kv_bytes(config.context_tokens, path)
        kv = max(kv, min(own, room // _KV_SHARE))
    budget = room - kv - room // _SPARE_SHARE
    if budget < picked_bytes(gguf, path):
        return path
    return _with_cache(gguf, path, budget)


def _with_cache(gguf: GGUFFile, path: ComputePath, budget_bytes: int) -> ComputePath:
    """At least what a token picks: with less it would read all of that each time."""
    if budget_bytes >= experts_bytes(gguf, path):
        return path
    picked = picked_bytes(gguf, path)
    if picked > budget_bytes:
        log.warning("expert_cache is raised to %s, which a token picks", _mib(picked))
    return replace(path, experts=ExpertCache(max(budget_bytes, picked)))


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.0f} MiB"
