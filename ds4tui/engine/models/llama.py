"""The llama family: SmolLM2, Llama 2 and 3, Mistral and everything converted as `llama`.

Dense pre-norm blocks, grouped-query attention, rotary positions. The file's Q and K rows are
permuted for a rope over neighbouring values, so they are taken as they are.
"""

import logging

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.layers import LayerLoader
from ds4tui.engine.models.decoder import DecoderConfig, attention, gated
from ds4tui.engine.models.keys import block_count, block_shape, count, not_read
from ds4tui.engine.models.rotation import Rotation
from ds4tui.kernels.block import BlockWeights

log = logging.getLogger(__name__)


def llama(gguf: GGUFFile) -> DecoderConfig:
    """Raises GGUFError for missing or impossible keys and for variants that are not read."""
    if gguf.key(".expert_count", int, 0):
        raise not_read(gguf, "a llama with a mixture of experts is not read.")
    shape, width = block_shape(gguf), count(gguf, ".embedding_length")
    inner = count(gguf, ".feed_forward_length")

    def read_block(loader: LayerLoader, i: int) -> BlockWeights:
        at = f"blk.{i}."
        return BlockWeights(
            attn_norm=loader.vector(at + "attn_norm.weight", width),
            attention=attention(loader, at, width, shape),
            ffn_norm=loader.vector(at + "ffn_norm.weight", width),
            feed_forward=gated(loader, at, width, inner),
        )

    return DecoderConfig(
        architecture="llama",
        width=width,
        vocab_size=gguf.tensor("token_embd.weight").shape[0],
        context_tokens=_context_tokens(gguf),
        blocks=(shape,) * block_count(gguf),
        rotations=(Rotation.of(gguf, shape.key_size),),
        read_block=read_block,
    )


def _context_tokens(gguf: GGUFFile) -> int:
    """The trained context; a sliding window (early Mistral) is full attention up to its size."""
    context = count(gguf, ".context_length")
    window = gguf.key(".attention.sliding_window", int, 0)
    if 0 < window < context:
        log.info("%s: context cut to its sliding window of %d tokens", gguf.path.name, window)
        return window
    return context
