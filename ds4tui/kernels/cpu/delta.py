"""The CPU twin of `kernels.delta`: the gated delta rule in NumPy, and the mixing around it.

The rule has two forms. A row at a time it reads and writes the matrices at every row. In chunks
of CHUNK rows it is a triangular system and a few products: with G the sums of g within a chunk,
    (I + A) U = β (V - e^G K Sᵀ),   A_ij = β_i e^(G_i - G_j) k_i·k_j      for j < i
    O  = e^G Q Sᵀ + B U,            B_ij = e^(G_i - G_j) q_i·k_j          for j <= i
    S' = e^(G_C) S + Uᵀ (e^(G_C - G) K)
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.kernels.cpu.decoder import rms_norm
from ds4tui.kernels.cpu.feed_forward import silu
from ds4tui.kernels.cpu.linear import host_view
from ds4tui.kernels.cpu.products import product
from ds4tui.kernels.cpu.threads import workers
from ds4tui.kernels.delta import LENGTH_EPSILON, DeltaRule, DeltaShape, DeltaWeights

Floats = npt.NDArray[np.float32]

CHUNK = 64  # rows: beyond that the triangular systems cost more than they save
STEPS_MAX = 8  # rows up to which a step at a time is faster than a chunk

# q, k [T, Hk, Dk], v [T, Hv, Dv], g and β [T, Hv], S [Hv, Dv, Dk], which it changes, to o
# [T, Hv, Dv].
HostRule = Callable[[Floats, Floats, Floats, Floats, Floats, Floats], Floats]


def over_mlx(rule: HostRule) -> DeltaRule:
    """`rule`, of as many key heads as value heads, for blocks that run in MLX."""

    def computed(
        q: mx.array, k: mx.array, v: mx.array, g: mx.array, rates: mx.array, state: mx.array
    ) -> tuple[mx.array, mx.array]:
        mx.eval(q, k, v, g, rates, state)
        queries, keys, values = (np.ascontiguousarray(host_view(x)) for x in (q, k, v))
        new = host_view(state).copy()
        o = rule(queries, keys, values, host_view(g), host_view(rates), new)
        return mx.array(o), mx.array(new)

    return computed


class HostRecurrent(Protocol):
    """Where a block keeps S and the convolution's last rows (engine/state/recurrent.py)."""

    def held(self) -> tuple[Floats, Floats]: ...
    def replace(self, matrices: Floats, tail: Floats, count: int) -> None: ...


class HostDelta:
    """The mixing of a delta block: normalised rows [T, width] to [T, width]."""

    def __init__(self, weights: DeltaWeights, shape: DeltaShape, rule: HostRule) -> None:
        self._shape, self._rule, self._workers = shape, rule, workers()
        self._inputs, self._rates = product(*weights.inputs), product(*weights.rates)
        self._output = product(weights.output)
        self._convolution = np.ascontiguousarray(host_view(weights.convolution).T)  # [K, C]
        self._decay, self._decay_bias = host_view(weights.decay), host_view(weights.decay_bias)
        self._norm = host_view(weights.norm)

    def __call__(self, n: Floats, layer: HostRecurrent) -> Floats:
        shape = self._shape
        rows, rates = self._inputs(n), self._rates(n)
        matrices, tail = layer.held()
        seen = np.concatenate([tail, rows[:, : shape.channels]])
        q, k, v = self._heads(seen)
        b, a = rates[:, : shape.value_heads], rates[:, shape.value_heads :]
        decays = self._decay * np.logaddexp(a + self._decay_bias, np.float32(0))
        o = self._rule(q, k, v, decays, sigmoid(b), matrices)
        layer.replace(matrices, seen[len(n) :].copy(), len(n))
        return self._output(self._gated(o, rows[:, shape.channels :]))

    def _heads(self, seen: Floats) -> tuple[Floats, Floats, Floats]:
        """What the convolution saw [K - 1 + T, C] to q and k [T, Hk, Dk], of unit length, and v
        [T, Hv, Dv]."""
        shape, count = self._shape, len(seen) - self._shape.kernel + 1
        mixed = np.empty((count, shape.channels), np.float32)

        def mix(tile: slice) -> None:
            own = mixed[tile]
            own[...] = self._convolved(seen[tile.start : tile.stop + shape.kernel - 1])
            keys = own[:, : 2 * shape.keys].reshape(len(own), -1, shape.key_size)
            squares = np.einsum("thi,thi->th", keys, keys)
            keys /= np.sqrt(squares + np.float32(LENGTH_EPSILON))[..., None]
            own[:, : shape.keys] *= np.float32(shape.key_size**-0.5)

        self._workers.each(self._workers.tiles(count), mix)
        q, k = (
            mixed[:, at : at + shape.keys].reshape(count, shape.key_heads, shape.key_size)
            for at in (0, shape.keys)
        )
        return q, k, mixed[:, 2 * shape.keys :].reshape(count, shape.value_heads, shape.value_size)

    def _convolved(self, seen: Floats) -> Floats:
        count = len(seen) - len(self._convolution) + 1
        total = seen[:count] * self._convolution[0]
        for i, weight in enumerate(self._convolution[1:], 1):
            total += seen[i : i + count] * weight
        return silu(total)

    def _gated(self, o: Floats, z: Floats) -> Floats:
        """[T, values]: the heads normalised, times what lets them through."""
        out = np.empty(z.shape, np.float32)

        def gate(tile: slice) -> None:
            normed = rms_norm(o[tile], self._norm, self._shape.norm_epsilon)
            np.multiply(normed.reshape(len(normed), -1), silu(z[tile]), out=out[tile])

        self._workers.each(self._workers.tiles(len(z)), gate)
        return out


def numpy_rule(shape: DeltaShape) -> HostRule:
    """The rule in NumPy: a few rows step by step, many in chunks; threads share the heads."""
    threads = workers()
    heads = np.arange(shape.value_heads)
    share = shape.value_heads // shape.key_heads
    key_head = heads % shape.key_heads if shape.tiled else heads // share

    def rule(q: Floats, k: Floats, v: Floats, g: Floats, rates: Floats, state: Floats) -> Floats:
        out = np.empty(v.shape, np.float32)
        form = steps if len(q) <= STEPS_MAX else chunks

        def some(own: slice) -> None:
            keys, queries = (_by_head(part[:, key_head[own]]) for part in (k, q))
            rest = (_by_head(part[:, own]) for part in (v, g, rates))
            out[:, own] = form(Rows(queries, keys, *rest), state[own])

        threads.each(_shares(shape.value_heads, threads.threads), some)
        return out

    return rule


class Rows(NamedTuple):
    """Of some heads: q, k [H, T, Dk], v [H, T, Dv], g and β [H, T]."""

    q: Floats
    k: Floats
    v: Floats
    g: Floats
    rates: Floats

    def part(self, rows: slice) -> "Rows":
        return Rows._make(np.ascontiguousarray(array[:, rows]) for array in self)


def steps(rows: Rows, state: Floats) -> Floats:
    """A row at a time: to o [T, H, Dv], changing S [H, Dv, Dk]."""
    q, k, v, g, rates = rows
    out, kept = np.empty((v.shape[1], len(v), v.shape[2]), np.float32), np.exp(g)
    for t in range(v.shape[1]):
        state *= kept[:, t, None, None]
        key = k[:, t, :, None]
        change = rates[:, t, None] * (v[:, t] - (state @ key)[..., 0])
        state += change[:, :, None] * key.swapaxes(1, 2)
        out[t] = (state @ q[:, t, :, None])[..., 0]
    return out


def chunks(rows: Rows, state: Floats) -> Floats:
    """The same in chunks."""
    count = rows.v.shape[1]
    parts = (rows.part(slice(start, start + CHUNK)) for start in range(0, count, CHUNK))
    return np.concatenate([_chunk(part, state).swapaxes(0, 1) for part in parts])


def _chunk(rows: Rows, state: Floats) -> Floats:
    q, k, v, g, rates = rows
    sums = np.cumsum(g, axis=1)
    # Above the diagonal the difference is positive, and its power might not be finite.
    between = np.exp(np.minimum(sums[:, :, None] - sums[:, None, :], 0))
    since, keys = np.exp(sums)[..., None], k.swapaxes(1, 2)
    system = np.tril(rates[..., None] * between * (k @ keys), -1)
    system += np.eye(k.shape[1], dtype=np.float32)
    found = since * (k @ state.swapaxes(1, 2))
    changes = np.linalg.solve(system, rates[..., None] * (v - found))
    out = since * (q @ state.swapaxes(1, 2)) + np.tril(between * (q @ keys)) @ changes
    state *= since[:, -1:]
    state += changes.swapaxes(1, 2) @ (between[:, -1, :, None] * k)
    return cast(Floats, out)


def _by_head(x: Floats) -> Floats:
    return x.swapaxes(0, 1)


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + exp(-x)), a new array. Where exp overflows, the quotient is the right 0."""
    y = np.negative(x)
    with np.errstate(over="ignore"):
        np.exp(y, out=y)
    y += 1
    return cast(Floats, np.reciprocal(y, out=y))


def _shares(count: int, threads: int) -> list[slice]:
    size = -(-count // threads)
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]
