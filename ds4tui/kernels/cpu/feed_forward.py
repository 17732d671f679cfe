"""The CPU twins of `kernels.feed_forward`, over float32 NumPy rows [T, width]."""

from collections.abc import Callable
from typing import cast

import numpy as np
import numpy.typing as npt

from ds4tui.kernels.cpu.linear import HostLinear, in_numpy
from ds4tui.kernels.cpu.stack import in_numpy_stack
from ds4tui.kernels.feed_forward import (
    GELU_CUBE,
    GELU_SCALE,
    Activation,
    ExpertsWeights,
    FeedForwardWeights,
    GatedWeights,
    require_plain,
)

Floats = npt.NDArray[np.float32]
FeedForward = Callable[[Floats], Floats]  # returns a new array


def host_feed_forward(weights: FeedForwardWeights) -> FeedForward:
    """Copies the matrices to where its twin wants them; TypeError if they are not in NumPy,
    ValueError for what its twin does not know."""
    require_plain(weights)
    if isinstance(weights, ExpertsWeights):
        if weights.shared is not None:
            raise ValueError("A shared expert is for the blocks of hybrids (hybrid.py).")
        return HostExperts(weights)
    return HostGated.of(weights)


class HostGated:
    def __init__(
        self, gate: HostLinear, up: HostLinear, down: HostLinear, activation: Activation
    ) -> None:
        self._gate_up, self._down = HostLinear.side_by_side(gate, up), down
        self._activation = activation

    @classmethod
    def of(cls, weights: GatedWeights) -> "HostGated":
        gate, up, down = (in_numpy(part) for part in (weights.gate, weights.up, weights.down))
        return cls(gate, up, down, weights.activation)

    def __call__(self, m: Floats) -> Floats:
        both = self._gate_up.apply(m)
        inner = both.shape[1] // 2
        gated = ACTIVATIONS[self._activation](both[:, :inner])
        gated *= both[:, inner:]
        return self._down.apply(gated)


class HostExperts:
    def __init__(self, weights: ExpertsWeights) -> None:
        self._router, self._used = in_numpy(weights.router), weights.used
        stacks = (in_numpy_stack(part) for part in (weights.gate, weights.up, weights.down))
        self._experts = [
            HostGated(gate, up, down, weights.activation)
            for gate, up, down in zip(*(stack.matrices for stack in stacks), strict=True)
        ]

    def __call__(self, m: Floats) -> Floats:
        """Each expert that was chosen sees all of its rows at once."""
        chosen, shares = routed(self._router.apply(m), self._used)
        y = np.zeros_like(m)
        for expert in np.unique(chosen):
            rows, place = np.nonzero(chosen == expert)
            y[rows] += self._experts[expert](m[rows]) * shares[rows, place, None]
        return y


def routed(scores: Floats, used: int) -> tuple[npt.NDArray[np.intp], Floats]:
    """As `kernels.feed_forward.routed`."""
    chosen = np.argpartition(-scores, used - 1, axis=1)[:, :used]
    shares = np.take_along_axis(scores, chosen, axis=1)
    shares -= shares.max(axis=1, keepdims=True)
    np.exp(shares, out=shares)
    shares /= shares.sum(axis=1, keepdims=True)
    return chosen, shares


def silu(x: Floats) -> Floats:
    """x / (1 + exp(-x)), a new array. Where exp overflows, the quotient is the right 0."""
    y = np.negative(x)
    with np.errstate(over="ignore"):
        np.exp(y, out=y)
    y += 1
    return cast(Floats, np.divide(x, y, out=y))


def gelu(x: Floats) -> Floats:
    """In its tanh form, a new array; (1 + tanh(z)) / 2 is written as 1 / (1 + exp(-2z)), which
    NumPy does twice as fast."""
    y = x * x
    y *= np.float32(-2 * GELU_SCALE * GELU_CUBE)
    y -= np.float32(2 * GELU_SCALE)
    y *= x
    with np.errstate(over="ignore"):
        np.exp(y, out=y)
    y += 1
    return cast(Floats, np.divide(x, y, out=y))


ACTIVATIONS: dict[Activation, Callable[[Floats], Floats]] = {"silu": silu, "gelu": gelu}
