"""The Qwen families: qwen2 (biases on q, k and v), qwen3 (a norm on each head of q and k),
qwen3moe (experts) and qwen3vl, which sees, with positions in three directions. Rope pairs the
halves of a head.
"""

from collections.abc import Callable
from dataclasses import replace

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.layers import LayerLoader
from ds4tui.engine.models.decoder import DecoderConfig, attention, gated
from ds4tui.engine.models.keys import block_count, block_shape, count, impossible, rotary_values
from ds4tui.engine.models.rotation import Rotation
from ds4tui.kernels.block import BlockWeights
from ds4tui.kernels.feed_forward import ExpertsWeights, FeedForwardWeights

ReadFeedForward = Callable[[LayerLoader, str], FeedForwardWeights]


def qwen2(gguf: GGUFFile) -> DecoderConfig:
    """Each of these raises GGUFError for missing or impossible keys."""
    return _config(gguf, _dense(gguf), head_norms=False)


def qwen3(gguf: GGUFFile) -> DecoderConfig:
    return _config(gguf, _dense(gguf), head_norms=True)


def qwen3vl(gguf: GGUFFile) -> DecoderConfig:
    config = qwen3(gguf)
    return replace(config, rotations=tuple(r.interleaved(gguf) for r in config.rotations))


def qwen3moe(gguf: GGUFFile) -> DecoderConfig:
    return _config(gguf, _experts(gguf), head_norms=True)


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


def _dense(gguf: GGUFFile) -> ReadFeedForward:
    width, inner = count(gguf, ".embedding_length"), count(gguf, ".feed_forward_length")
    return lambda loader, at: gated(loader, at, width, inner)


def _experts(gguf: GGUFFile) -> ReadFeedForward:
    width, inner = count(gguf, ".embedding_length"), count(gguf, ".expert_feed_forward_length")
    experts, used = count(gguf, ".expert_count"), count(gguf, ".expert_used_count")
    if used > experts:
        raise impossible(gguf, f"{used} of {experts} experts cannot be used.")

    def read(loader: LayerLoader, at: str) -> ExpertsWeights:
        return ExpertsWeights(
            router=loader.exact_matrix(at + "ffn_gate_inp", experts, width),
            gate=loader.stack(at + "ffn_gate_exps", experts, inner, width),
            up=loader.stack(at + "ffn_up_exps", experts, inner, width),
            down=loader.stack(at + "ffn_down_exps", experts, width, inner),
            used=used,
        )

    return read
