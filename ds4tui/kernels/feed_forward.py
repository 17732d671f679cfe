"""The feed-forward part of a block, in plain MLX: the reference of its twins.

gated:    Wdown · (a(Wgate m) * (Wup m))        with a = silu, or GELU in its tanh form
experts:  Σ share_e · gated_e(m)                over the likeliest experts of softmax(Wrouter m),
                                                whose probabilities are scaled to a sum of 1;
                                                some add sigmoid(w m) · gated(m) of a shared one

Some families route otherwise (`ExpertsWeights.route`), and some keep what the activation sees
below a limit l, min(Wgate m, l), and what it lets through within ±l.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import mlx.core as mx

from ds4tui.kernels.linear import Linear
from ds4tui.kernels.stack import Stack

Activation = Literal["silu", "gelu"]
FeedForward = Callable[[mx.array], mx.array]  # [T, width] to [T, width]
# Router's scores float32 [T, E] to the experts of each row and their shares, [T, used] each.
Route = Callable[[mx.array], tuple[mx.array, mx.array]]


@dataclass(frozen=True, slots=True)
class GatedWeights:
    gate: Linear
    up: Linear
    down: Linear
    activation: Activation = "silu"
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class ExpertsWeights:
    """`used` experts see each row, and one more all rows where it is `shared`, let through by
    sigmoid(`shared_gate` [width] · m); the router is held as exactly as can be."""

    router: Linear
    gate: Stack
    up: Stack
    down: Stack
    used: int
    activation: Activation = "silu"
    shared: GatedWeights | None = None
    shared_gate: mx.array | None = None
    route: Route | None = None  # None: `routed`
    limit: float | None = None


FeedForwardWeights = GatedWeights | ExpertsWeights


def require_plain(weights: FeedForwardWeights) -> None:
    """For the CPU twins: ValueError for a way of choosing experts, or a limit, that they do not
    know and would leave out without a word."""
    shared = weights.shared if isinstance(weights, ExpertsWeights) else None
    has_limit = weights.limit is not None or (shared is not None and shared.limit is not None)
    if has_limit or (isinstance(weights, ExpertsWeights) and weights.route is not None):
        raise ValueError("Only plain MLX knows this routing, or limits of what is let through.")


def feed_forward(weights: FeedForwardWeights) -> FeedForward:
    return Gated(weights) if isinstance(weights, GatedWeights) else Experts(weights)


class Gated:
    def __init__(self, weights: GatedWeights) -> None:
        self._w = weights

    def __call__(self, m: mx.array) -> mx.array:
        w = self._w
        return w.down(let_through(w.gate(m), w.up(m), w.activation, w.limit))


class Experts:
    def __init__(self, weights: ExpertsWeights) -> None:
        self._w = weights
        self._shared = None if weights.shared is None else Gated(weights.shared)

    def __call__(self, m: mx.array) -> mx.array:
        """Pairs of a row and an expert, ordered by expert so that rows of one lie together."""
        w = self._w
        scores = w.router(m.astype(mx.float32))
        chosen, shares = w.route(scores) if w.route else routed(scores, w.used)
        pairs = mx.argsort(chosen.reshape(-1))
        experts, rows = chosen.reshape(-1)[pairs], m[pairs // w.used]
        gates, values = w.gate(rows, experts), w.up(rows, experts)
        inner = let_through(gates, values, w.activation, w.limit)
        outs = w.down(inner, experts)[mx.argsort(pairs)].reshape(*chosen.shape, -1)
        total = (outs * shares[..., None]).sum(axis=1).astype(m.dtype)
        return total if self._shared is None else total + self._of_shared(m, self._shared)

    def _of_shared(self, m: mx.array, shared: Gated) -> mx.array:
        gate = self._w.shared_gate
        if gate is None:
            return shared(m)
        opened = mx.sigmoid(m.astype(mx.float32) @ gate)
        return (opened[:, None] * shared(m)).astype(m.dtype)


def let_through(
    gates: mx.array, values: mx.array, activation: Activation, limit: float | None
) -> mx.array:
    if limit is not None:
        gates, values = mx.minimum(gates, limit), mx.clip(values, -limit, limit)
    return ACTIVATIONS[activation](gates) * values


def routed(scores: mx.array, used: int) -> tuple[mx.array, mx.array]:
    """Scores [T, E] to the experts of each row and their shares, [T, used] each. A softmax over
    those chosen is the softmax over all, scaled to a sum of 1."""
    chosen = mx.argpartition(-scores, used - 1, axis=-1)[:, :used]
    return chosen, mx.softmax(mx.take_along_axis(scores, chosen, axis=-1), axis=-1)


def silu(x: mx.array) -> mx.array:
    return x * mx.sigmoid(x)


def gelu(x: mx.array) -> mx.array:
    """x / 2 * (1 + tanh(√(2/π) * (x + 0.044715 x³))), in float32 inside: x³ leaves float16."""
    y = x.astype(mx.float32)
    inner = GELU_SCALE * y * (1 + GELU_CUBE * y * y)
    return (0.5 * y * (1 + mx.tanh(inner))).astype(x.dtype)


GELU_SCALE, GELU_CUBE = 0.7978845608028654, 0.044715
ACTIVATIONS: dict[Activation, Callable[[mx.array], mx.array]] = {"silu": silu, "gelu": gelu}
