"""What a request is sampled with where it leaves parameters open.

Weakest first: the house's values, the model's own (what its authors recommend), what the person
set (config.toml, variables, flags), what the request asks for. A recommendation that names a
temperature is taken as whole: what it leaves out is off. Temperature 0, asked for by somebody, is
plain greedy: the authors' penalties belong to their sampling.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ds4tui.engine.requests import SamplingParams
from ds4tui.errors import RequestError

# min_p is llama.cpp's default. Without it the long tail of a small model's unlikely tokens,
# together a few percent, breaks every other sentence.
HOUSE: Mapping[str, float] = {"temperature": 0.7, "min_p": 0.05}

# general.sampling.*, which conversions write from generation_config.json since the end of 2025.
# llama.cpp's penalty_last_n, xtc and mirostat have nothing here that they could set.
_KEYS = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
    "penalty_freq": "frequency_penalty",
    "penalty_present": "presence_penalty",
}
_DIGITS = 7  # of a float32


@dataclass(frozen=True, slots=True)
class OwnSampling:
    """What a model's authors recommend, by names of SamplingParams; `source` says who says so."""

    values: Mapping[str, float] = field(default_factory=dict)
    source: str = ""


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """`chosen` is what the person set; `sources` says where, by name."""

    chosen: Mapping[str, Any] = field(default_factory=dict)
    own: OwnSampling = field(default_factory=OwnSampling)
    sources: Mapping[str, str] = field(default_factory=dict)

    def params(self, **asked: Any) -> SamplingParams:
        """Raises RequestError for a value out of range."""
        above = {**self.chosen, **asked}
        return SamplingParams(**{**self._below(above), **above})

    def words(self) -> str:
        """The values in force that do something, each group with its source."""
        params, below = self.params(), self._below(self.chosen)
        groups: dict[str, list[str]] = {}
        for name in _NEUTRAL:
            value = getattr(params, name)
            if value != _NEUTRAL[name]:
                groups.setdefault(self._source(name, below), []).append(f"{name} {value:g}")
        return "; ".join(f"{', '.join(each)} ({source})" for source, each in groups.items())

    def _below(self, above: Mapping[str, Any]) -> Mapping[str, float]:
        if above.get("temperature") == 0:
            return {}
        own = self.own.values
        return own if "temperature" in own else {**HOUSE, **own}

    def _source(self, name: str, below: Mapping[str, float]) -> str:
        if name in self.chosen:
            return self.sources.get(name, "set")
        return self.own.source if name in self.own.values and name in below else "ds4tui's default"


_NEUTRAL: Mapping[str, float] = {
    "temperature": -1,  # 0 does something, too
    "top_k": 0,
    "top_p": 1,
    "min_p": 0,
    "repetition_penalty": 1,
    "frequency_penalty": 0,
    "presence_penalty": 0,
}


def of_metadata(metadata: Mapping[str, Any]) -> OwnSampling:
    """What a GGUF's own keys recommend; a value that is none, or out of range, is left out."""
    found: dict[str, Any] = {}
    for key, name in _KEYS.items():
        value = metadata.get(f"general.sampling.{key}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if not math.isfinite(value):
            continue
        number: Any = int(value) if name == "top_k" else float(f"{value:.{_DIGITS}g}")
        try:
            SamplingParams(**{name: number})
        except RequestError:
            continue
        found[name] = number
    return OwnSampling(found, "the file's general.sampling") if found else OwnSampling()
