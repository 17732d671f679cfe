"""The Qwen families: qwen2 (biases on q, k and v), qwen3 (a norm on each head of q and k) and
qwen3moe (experts). Rope pairs the halves of a head.

Those that see (qwen2vl, of Qwen2.5-VL too, qwen3vl, qwen3vlmoe) have positions in three
directions: in the older ones each turns a section of the pairs, in the others every third pair.
"""

from dataclasses import replace

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.layers import LayerLoader
from ds4tui.engine.models.decoder import DecoderConfig, attention
from ds4tui.engine.models.feed_forwards import ReadFeedForward, dense, experts
from ds4tui.engine.models.keys import block_count, block_shape, count, rotary_values
from ds4tui.engine.models.rotation import Rotation
from ds4tui.kernels.block import BlockWeights


def qwen2(gguf: GGUFFile) -> DecoderConfig:
    """Each of these raises GGUFError for missing or impossible keys."""
    return _config(gguf, dense(gguf), head_norms=False)


def qwen3(gguf: GGUFFile) -> DecoderConfig:
    return _config(gguf, dense(gguf), head_norms=True)


def qwen3moe(gguf: GGUFFile) -> DecoderConfig:
    return _config(gguf, experts(gguf), head_norms=True)


def qwen2vl(gguf: GGUFFile) -> DecoderConfig:
    config = qwen2(gguf)
    return replace(config, rotations=tuple(r.in_sections(gguf) for r in config.rotations))


def qwen3vl(gguf: GGUFFile) -> DecoderConfig:
    return _interleaved(gguf, qwen3(gguf))


def qwen3vlmoe(gguf: GGUFFile) -> DecoderConfig:
    return _interleaved(gguf, qwen3moe(gguf))


def _interleaved(gguf: GGUFFile, config: DecoderConfig) -> DecoderConfig:
    return replace(config, rotations=tuple(r.interleaved(gguf) for r in config.rotations))


def _config(gguf: GGUFFile, feed_forward: ReadFeedForward, head_norms: bool) -> DecoderConfig:
    shape, width = block_shape(gguf), count(gguf, ".embedding_length")
    rotary = rotary_values(gguf)

    def read_block(loader: LayerLoader, i: int) -> BlockWeights:
        at = f"blk.{i}."
        return BlockWeights(
            attn_norm=loader.vector(at + "attn_norm.weight", width),
            attention=attention(loader, at, width, shape, rotary, head_norms),
            ffn_norm=loader.vector(at + "ffn_norm.weight", width),
            feed_forward=feed_forward(loader, at),
        )

    return DecoderConfig(
        architecture=gguf.architecture,
        width=width,
        vocab_size=gguf.tensor("token_embd.weight").shape[0],
        context_tokens=count(gguf, ".context_length"),
        blocks=(shape,) * block_count(gguf),
        rotations=(Rotation.of(gguf, shape.key_size),),
        read_block=read_block,
    )
