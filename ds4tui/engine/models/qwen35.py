"""Qwen3.5, 3.6 and Qwen3.8-27B: hybrids, dense or with experts, as Qwen3-Next otherwise.

Their files have the value heads tiled: the first of every key head, then the second of each.
"""

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.models.decoder import DecoderConfig
from ds4tui.engine.models.feed_forwards import dense, experts_and_shared
from ds4tui.engine.models.hybrid import hybrid


def qwen35(gguf: GGUFFile) -> DecoderConfig:
    """Both of these raise GGUFError for missing or impossible keys."""
    return hybrid(gguf, dense(gguf), tiled=True, sections=True)


def qwen35moe(gguf: GGUFFile) -> DecoderConfig:
    return hybrid(gguf, experts_and_shared(gguf), tiled=True, sections=True)
