"""Planted faults in what tells families apart, in the ways of faults.py and two more.

A fault of the config is a right file read wrongly: a DecoderConfig changed before it is loaded.
A fault of a kernel is patched into the reference and into NumPy's twin.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.layers import LayerLoader
from ds4tui.engine.models.decoder import DecoderConfig, DecoderModel
from ds4tui.engine.models.registry import FAMILIES
from ds4tui.engine.models.rotation import Rotation
from ds4tui.kernels import choice, feed_forward
from ds4tui.kernels.block import BlockShape, BlockWeights
from ds4tui.kernels.choice import AnyShape, AnyWeights
from ds4tui.kernels.cpu import feed_forward as host
from ds4tui.kernels.delta import DeltaBlockWeights, DeltaShape
from ds4tui.kernels.rope import neighbours
from tests.golden.files import golden_path
from tests.parity.faults import FileFault, tensors

# --- of the file -----------------------------------------------------------


TURNED = ("q.weight", "k.weight", "q.bias", "k.bias", "q_norm.weight", "k_norm.weight")


def _pair_neighbours(head_size: int) -> Callable[[Path], None]:
    """Rope turns values 2j and 2j+1 together where it should be j and j + half."""

    def change(path: Path) -> None:
        order = neighbours(1, head_size, head_size)
        for values in tensors(path, *(f"attn_{part}" for part in TURNED)):
            heads = values.reshape(-1, head_size, *values.shape[1:])
            heads[:, order] = heads.copy()

    return change


def _pair_neighbours_of_part(rotary: int, head_size: int) -> Callable[[Path], None]:
    """The same where only some values of a head turn."""

    def change(path: Path) -> None:
        order = neighbours(1, head_size, rotary)
        for norm in tensors(path, "attn_q_norm.weight", "attn_k_norm.weight"):
            norm[order] = norm.copy()
        for values in tensors(path, "attn_k.weight"):
            heads = values.reshape(-1, head_size, values.shape[1])
            heads[:, order] = heads.copy()
        for values in tensors(path, "attn_q.weight"):
            heads = values.reshape(-1, 2, head_size, values.shape[1])[:, 0]
            heads[:, order] = heads.copy()

    return change


def _zero(suffix: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        for tensor in tensors(path, suffix):
            tensor[:] = 0

    return change


def _add_one_to_norms(path: Path) -> None:
    for norm in tensors(path, "norm.weight"):
        norm += 1


def _add_one_to_gated_norm(path: Path) -> None:
    for norm in tensors(path, "ssm_norm.weight"):
        norm += 1


def _take_one_from_norms(path: Path) -> None:
    for norm in tensors(path, "attn_norm.weight", "attention_norm.weight", "output_norm.weight"):
        norm -= 1


def _keep_logarithms(path: Path) -> None:
    """A_log where -exp(A_log) belongs."""
    for decay in tensors(path, "ssm_a"):
        decay[:] = np.log(-decay)


def _turn_convolution(path: Path) -> None:
    """The newest row gets the weight of the oldest."""
    for weight in tensors(path, "ssm_conv1d.weight"):
        weight[:] = weight[:, ::-1].copy()


def _of_gates(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], None]:
    """Of the parts [heads, query or gate, size, width] of each q."""

    def changed(path: Path) -> None:
        for q in tensors(path, "attn_q.weight"):
            parts = q.reshape(4, 2, 32, -1)
            parts[:] = change(parts.copy())

    return changed


def _swap_rates(path: Path) -> None:
    """Of each key head the rows of b and of a."""
    for rates in tensors(path, "ssm_ba.weight"):
        parts = rates.reshape(2, 2, 2, -1)
        parts[:] = parts[:, ::-1].copy()


def _next_expert(path: Path) -> None:
    """An expert's gate is that of its neighbour."""
    for gate in tensors(path, "ffn_gate_exps.weight"):
        gate[:] = np.roll(gate, 1, axis=0)


FILE_FAULTS = {
    "qwen2: rope over neighbours": FileFault("qwen2", _pair_neighbours(16)),
    "qwen2: no bias of q": FileFault("qwen2", _zero("attn_q.bias")),
    "qwen2: no bias of k": FileFault("qwen2", _zero("attn_k.bias")),
    "qwen2: no bias of v": FileFault("qwen2", _zero("attn_v.bias")),
    "qwen3: rope over neighbours": FileFault("qwen3", _pair_neighbours(32)),
    "qwen3moe: another expert": FileFault("qwen3moe", _next_expert),
    "gemma3: 1 added to norms twice": FileFault("gemma3", _add_one_to_norms),
    "qwen35: 1 added to the gated norm": FileFault("qwen35", _add_one_to_gated_norm),
    "qwen35: norms without their 1": FileFault("qwen35", _take_one_from_norms),
    "qwen35: decay not exponentiated": FileFault("qwen35", _keep_logarithms),
    "qwen35: the convolution turned around": FileFault("qwen35", _turn_convolution),
    "qwen35: rope over neighbours": FileFault("qwen35", _pair_neighbours_of_part(16, 32)),
    "qwen35: attention not gated": FileFault("qwen35", _of_gates(lambda p: p * [[[1]], [[0]]])),
    "qwen35: gates and queries swapped": FileFault("qwen35", _of_gates(lambda p: p[:, ::-1])),
    "qwen3next: b and a swapped": FileFault("qwen3next", _swap_rates),
}


# --- of the config ---------------------------------------------------------


@dataclass(frozen=True)
class ConfigFault:
    family: str
    change: Callable[[DecoderConfig], DecoderConfig]

    def model(self) -> DecoderModel:
        with GGUFFile.open(golden_path(self.family)) as file:
            config = self.change(FAMILIES[file.architecture].config(file))
            return DecoderModel(config, file, choice.current().path(), config.context_tokens)


def _shapes(change: Callable[[BlockShape], BlockShape]) -> Callable[[DecoderConfig], DecoderConfig]:
    return lambda config: replace(config, blocks=tuple(change(shape) for shape in config.blocks))


def _weights(
    change: Callable[[BlockWeights], BlockWeights],
) -> Callable[[DecoderConfig], DecoderConfig]:
    def changed(config: DecoderConfig) -> DecoderConfig:
        def read(loader: LayerLoader, i: int) -> BlockWeights:
            return change(config.read_block(loader, i))

        return replace(config, read_block=read)

    return changed


def _attention(**changes: Any) -> Callable[[DecoderConfig], DecoderConfig]:
    return _weights(lambda w: replace(w, attention=replace(w.attention, **changes)))


def _feed_forward(**changes: Any) -> Callable[[DecoderConfig], DecoderConfig]:
    return _weights(lambda w: replace(w, feed_forward=replace(w.feed_forward, **changes)))


def _swap_norms(w: BlockWeights) -> BlockWeights:
    a = w.attention
    return replace(w, attention=replace(a, q_norm=a.k_norm, k_norm=a.q_norm))


def _heads_in_the_other_order(config: DecoderConfig) -> DecoderConfig:
    """Value heads read other key heads."""

    def change(shape: AnyShape) -> AnyShape:
        is_delta = isinstance(shape, DeltaShape)
        return replace(shape, tiled=not shape.tiled) if is_delta else shape

    return replace(config, blocks=tuple(change(shape) for shape in config.blocks))


def _swapped_rates(w: AnyWeights) -> AnyWeights:
    if not isinstance(w, DeltaBlockWeights):
        return w
    return replace(w, delta=replace(w.delta, rates=w.delta.rates[::-1]))


def _whole_heads_turned(config: DecoderConfig) -> DecoderConfig:
    return replace(config, rotations=(Rotation.plain(10_000.0, 32),))


def _slowed(rotation: Rotation, factor: float) -> Rotation:
    return Rotation(rotation.frequencies / factor)


def _wider_window(more: int) -> Callable[[BlockShape], BlockShape]:
    return lambda shape: replace(shape, window=shape.window and shape.window + more)


CONFIG_FAULTS = {
    "qwen3: no norms of heads": ConfigFault("qwen3", _attention(q_norm=None, k_norm=None)),
    "qwen3: norms of q and k swapped": ConfigFault("qwen3", _weights(_swap_norms)),
    "qwen3moe: one expert too many": ConfigFault("qwen3moe", _feed_forward(used=3)),
    "qwen35: value heads grouped": ConfigFault("qwen35", _heads_in_the_other_order),
    "qwen3next: value heads tiled": ConfigFault("qwen3next", _heads_in_the_other_order),
    "qwen35: b and a swapped": ConfigFault("qwen35", _weights(_swapped_rates)),
    "qwen35: all values of heads turned": ConfigFault("qwen35", _whole_heads_turned),
    "qwen35moe: no shared expert": ConfigFault("qwen35moe", _feed_forward(shared=None)),
    "qwen35moe: a shared expert let through": ConfigFault(
        "qwen35moe", _feed_forward(shared_gate=None)
    ),
    "qwen3next: one expert too many": ConfigFault("qwen3next", _feed_forward(used=3)),
    "gemma3: a window one row too long": ConfigFault("gemma3", _shapes(_wider_window(1))),
    "gemma3: a window one row too short": ConfigFault("gemma3", _shapes(_wider_window(-1))),
    "gemma3: no window": ConfigFault("gemma3", _shapes(lambda s: replace(s, window=None))),
    "gemma3: the global layer is the next one": ConfigFault(
        "gemma3", lambda c: replace(c, blocks=(*c.blocks[-1:], *c.blocks[:-1]))
    ),
    "gemma3: local and global rope swapped": ConfigFault(
        "gemma3", lambda c: replace(c, rotations=c.rotations[::-1])
    ),
    "gemma3: embeddings not scaled": ConfigFault(
        "gemma3", lambda c: replace(c, embedding_scale=1.0)
    ),
    "gemma3: local frequencies slowed too": ConfigFault(
        "gemma3", lambda c: replace(c, rotations=(c.rotations[0], _slowed(c.rotations[1], 8.0)))
    ),
    "gemma3: global frequencies not slowed": ConfigFault(
        "gemma3", lambda c: replace(c, rotations=(_slowed(c.rotations[0], 1 / 8), c.rotations[1]))
    ),
    "gemma3: scores scaled as by 27B": ConfigFault(
        "gemma3", _shapes(lambda s: replace(s, scale=16**-0.5))
    ),
    "gemma3: silu for GELU": ConfigFault("gemma3", _feed_forward(activation="silu")),
    "gemma3: no norm after attention": ConfigFault(
        "gemma3", _weights(lambda w: replace(w, attn_post_norm=None))
    ),
    "gemma3: no norm after the feed-forward": ConfigFault(
        "gemma3", _weights(lambda w: replace(w, ffn_post_norm=None))
    ),
}


# --- of a kernel -----------------------------------------------------------


def shares_not_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts get their probabilities as they are."""

    def reference(scores: mx.array, used: int) -> tuple[mx.array, mx.array]:
        chosen, _ = right(scores, used)
        return chosen, mx.take_along_axis(mx.softmax(scores, axis=-1), chosen, axis=-1)

    def twin(scores: np.ndarray, used: int) -> tuple[np.ndarray, np.ndarray]:
        chosen, shares = reference(mx.array(scores), used)
        return np.array(chosen), np.array(shares)

    right = feed_forward.routed
    monkeypatch.setattr(feed_forward, "routed", reference)
    monkeypatch.setattr(host, "routed", twin)
