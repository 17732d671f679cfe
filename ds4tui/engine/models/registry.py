"""Which architectures are read, and how a file becomes a model that fits the memory."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import mlx.core as mx

from ds4tui.cache.memory import check_fits
from ds4tui.engine import device_memory
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.holding import required_bytes
from ds4tui.engine.models.decoder import DecoderModel
from ds4tui.engine.models.deepseek4 import deepseek4
from ds4tui.engine.models.gemma3 import gemma3
from ds4tui.engine.models.glm5_next import glm5_next
from ds4tui.engine.models.latent import latent
from ds4tui.engine.models.llama import llama
from ds4tui.engine.models.near import unread_architecture
from ds4tui.engine.models.qwen import qwen2, qwen2vl, qwen3, qwen3moe, qwen3vl, qwen3vlmoe
from ds4tui.engine.models.qwen3next import qwen3next
from ds4tui.engine.models.qwen4exp import qwen4exp
from ds4tui.engine.models.qwen35 import qwen35, qwen35moe
from ds4tui.engine.models.rows import Rows
from ds4tui.engine.models.streams import StreamModel
from ds4tui.engine.paging import CONTEXT_TOKENS_MIN, paged_path, paging_of
from ds4tui.engine.state import ModelState
from ds4tui.errors import ConfigError, GGUFError
from ds4tui.kernels import choice
from ds4tui.kernels.choice import ComputePath
from ds4tui.kernels.expert_cache import ExpertCache
from ds4tui.kernels.linear import Linear
from ds4tui.kernels.policy import EXACT, LoadedWeightsPolicy

log = logging.getLogger(__name__)

# What people may ask for: with less not even a template's own words and a short reply fit.
CONTEXT_TOKENS_ASKED_MIN = 64


class Model(Protocol):
    """One loaded model. Owned by the engine thread."""

    architecture: str
    context_tokens: int
    vocab_size: int
    weights_bytes: int
    compute_path: str  # in words: device, form of the matrices, what multiplies them
    weights_policy: LoadedWeightsPolicy  # two models of one file differ if their policies do
    unused_tensors: tuple[str, ...]  # of the file
    experts: ExpertCache[Linear] | None  # where they are copied on demand; None: all are held

    def new_state(self) -> ModelState: ...
    def forward(self, rows: Rows, state: ModelState) -> mx.array | None:
        """Evaluate rows behind those in `state`: logits float32 [1 or T, vocab], or None."""

    def kv_bytes(self, tokens: int) -> int:
        """The most that a state of up to `tokens` rows ever takes."""


class Config(Protocol):
    """What a family reads off a file before anything is loaded."""

    @property
    def context_tokens(self) -> int: ...
    @property
    def is_hybrid(self) -> bool:
        """Whether its blocks are of several kinds, which have kernels of their own."""

    def kv_bytes(self, tokens: int, path: ComputePath) -> int: ...
    def run_by(self, path: ComputePath) -> str:
        """What runs such a model, in words."""


class LoadSettings(Protocol):
    """The part of config.Settings that loading needs."""

    @property
    def context_tokens(self) -> int:
        """0: the model's own, or what fits the memory."""

    @property
    def expert_cache_bytes(self) -> int | None:
        """Of experts that are copied on demand; None: as the memory asks for; 0: never."""


@dataclass(frozen=True, slots=True)
class Family:
    """`config` reads the keys; `load` takes what it returned, and a granted context."""

    config: Callable[[GGUFFile], Any]
    load: Callable[[Any, GGUFFile, ComputePath, int], Model]


FAMILIES = {
    "llama": Family(llama, DecoderModel),
    "qwen2": Family(qwen2, DecoderModel),
    "qwen2vl": Family(qwen2vl, DecoderModel),
    "qwen3": Family(qwen3, DecoderModel),
    "qwen3moe": Family(qwen3moe, DecoderModel),
    "qwen3vl": Family(qwen3vl, DecoderModel),
    "qwen3vlmoe": Family(qwen3vlmoe, DecoderModel),
    "gemma3": Family(gemma3, DecoderModel),
    "qwen3next": Family(qwen3next, DecoderModel),
    "qwen35": Family(qwen35, DecoderModel),
    "qwen35moe": Family(qwen35moe, DecoderModel),
    "deepseek2": Family(latent, StreamModel),
    "deepseek32": Family(latent, StreamModel),
    "deepseek4": Family(deepseek4, StreamModel),
    "glm-dsa": Family(latent, StreamModel),
    "glm5-next": Family(glm5_next, StreamModel),
    "qwen4exp": Family(qwen4exp, StreamModel),
}

# What else files call a family, whose keys then begin so.
OTHER_NAMES = {"glm5next": "glm5-next"}


def load_model(
    gguf: GGUFFile,
    settings: LoadSettings,
    available_bytes: Callable[[], int] = device_memory.available_bytes,
    policy: LoadedWeightsPolicy = EXACT,
    tell: Callable[[str], None] = lambda _: None,
) -> Model:
    """Load the weights of `gguf`. `tell` gets words, before loading, if they do not all fit.

    Raises GGUFError for an architecture or variant that is not read, or a file that lacks
    something; ConfigError for a context too small to be of use; OutOfMemory, before anything
    is loaded, if weights and context cannot fit.
    """
    family = family_of(gguf)
    config = family.config(gguf)
    path = path_for(policy, config.is_hybrid)
    if policy.requantise != "off" and path.matrices != "quantised":
        log.warning("requantise=%s does nothing here: %s", policy.requantise, path.words)
    _check_asked(gguf, config.context_tokens, settings.context_tokens)
    available = available_bytes()
    path = paged_path(gguf, config, path, settings, available)
    context = granted_context(config, gguf, path, settings.context_tokens, available)
    paging = paging_of(gguf, path)
    if paging is not None:
        log.warning("%s: %s", gguf.path.name, paging.words)
        tell(paging.words)
    model = family.load(config, gguf, path, context)
    log.info(
        "loaded %s: architecture=%s context=%d compute=%s",
        gguf.path.name,
        model.architecture,
        model.context_tokens,
        model.compute_path,
    )
    return model


def _check_asked(gguf: GGUFFile, own: int, asked: int) -> None:
    if 0 < asked < CONTEXT_TOKENS_ASKED_MIN:
        raise ConfigError(
            f"A context of {asked} tokens has no room for a conversation.",
            f"Set context_tokens to {CONTEXT_TOKENS_ASKED_MIN} or more, or to 0 for the model's "
            "own.",
        )
    if asked > own:
        log.warning(
            "%s has a context of %d tokens: the %d asked for are cut to it",
            gguf.path.name,
            own,
            asked,
        )


def family_of(gguf: GGUFFile) -> Family:
    """Raises GGUFError for an architecture that is not read."""
    family = FAMILIES.get(OTHER_NAMES.get(gguf.architecture, gguf.architecture))
    if family is None:
        raise GGUFError(
            f"{gguf.path.name} has the architecture {gguf.architecture!r}, which is not read"
            f"{unread_architecture(gguf.architecture)}.",
            f"Choose a model of one of these: {', '.join(sorted(FAMILIES))}.",
        )
    return family


def path_for(policy: LoadedWeightsPolicy, hybrids: bool) -> ComputePath:
    """How this machine holds and runs models, `hybrids` or others."""
    return replace(choice.current().path(hybrids), policy=policy)


def granted_context(
    config: Config, gguf: GGUFFile, path: ComputePath, asked: int, available_bytes: int
) -> int:
    """The context to promise: what was asked for, at most the model's own. If nothing was
    asked for, as much of the model's own as fits beside the weights."""
    weights = required_bytes(gguf, path)
    wanted = min(asked or config.context_tokens, config.context_tokens)
    least = wanted if asked else min(wanted, CONTEXT_TOKENS_MIN)
    what = f"{gguf.path.name} with a context of {least:,} tokens"
    check_fits(what, weights + config.kv_bytes(least, path), available_bytes)
    fitting = _largest(least, wanted, lambda n: config.kv_bytes(n, path), available_bytes - weights)
    if fitting < wanted:
        log.warning("context cut from %d to %d tokens to fit the memory", wanted, fitting)
    return fitting


def _largest(low: int, high: int, cost: Callable[[int], int], budget: int) -> int:
    """The largest n in low..high with cost(n) <= budget; cost is monotone, cost(low) fits."""
    while low < high:
        middle = (low + high + 1) // 2
        if cost(middle) <= budget:
            low = middle
        else:
            high = middle - 1
    return low
