"""What reads the feed-forward of a block: one for all rows, or experts that a router chooses."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.layers import LayerLoader
from ds4tui.engine.models.decoder import gated
from ds4tui.engine.models.keys import count, impossible
from ds4tui.kernels.feed_forward import ExpertsWeights, FeedForwardWeights

# Of the tensors whose names begin with the text.
ReadFeedForward = Callable[[LayerLoader, str], FeedForwardWeights]
ReadExperts = Callable[[LayerLoader, str], ExpertsWeights]


def dense(gguf: GGUFFile) -> ReadFeedForward:
    """Raises GGUFError for missing or impossible keys, as those below."""
    width, inner = count(gguf, ".embedding_length"), count(gguf, ".feed_forward_length")
    return lambda loader, at: gated(loader, at, width, inner)


def experts(gguf: GGUFFile) -> ReadExperts:
    width, inner = count(gguf, ".embedding_length"), count(gguf, ".expert_feed_forward_length")
    number, used = count(gguf, ".expert_count"), count(gguf, ".expert_used_count")
    if used > number:
        raise impossible(gguf, f"{used} of {number} experts cannot be used.")

    def read(loader: LayerLoader, at: str) -> ExpertsWeights:
        return ExpertsWeights(
            router=loader.exact_matrix(at + "ffn_gate_inp", number, width),
            gate=loader.stack(at + "ffn_gate_exps", number, inner, width),
            up=loader.stack(at + "ffn_up_exps", number, inner, width),
            down=loader.stack(at + "ffn_down_exps", number, width, inner),
            used=used,
        )

    return read


def experts_and_shared(gguf: GGUFFile) -> ReadExperts:
    """Experts, and the one that all rows share."""
    read_experts, width = experts(gguf), count(gguf, ".embedding_length")
    inner = count(gguf, ".expert_shared_feed_forward_length")

    def read(loader: LayerLoader, at: str) -> ExpertsWeights:
        return replace(
            read_experts(loader, at),
            shared=gated(loader, at, width, inner, suffix="_shexp"),
            shared_gate=loader.row(at + "ffn_gate_inp_shexp.weight", width),
        )

    return read


def limit(gguf: GGUFFile, of: str, i: int) -> float | None:
    """Of what a feed-forward lets through: a number, or one a block; None for none. Files that
    tell it of experts only mean the shared one, too."""
    held = gguf.metadata.get(f"{gguf.architecture}.swiglu_clamp_{of}")
    if held is None:
        return limit(gguf, "exp", i) if of == "shexp" else None
    limits = np.atleast_1d(np.asarray(held, np.float64))
    of_block = float(limits[min(i, len(limits) - 1)]) if limits.size else 0.0
    return of_block if 0 < of_block < math.inf else None
