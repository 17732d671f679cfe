"""Architectures and variants that are close to what is read, and what each would need.

Only what nobody reads yet stands here: a name leaves these tables when its family joins
registry.py's FAMILIES. The needs are what sets a model apart by its published description; no
file of these was seen, so a list may be short of something. Needs no mlx.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Near:
    """`model`: what people call it. `needs`: what is not here yet, as one list in words."""

    model: str
    needs: str

    @property
    def words(self) -> str:
        return f"{self.model} would need {self.needs}"


UNREAD = {
    "deepseek41": Near(
        "DeepSeek V4.1 Flash", "engram tables and layers that use keys and values of others"
    ),
    "gemma2": Near("Gemma 2", "attention scores and logits that are softly capped"),
    "gemma3n": Near("Gemma 3n", "embeddings a layer, alternating updates and shared layers of KV"),
    "glm4": Near("GLM-4", "norms behind attention and feed-forward, and rope of half a head"),
    "glm4moe": Near(
        "GLM-4.5 and 4.6",
        "sigmoid routing with biases and shared experts behind a first dense block",
    ),
    "gpt-oss": Near("gpt-oss", "attention sinks and clamped experts with biases"),
    "llama4": Near("Llama 4", "attention in chunks beside layers without rope, and its routing"),
    "mistral3": Near("Mistral 3", "queries scaled with their position"),
    "phi3": Near("Phi 3 and 4", "fused matrices of attention and feed-forward, and longrope"),
    "qwen2moe": Near("Qwen2 with experts", "experts beside a shared one in blocks with biases"),
}

ROPE_SCALINGS = {
    "longrope": "two tables of factors, one for contexts longer than the original one",
}


def unread_architecture(architecture: str) -> str:
    """A clause to put behind "which is not read"; empty for one that nothing is known of."""
    near = UNREAD.get(architecture)
    return "" if near is None else f": {near.words}"


def unread_scaling(kind: str) -> str:
    """As above, of a type of rope scaling."""
    needs = ROPE_SCALINGS.get(kind)
    return "" if needs is None else f": it would need {needs}"
