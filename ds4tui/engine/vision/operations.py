"""What a block of an encoder does between its products: the reference, and CPU twins in NumPy.

    quick GELU    x · sigmoid(1.702 x)    (Hendrycks and Gimpel 2016, arXiv 1606.08415)

On a CPU MLX multiplies at 1 to 3 GFLOP/s and takes 60 ms for the GELU of 1,024 rows of 1,536,
NumPy 3 ms.
"""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.engine.vision.config import Activation
from ds4tui.kernels.choice import ComputePath
from ds4tui.kernels.cpu.feed_forward import gelu as host_gelu
from ds4tui.kernels.cpu.feed_forward import silu as host_silu
from ds4tui.kernels.cpu.linear import host_view
from ds4tui.kernels.cpu.threads import workers
from ds4tui.kernels.feed_forward import gelu, silu

Floats = npt.NDArray[np.float32]
Attend = Callable[[mx.array, mx.array, mx.array, float], mx.array]
Activate = Callable[[mx.array], mx.array]

TILE_ROWS = 256  # scores of a tile stay near the caches
QUICK = 1.702


def attend(q: mx.array, k: mx.array, v: mx.array, scale: float) -> mx.array:
    """q, k and v [H, T, D] to softmax(scale * q kᵀ) v, [H, T, D]."""
    scores = (q @ k.swapaxes(-1, -2)).astype(mx.float32) * scale
    return mx.softmax(scores, axis=-1).astype(v.dtype) @ v


def attend_fused(q: mx.array, k: mx.array, v: mx.array, scale: float) -> mx.array:
    """The same by MLX's fused attention."""
    return mx.fast.scaled_dot_product_attention(q[None], k[None], v[None], scale=scale)[0]


def attend_on_host(q: mx.array, k: mx.array, v: mx.array, scale: float) -> mx.array:
    """The same through NumPy's OpenBLAS, float32, tiles shared by the threads."""
    queries, keys, values = host_view(q), host_view(k).swapaxes(1, 2), host_view(v)
    out = np.empty_like(queries)
    heads, count, _ = queries.shape
    tiles = [(head, start) for head in range(heads) for start in range(0, count, TILE_ROWS)]

    def mix(part: slice) -> None:
        for head, start in tiles[part]:
            rows = slice(start, start + TILE_ROWS)
            scores = (queries[head, rows] * np.float32(scale)) @ keys[head]
            scores -= scores.max(axis=-1, keepdims=True)
            np.exp(scores, out=scores)
            mixed = scores @ values[head]
            mixed /= scores.sum(axis=-1, keepdims=True)
            out[head, rows] = mixed

    workers().each([slice(i, i + 1) for i in range(len(tiles))], mix)
    return mx.array(out)


def quick_gelu(x: mx.array) -> mx.array:
    return x * mx.sigmoid(QUICK * x)


def host_quick_gelu(x: Floats) -> Floats:
    scaled: Floats = x * np.float32(QUICK)
    values: Floats = host_silu(scaled) / np.float32(QUICK)
    return values


def on_host(function: Callable[[Floats], Floats]) -> Activate:
    """`function` over rows [T, width] that the threads share."""

    def activated(x: mx.array) -> mx.array:
        rows = host_view(x)
        out = np.empty_like(rows)

        def activate(part: slice) -> None:
            out[part] = function(rows[part])

        workers().each(workers().tiles(len(rows)), activate)
        return mx.array(out)

    return activated


ACTIVATIONS: dict[Activation, Activate] = {
    "gelu": gelu,
    "quick_gelu": quick_gelu,
    "silu": silu,
}
ON_HOST: dict[Activation, Activate] = {
    "gelu": on_host(host_gelu),
    "quick_gelu": on_host(host_quick_gelu),
    "silu": on_host(host_silu),
}


@dataclass(frozen=True, slots=True)
class Operations:
    attend: Attend
    activate: Activate

    @classmethod
    def of(cls, path: ComputePath, activation: Activation) -> "Operations":
        if path.attention != "reference" and path.device != "gpu":
            return cls(attend_on_host, ON_HOST[activation])
        fused = path.attention != "reference"
        return cls(attend_fused if fused else attend, ACTIVATIONS[activation])
