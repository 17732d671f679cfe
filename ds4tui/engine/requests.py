"""What a caller asks of the engine. Plain values; no mlx."""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ds4tui.cache.outline import Outline
from ds4tui.cache.timeline import Timeline
from ds4tui.errors import RequestError

if TYPE_CHECKING:  # whoever sends no picture, or asks for no form, needs no library for that
    from ds4tui.engine.constraint import Constraint
    from ds4tui.engine.vision.recognition import Picture

Origin = Literal["person", "agent"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose tokens. temperature 0 is greedy; a None seed is drawn by the engine.

    The order (engine/sampling.py) is transformers': bias and penalties on logits, then
    temperature, then top_k, top_p, min_p on the resulting probabilities. (llama.cpp, by
    default, applies temperature last.)
    `repetition_penalty` (1 = off) covers prompt and reply; `frequency_penalty` and
    `presence_penalty` (0 = off) cover the reply only, as OpenAI defines them.
    `logprobs`: None = not asked for, else how many alternatives to report (0 to 20).
    `max_tokens`: None = to the end of the context.
    """

    temperature: float = 0.7
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    logprobs: int | None = None

    def __post_init__(self) -> None:
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:  # NaN fails both comparisons
                raise RequestError(
                    f"{name} must be between {low} and {high}, not {value}.", param=name
                )
        if not all(math.isfinite(bias) for _, bias in self.logit_bias):
            raise RequestError("A logit_bias must be a finite number.", param="logit_bias")
        if any(not s for s in self.stop):
            raise RequestError("A stop string must not be empty.", param="stop")


_RANGES: tuple[tuple[str, float, float], ...] = (
    ("temperature", 0.0, 10.0),
    ("top_p", 0.0, 1.0),
    ("top_k", 0, 2**31),
    ("min_p", 0.0, 1.0),
    ("repetition_penalty", 0.01, 10.0),
    ("frequency_penalty", -2.0, 2.0),
    ("presence_penalty", -2.0, 2.0),
    ("max_tokens", 1, 2**31),
    ("logprobs", 0, 20),
)


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One job: evaluate `timeline`, then sample until a stop token, string or limit. `outline`
    says which positions are whose message, `first_words` how the person began, where that is known:
    templates put words of their own before and behind them. `pictures` are those of the timeline's
    spans, in any order; of the conversation's, `images_left_out` earlier ones are not in it.
    `constraint` is the form that the reply must have."""

    timeline: Timeline
    sampling: SamplingParams = field(default_factory=SamplingParams)
    origin: Origin = "person"
    stop_token_ids: frozenset[int] = frozenset()
    outline: Outline = ()
    pictures: "tuple[Picture, ...]" = field(default=(), kw_only=True)
    first_words: str = ""
    constraint: "Constraint | None" = field(default=None, kw_only=True)
    images_left_out: int = field(default=0, kw_only=True)
