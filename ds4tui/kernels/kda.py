"""Mixing by Kimi Delta Attention, in plain MLX (GLM-5.3-Flash; Kimi Team 2025, arXiv 2510.26692).

As the gated delta rule (kernels/delta.py), but that each key channel forgets at a rate of its own:
    q, k, v = silu(convolution over the last `kernel` rows of [q|k|v])
    q, k    = q / |q| / sqrt(size), k / |k|
    g       = floor · sigmoid(rate (Wfb Wfa n + bias)), floor < 0; without one
              -rate · softplus(Wfb Wfa n + bias)                 one a key channel, g <= 0
    S       = S e^g;  S = S + sigmoid(Wb n) (v - S k) kᵀ;  o = S q
    out     = Wo (RMSNorm(o) * sigmoid(Wgb Wga n))
All of this is float32, whatever the products around it are made in.
"""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from ds4tui.kernels.block import rms_norm
from ds4tui.kernels.delta import (
    LENGTH_EPSILON,
    Recurrent,
    channel_steps,
    convolved,
    side_by_side,
    taken_tail,
)
from ds4tui.kernels.delta_chunks import STEPS_MAX, inverse, product
from ds4tui.kernels.feed_forward import silu
from ds4tui.kernels.linear import Linear
from ds4tui.kernels.streams import Step

CHUNK = 16  # rows; a power of 2. Each pair of rows has a factor for each channel

# q, k [T, H, D], v [T, H, D], g [T, H, D] and β [T, H], S [H, D, D] (values, keys) to o [T, H, D]
# and the new S.
ChannelRule = Callable[
    [mx.array, mx.array, mx.array, mx.array, mx.array, mx.array], tuple[mx.array, mx.array]
]


@dataclass(frozen=True, slots=True)
class KdaShape:
    """`floor`: the least that g may be, None for none."""

    heads: int
    size: int  # of keys and of values of one head
    kernel: int  # rows that the convolution sees, its own among them
    norm_epsilon: float
    floor: float | None

    @property
    def values(self) -> int:
        return self.heads * self.size

    @property
    def matrices_shape(self) -> tuple[int, int, int]:
        return self.heads, self.size, self.size

    @property
    def tail_shape(self) -> tuple[int, int]:
        return self.kernel - 1, 3 * self.values


@dataclass(frozen=True, slots=True)
class KdaWeights:
    """`inputs` give [q|k|v] side by side; `forget` and `gate` are two products one behind the
    other. convolution [3 * H * D, kernel]; rate (> 0) [H]; forget_bias [H * D]; norm [D]."""

    inputs: tuple[Linear, ...]
    convolution: mx.array
    forget: tuple[Linear, Linear]
    rate: mx.array
    forget_bias: mx.array
    beta: Linear
    gate: tuple[Linear, Linear]
    norm: mx.array
    output: Linear


class KdaMixing:
    """n [T, width], float32 and normed, to [T, width], float32. Products are made in `dtype`."""

    def __init__(
        self, weights: KdaWeights, shape: KdaShape, rule: ChannelRule, dtype: mx.Dtype
    ) -> None:
        self._w, self._shape, self._rule, self._dtype = weights, shape, rule, dtype

    def __call__(self, n: mx.array, layer: Recurrent, step: Step) -> mx.array:
        w, shape, count = self._w, self._shape, n.shape[0]
        rows = n.astype(self._dtype)
        matrices, tail = layer.held()
        inputs = side_by_side(w.inputs, rows).astype(mx.float32)
        seen = mx.concatenate([tail, inputs])
        q, k, v = mx.split(silu(convolved(seen, w.convolution)), 3, axis=-1)
        q, k = (_unit(self._heads(part)) for part in (q, k))
        rates = mx.sigmoid(w.beta(n))
        o, matrices = self._rule(
            q * shape.size**-0.5, k, self._heads(v), self._decays(rows), rates, matrices
        )
        layer.replace(matrices, taken_tail(seen, count), count)
        gates = self._heads(w.gate[1](w.gate[0](rows)).astype(mx.float32))
        out = rms_norm(o, w.norm, shape.norm_epsilon) * mx.sigmoid(gates)
        return w.output(out.reshape(count, -1).astype(self._dtype)).astype(mx.float32)

    def _decays(self, rows: mx.array) -> mx.array:
        w, floor = self._w, self._shape.floor
        raw = self._heads(w.forget[1](w.forget[0](rows)).astype(mx.float32) + w.forget_bias)
        rate = w.rate[:, None]
        if floor is None:
            return -rate * mx.logaddexp(raw, mx.array(0.0))
        return floor * mx.sigmoid(rate * raw)

    def _heads(self, x: mx.array) -> mx.array:
        return x.reshape(x.shape[0], self._shape.heads, self._shape.size)


def kda_chunks(
    q: mx.array, k: mx.array, v: mx.array, decays: mx.array, rates: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """The same in chunks, as kernels/delta_chunks.py has it, with G_i - G_j of each channel
    within the sums over channels: A_ij = β_i Σ_d e^(G_id - G_jd) k_id k_jd."""
    count = q.shape[0]
    if count <= STEPS_MAX:
        return channel_steps(q, k, v, decays, rates, state)
    outs = []
    for start in range(0, count, CHUNK):
        queries, keys, values, forgets, writes = (
            _chunk(x, start) for x in (q, k, v, decays, rates[..., None])
        )
        out, state = _of_chunk(queries, keys, values, forgets, writes, state)
        outs.append(out)
        mx.eval(out, state)  # the factors of all chunks would be pending at once
    return mx.concatenate(outs, axis=1).swapaxes(0, 1)[:count], state


def _of_chunk(
    q: mx.array, k: mx.array, v: mx.array, decays: mx.array, rates: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """Of arrays [H, CHUNK, ..]."""
    sums = mx.cumsum(decays, axis=-2)
    # Above the diagonal the difference is positive, and its power might not be finite.
    between = mx.exp(mx.minimum(sums[:, :, None] - sums[:, None], 0))
    after = between * k[:, None]
    solved = inverse(mx.tril(rates * (k[:, :, None] * after).sum(axis=-1), -1))
    mixing = mx.tril((q[:, :, None] * after).sum(axis=-1))
    before, reached = state.swapaxes(-1, -2), mx.exp(sums)
    changes = product(solved, rates * (v - product(reached * k, before)))
    out = product(reached * q, before) + product(mixing, changes)
    ends = sums[:, -1:]
    written = product(changes.swapaxes(-1, -2), mx.exp(ends - sums) * k)
    return out, mx.exp(ends) * state + written


def _chunk(x: mx.array, start: int) -> mx.array:
    """Rows [start, start + CHUNK) of [T, H, D] as [H, CHUNK, D]; rows of zeros behind the last
    change nothing."""
    part = x[start : start + CHUNK].swapaxes(0, 1)
    return mx.pad(part, [(0, 0), (0, CHUNK - part.shape[1]), (0, 0)])


def _unit(x: mx.array) -> mx.array:
    return x / mx.sqrt((x * x).sum(axis=-1, keepdims=True) + LENGTH_EPSILON)
