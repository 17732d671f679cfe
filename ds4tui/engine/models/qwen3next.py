"""Qwen3-Next: a hybrid with experts, whose value heads are grouped by the key head they read."""

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.models.decoder import DecoderConfig
from ds4tui.engine.models.feed_forwards import experts_and_shared
from ds4tui.engine.models.hybrid import hybrid


def qwen3next(gguf: GGUFFile) -> DecoderConfig:
    """Raises GGUFError for missing or impossible keys."""
    return hybrid(gguf, experts_and_shared(gguf), tiled=False)
