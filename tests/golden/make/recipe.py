"""How the weights of a tiny model are drawn, so that it is sensitive and the same everywhere.

Default initialisation is nearly blind: a tiny model's logits hardly move when a token of the
prompt changes, so a broken cache would go unseen. The gains here were tuned until every prompt
token moves the last logits by at least a hundred tolerances (the manifest has the numbers).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from tests.golden.make.tokens import BOS, EOS, VOCAB

BASE: dict[str, Any] = dict(
    vocab_size=VOCAB,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
    bos_token_id=BOS,
    eos_token_id=EOS,
    pad_token_id=None,
    tie_word_embeddings=False,
)

# One bit more than float16 holds and four more than bfloat16: an engine that rounds weights to
# either is seen, and the files still compress to half (float32's other bits are zero).
MANTISSA_BITS = 11


@dataclass(frozen=True)
class Recipe:
    """How a family's weights are drawn.

    A matrix gets std = gain / sqrt(columns), so a block's output is about as large as its
    input whatever the width. `gains` maps a part of a parameter's name to another gain; the
    last part that matches counts.
    """

    gains: Mapping[str, float] = field(default_factory=dict)
    zero_centred: tuple[str, ...] = ()  # name parts of norms that compute (1 + w)
    experts: int = 8  # for tables of experts a token

    def spread(self, name: str, parameter: torch.Tensor) -> tuple[float, float]:
        """Standard deviation and mean of parameter `name`."""
        gain = 1.0
        for part, value in self.gains.items():
            if part in name:
                gain = value
        last = name.rsplit(".", 2)[-2] if "." in name else name
        if name.endswith("A_log"):  # decay exp(-exp(A_log) * softplus(..)), near 0.97 a step
            return 0.3, 0.0
        if name.endswith("scale"):  # hyper-connections
            return 0.2, 1.0
        if name.endswith("dt_bias"):
            return 0.3, -3.0
        if "embed_tokens" in name or "ngram_embedding" in name:
            return 1.0, 0.0
        if parameter.ndim == 1 and name.endswith("weight") and "norm" in last:
            return 0.1, 0.0 if any(part in name for part in self.zero_centred) else 1.0
        if parameter.ndim <= 1 or name.endswith("bias"):
            return 0.2, 0.0
        return gain / math.sqrt(fan_in(parameter)), 0.0


def fan_in(parameter: torch.Tensor) -> int:
    """Inputs of one output: columns, or all but the first axis of a patch kernel."""
    return parameter[0].numel() if parameter.ndim >= 4 else parameter.shape[-1]


def draw(model: Any, recipe: Recipe, seed: int) -> Any:
    """Redraw every parameter of `model`; the order of parameters fixes the result.

    NumPy promises that RandomState's stream never changes; torch's differs between processors.
    """
    random = np.random.RandomState(seed)
    for name, parameter in model.named_parameters():
        deviation, mean = recipe.spread(name, parameter)
        values = random.standard_normal(tuple(parameter.shape)) * deviation + mean
        parameter.data.copy_(torch.from_numpy(values))
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(
                torch.from_numpy(coarse(random.standard_normal(tuple(buffer.shape)) * 0.1))
            )
        elif name.endswith("tid2eid"):
            for row in buffer:
                row.copy_(torch.from_numpy(random.permutation(recipe.experts)[: len(row)]))
    return model


def coarse(values: np.ndarray) -> np.ndarray:
    """`values` rounded to MANTISSA_BITS after the leading one, as float32."""
    mantissa, exponent = np.frexp(values.astype(np.float64))  # mantissa in 0.5 .. 1
    bits = MANTISSA_BITS + 1
    return np.ldexp(np.rint(np.ldexp(mantissa, bits)), exponent - bits).astype(np.float32)


def coarsen(model: Any) -> Any:
    """Round every parameter: the last step, after a family's own adjustments."""
    for parameter in model.parameters():
        parameter.data.copy_(torch.from_numpy(coarse(parameter.detach().numpy())))
    return model


def make(model_class: Any, config: Any, recipe: Recipe, seed: int) -> Any:
    """A `model_class` of `config` with eager attention and the recipe's weights."""
    config._attn_implementation = "eager"
    torch.manual_seed(0)  # for whatever a module draws that is not a parameter
    return draw(model_class(config).eval().float(), recipe, seed)
