"""How the authors of well-known models say to sample them, as data, and which model a file is.

The values are those of each model's generation_config.json or model card on the day of
recommended.AS_OF. A file's own `general.sampling` keys come first: its converter knew better.
"""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ds4tui.engine.gguf import GGUFFile
    from ds4tui.engine.sampling_defaults import OwnSampling

_NAMES = ("general.name", "general.basename", "general.finetune", "general.size_label")


@dataclass(frozen=True, slots=True)
class Recommendation:
    """`pattern` is looked for in a model's names, lower case, words joined by hyphens. `source`
    is "" for what the authors say."""

    title: str
    pattern: str
    values: dict[str, float]
    source: str = ""


_QWEN3 = {"top_k": 20, "min_p": 0.0}

# The first that fits counts.
RECOMMENDATIONS = (
    # At 4 bits the 135M model is torn between English and French at the first word: "The" has
    # 0.152 and "L" 0.140 of the probability (llama.cpp on the same file: 0.120 and 0.157). With
    # the authors' top_p of 0.9, two of five answers to "What is the capital of France?" were
    # French and went round in circles; with half of it none of a dozen.
    Recommendation(
        "SmolLM2-135M-Instruct at 4 bits",
        r"smollm2-135m-instruct\.q4-1",
        {"temperature": 0.2, "top_p": 0.5},
        "chosen for this 4-bit file; its authors say top_p 0.9",
    ),
    Recommendation("SmolLM2 Instruct", r"smollm2.*instruct", {"temperature": 0.2, "top_p": 0.9}),
    Recommendation(
        "Qwen2.5 Instruct",
        r"qwen2\.5-(?!vl).*instruct",
        {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05},
    ),
    Recommendation(
        "Qwen3-Coder",
        r"qwen3-coder",
        {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05},
    ),
    Recommendation(
        "Qwen3-VL Instruct",
        r"qwen3-?vl.*instruct",
        {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "presence_penalty": 1.5},
    ),
    Recommendation(
        "Qwen3 Instruct", r"qwen3-.*instruct", {"temperature": 0.7, "top_p": 0.8, **_QWEN3}
    ),
    Recommendation("Qwen3, thinking", r"qwen3-", {"temperature": 0.6, "top_p": 0.95, **_QWEN3}),
    Recommendation(
        "Qwen3.5 that does not think unless told to",
        r"qwen3\.5-(0\.8|2|4|9)b",
        {"temperature": 0.7, "top_p": 0.8, **_QWEN3, "presence_penalty": 1.5},
    ),
    Recommendation(
        "Qwen3.5 and Qwen3.6, thinking",
        r"qwen3\.[56]-",
        {"temperature": 1.0, "top_p": 0.95, **_QWEN3, "presence_penalty": 1.5},
    ),
    Recommendation("Gemma 3", r"gemma-?3n?-", {"temperature": 1.0, "top_p": 0.95, "top_k": 64}),
    Recommendation("Llama 3 Instruct", r"llama-3.*instruct", {"temperature": 0.6, "top_p": 0.9}),
    Recommendation("DeepSeek V4", r"deepseek-v4", {"temperature": 1.0, "top_p": 1.0}),
)


def own_sampling(gguf: "GGUFFile") -> "OwnSampling":
    """What the authors of the model in `gguf` recommend; nothing for a model not known here."""
    from ds4tui.engine.sampling_defaults import of_metadata  # brings numpy

    own = of_metadata(gguf.metadata)
    if own.values:
        return own
    told = [gguf.metadata.get(key) for key in _NAMES]
    return recommended(*(text for text in told if isinstance(text, str)), gguf.path.stem)


def recommended(*names: str) -> "OwnSampling":
    """The recommendation for a model of these names."""
    from ds4tui.engine.sampling_defaults import OwnSampling

    text = "-".join(re.sub(r"[^a-z0-9.]+", "-", name.lower()) for name in names) + "-"
    for each in RECOMMENDATIONS:
        if re.search(each.pattern, text):
            return OwnSampling(each.values, each.source or f"{each.title}'s authors")
    return OwnSampling()
