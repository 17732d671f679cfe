"""A block whose mixing is a gated delta rule (Gated DeltaNet), in plain MLX: the reference.

Yang, Kautz and Hatamizadeh 2024 (arXiv 2412.06464), as Qwen3-Next and Qwen3.5 have it. Instead of
rows the layer keeps a matrix S a value head, and the last rows of a short convolution:
    q, k, v = silu(convolution over the last `kernel` rows of [q|k|v])
    q, k    = q / |q| / sqrt(key_size), k / |k|
    β, g    = sigmoid(b), decay · softplus(a + decay_bias)          one a value head, g <= 0
    S       = e^g S;  S = S + β (v - S k) kᵀ;  o = S q
    out     = Wo (RMSNorm(o) * silu(z))
All of this is float32, whatever the products around it are made in.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from ds4tui.kernels.block import Cosines, rms_norm
from ds4tui.kernels.feed_forward import FeedForwardWeights, feed_forward, silu
from ds4tui.kernels.linear import Linear

LENGTH_EPSILON = 1e-6  # under the root of |q|² and |k|²
STEPS_PENDING = 64  # of the reference: a graph of thousands of steps would take its memory

# q, k [T, Hv, Dk], v [T, Hv, Dv], g and β [T, Hv], S [Hv, Dv, Dk] to o [T, Hv, Dv] and the new S.
DeltaRule = Callable[
    [mx.array, mx.array, mx.array, mx.array, mx.array, mx.array], tuple[mx.array, mx.array]
]


class Recurrent(Protocol):
    """Where a block keeps S and the convolution's last rows (engine/state/recurrent.py)."""

    def held(self) -> tuple[mx.array, ...]: ...
    def replace(self, matrices: mx.array, tail: mx.array, count: int) -> None: ...
    def buffers(self) -> list[mx.array]: ...


@dataclass(frozen=True, slots=True)
class DeltaShape:
    """Value head p reads key head p % key_heads where heads are `tiled`, else p // share with
    share = value_heads / key_heads. `turn` is nothing to these blocks: they do not rotate."""

    key_heads: int
    value_heads: int
    key_size: int  # of one head
    value_size: int
    kernel: int  # rows that the convolution sees, its own among them
    norm_epsilon: float
    tiled: bool
    turn: int = 0

    @property
    def keys(self) -> int:
        return self.key_heads * self.key_size

    @property
    def values(self) -> int:
        return self.value_heads * self.value_size

    @property
    def channels(self) -> int:
        """Of the convolution: [q|k|v]."""
        return 2 * self.keys + self.values

    @property
    def matrices_shape(self) -> tuple[int, int, int]:
        return self.value_heads, self.value_size, self.key_size

    @property
    def tail_shape(self) -> tuple[int, int]:
        return self.kernel - 1, self.channels

    @property
    def state_bytes(self) -> int:
        """Of all that is kept, in float32."""
        return 4 * (math.prod(self.matrices_shape) + math.prod(self.tail_shape))


@dataclass(frozen=True, slots=True)
class DeltaWeights:
    """`inputs` give [q|k|v|z] side by side and `rates` [b|a], however many matrices the file
    makes of them. convolution [channels, kernel]; decay (< 0) and decay_bias [value_heads]; norm
    [value_size]."""

    inputs: tuple[Linear, ...]
    rates: tuple[Linear, ...]
    convolution: mx.array
    decay: mx.array
    decay_bias: mx.array
    norm: mx.array
    output: Linear


@dataclass(frozen=True, slots=True)
class DeltaBlockWeights:
    attn_norm: mx.array
    delta: DeltaWeights
    ffn_norm: mx.array
    feed_forward: FeedForwardWeights


class DeltaMixing:
    """n [T, width], float32 and normed, to [T, width], float32. Products are made in `dtype`.
    `gate` is what lets z through."""

    def __init__(
        self,
        weights: DeltaWeights,
        shape: DeltaShape,
        rule: DeltaRule,
        dtype: mx.Dtype = mx.float32,
        gate: Callable[[mx.array], mx.array] = silu,
    ) -> None:
        self._w, self._shape, self._rule, self._dtype = weights, shape, rule, dtype
        self._gate = gate

    def __call__(self, n: mx.array, layer: Recurrent) -> mx.array:
        w, shape, count = self._w, self._shape, n.shape[0]
        rows = side_by_side(w.inputs, n.astype(self._dtype)).astype(mx.float32)
        matrices, tail = layer.held()
        seen = mx.concatenate([tail, rows[:, : shape.channels]])
        q, k, v = heads_of(silu(convolved(seen, w.convolution)), shape)
        b, a = mx.split(side_by_side(w.rates, n), 2, axis=-1)
        decays = w.decay * mx.logaddexp(a + w.decay_bias, mx.array(0.0))
        o, matrices = self._rule(q, k, v, decays, mx.sigmoid(b), matrices)
        layer.replace(matrices, taken_tail(seen, count), count)
        z = rows[:, shape.channels :].reshape(o.shape)
        out = rms_norm(o, w.norm, shape.norm_epsilon) * self._gate(z)
        return w.output(out.reshape(count, -1).astype(self._dtype)).astype(mx.float32)


class DeltaBlock:
    """x [T, width] to [T, width], float32. Products are made in `dtype`."""

    def __init__(
        self,
        weights: DeltaBlockWeights,
        shape: DeltaShape,
        rule: DeltaRule,
        dtype: mx.Dtype = mx.float32,
    ) -> None:
        self.shape = shape
        self._w, self._dtype = weights, dtype
        self._mixing = DeltaMixing(weights.delta, shape, rule, dtype)
        self._feed_forward = feed_forward(weights.feed_forward)

    def __call__(self, x: mx.array, layer: Recurrent, turn: Cosines) -> mx.array:
        w, epsilon = self._w, self.shape.norm_epsilon
        h = x + self._mixing(rms_norm(x, w.attn_norm, epsilon), layer)
        fed = self._feed_forward(rms_norm(h, w.ffn_norm, epsilon).astype(self._dtype))
        return h + fed.astype(mx.float32)


def taken_tail(seen: mx.array, count: int) -> mx.array:
    """What is kept of the rows that a convolution saw in a step of `count` rows: taken, not cut
    out, since a view would keep all of them."""
    return mx.take(seen, mx.arange(count, seen.shape[0]), axis=0)


def convolved(seen: mx.array, weight: mx.array) -> mx.array:
    """seen [K - 1 + T, C] and weight [C, K] to [T, C]: each channel by itself."""
    kernel = weight.shape[1]
    count = seen.shape[0] - kernel + 1
    total = seen[:count] * weight[:, 0]
    for i in range(1, kernel):
        total = total + seen[i : i + count] * weight[:, i]
    return total


def heads_of(mixed: mx.array, shape: DeltaShape) -> tuple[mx.array, mx.array, mx.array]:
    """[q|k|v] [T, channels] to q and k [T, Hv, Dk], of unit length (q over sqrt(Dk)), each where
    its value head is, and v [T, Hv, Dv]."""
    q, k, v = mx.split(mixed, [shape.keys, 2 * shape.keys], axis=-1)
    q, k = (_unit(part.reshape(-1, shape.key_heads, shape.key_size)) for part in (q, k))
    q, k = (_spread(part, shape) for part in (q * shape.key_size**-0.5, k))
    return q, k, v.reshape(-1, shape.value_heads, shape.value_size)


def delta_steps(
    q: mx.array, k: mx.array, v: mx.array, decays: mx.array, rates: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """The rule as it is written, a row at a time; the types are those of DeltaRule."""
    return channel_steps(q, k, v, decays[..., None], rates, state)


def channel_steps(
    q: mx.array, k: mx.array, v: mx.array, decays: mx.array, rates: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """The same with a decay for each key channel, [T, H, Dk], or one for all, [T, H, 1]."""
    outs, kept = [], mx.exp(decays)
    for t in range(q.shape[0]):
        state = state * kept[t, :, None, :]
        found = (state * k[t, :, None, :]).sum(axis=-1)
        change = rates[t, :, None] * (v[t] - found)
        state = state + change[:, :, None] * k[t, :, None, :]
        outs.append((state * q[t, :, None, :]).sum(axis=-1))
        if t % STEPS_PENDING == STEPS_PENDING - 1:
            mx.eval(state, outs)
    return mx.stack(outs), state


def delta_fused(
    q: mx.array, k: mx.array, v: mx.array, decays: mx.array, rates: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """The same through MLX's own kernel, all rows in one call."""
    out, new = mx.fast.gated_delta_update(
        q[None], k[None], v[None], mx.exp(decays)[None], rates[None], state[None]
    )
    return out[0], new[0]


def _unit(x: mx.array) -> mx.array:
    return x * mx.rsqrt((x * x).sum(axis=-1, keepdims=True) + LENGTH_EPSILON)


def _spread(x: mx.array, shape: DeltaShape) -> mx.array:
    """[T, Hk, D] to [T, Hv, D]."""
    share = shape.value_heads // shape.key_heads
    return mx.tile(x, (1, share, 1)) if shape.tiled else mx.repeat(x, share, axis=1)


def side_by_side(linears: tuple[Linear, ...], x: mx.array) -> mx.array:
    parts = [linear(x) for linear in linears]
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=-1)
