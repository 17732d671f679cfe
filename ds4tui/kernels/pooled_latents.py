"""Latent attention without positions whose queries see what an index of pools chooses, in plain
MLX (GLM-5.3-Flash).

    r       = RMSNorm(Wqa n) * w,  q = Wqb r                       heads of `key_size`
    c       = RMSNorm(Wkva n) * w                                  the latent row that is kept
    out     = Wo [.. | Wvb_h Σ_s softmax_s(scale q_h · Wkb_hᵀ c_s) c_s | ..]
with Wkb taken to the queries and Wvb to what they found, so that latent rows are keys and values.

The index keeps k = LayerNorm(Wk n) and z = Wz n of each row. A pool's key is Σ_i softmax_i(z_i +
a_i) * k_i over its rows, each channel by itself; its score is Σ_h (Wp n)_h ReLU(q_h · key) with
q = Wiq r, to a factor that changes no order. kernels/pooled_index.py says what is seen then.
"""

from dataclasses import dataclass

import mlx.core as mx

from ds4tui.kernels.attention import attend
from ds4tui.kernels.block import rms_norm
from ds4tui.kernels.indexed_attention import IndexedKeeper, IndexShape
from ds4tui.kernels.linear import Linear
from ds4tui.kernels.pooled_index import attend_chosen, chosen_pools, pool_scores
from ds4tui.kernels.stack import Stack
from ds4tui.kernels.streams import Step


@dataclass(frozen=True, slots=True)
class LatentShape:
    heads: int
    key_size: int  # of one head's query
    value_size: int
    latent: int
    norm_epsilon: float

    @property
    def scale(self) -> float:
        return float(self.key_size**-0.5)


@dataclass(frozen=True, slots=True)
class LatentWeights:
    """key_to_latent: a matrix [latent, key_size] a head; latent_to_value: [value_size, latent]."""

    q_a: Linear
    q_norm: mx.array
    q_b: Linear
    kv_a: Linear
    kv_norm: mx.array
    key_to_latent: Stack
    latent_to_value: Stack
    output: Linear


@dataclass(frozen=True, slots=True)
class PoolWeights:
    """k_norm, with k_bias [key_size], is of the whole key; position [pool size, key_size]. `q` is
    of the normed low rank of the attention's query, the others of n."""

    q: Linear
    k: Linear
    k_norm: mx.array
    k_bias: mx.array
    k_epsilon: float
    gate: Linear
    position: mx.array
    shares: Linear


class PooledLatents:
    """n [T, width], float32 and normed, to [T, width]. Products are made, and rows kept, in
    `dtype`."""

    def __init__(
        self,
        weights: LatentWeights,
        shape: LatentShape,
        index: tuple[PoolWeights, IndexShape],
        dtype: mx.Dtype,
    ) -> None:
        self._w, self._shape, self._dtype = weights, shape, dtype
        self._index, self._index_shape = index

    def __call__(self, n: mx.array, layer: IndexedKeeper, step: Step) -> mx.array:
        w, shape, index = self._w, self._shape, self._index
        rows = n.astype(self._dtype)
        low = rms_norm(w.q_a(rows), w.q_norm, shape.norm_epsilon)
        latent = rms_norm(w.kv_a(rows), w.kv_norm, shape.norm_epsilon)
        keys = mx.fast.layer_norm(index.k(rows), index.k_norm, index.k_bias, index.k_epsilon)
        kept = latent[None], keys.astype(self._dtype)[None], index.gate(rows)[None]
        latents, _, _ = layer.append(*kept)
        pools = layer.pools(self._pooled)
        asked = by_head(w.key_to_latent, heads_first(w.q_b(low), shape.heads))
        found = self._attended(asked, latents, n, low, pools)
        values = by_head(w.latent_to_value, found)
        return w.output(values.swapaxes(0, 1).reshape(n.shape[0], -1))

    def _attended(
        self,
        asked: mx.array,
        latents: mx.array,
        n: mx.array,
        low: mx.array,
        pools: mx.array | None,
    ) -> mx.array:
        size, kept = self._index_shape.size, self._index_shape.kept
        first, scale = latents.shape[1] - n.shape[0], self._shape.scale
        if pools is None or pools.shape[1] <= kept:
            return attend(asked, latents, latents, scale, first)
        q = heads_first(self._index.q(low), self._index_shape.heads).astype(mx.float32)
        scores = pool_scores(q, pools[0].astype(mx.float32), self._index.shares(n))
        chosen = chosen_pools(scores, first, size, kept)
        return attend_chosen(asked, latents, latents, scale, first, chosen, size, kept)

    def _pooled(self, pool: int, rows: tuple[mx.array, ...]) -> mx.array:
        """As engine.state.indexed.Pooling."""
        size = self._index_shape.size
        keys, gates = (
            part.astype(mx.float32).reshape(1, -1, size, part.shape[-1]) for part in rows[1:]
        )
        shares = mx.softmax(gates + self._index.position, axis=2)
        return (shares * keys).sum(axis=2).astype(self._dtype)


def by_head(stack: Stack, x: mx.array) -> mx.array:
    """x [H, T, in], each head by its own matrix of `stack`, to [H, T, out]."""
    heads, count, _ = x.shape
    which = mx.repeat(mx.arange(heads), count)
    return stack(x.reshape(heads * count, -1), which).reshape(heads, count, -1)


def heads_first(x: mx.array, heads: int) -> mx.array:
    """[T, H * D] to [H, T, D]."""
    return x.reshape(x.shape[0], heads, -1).swapaxes(0, 1)
