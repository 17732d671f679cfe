"""The gated delta rule in chunks, in plain MLX: for a GPU, where each operation has its price.

With G the sums of g within a chunk, X = (I + A)^-1 and A_ij = β_i e^(G_i - G_j) k_i·k_j for j < i:
    U  = X β V - X (β e^G K) Sᵀ
    O  = e^G Q Sᵀ + B U,            B_ij = e^(G_i - G_j) q_i·k_j   for j <= i
    S' = e^(G_C) S + Uᵀ (e^(G_C - G) K)
Only what reads S goes from chunk to chunk; the rest is done for all of them at once.

MLX multiplies float32 on CUDA in TF32, which keeps 10 bits of each factor: a state that hundreds
of rows write to must not be made of those. `product` splits the factors so that all bits count.
"""

import mlx.core as mx

from ds4tui.kernels.delta import delta_steps

CHUNK = 64  # rows; a power of 2
_TEN_BITS = 0xFFFFE000  # sign, exponent and 10 bits of a float32
STEPS_MAX = 4  # rows up to which a step at a time is less work


def delta_chunks(
    q: mx.array, k: mx.array, v: mx.array, decays: mx.array, rates: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """As `kernels.delta.delta_steps`."""
    count = q.shape[0]
    if count <= STEPS_MAX:
        return delta_steps(q, k, v, decays, rates, state)
    q, k, v = (_chunked(part) for part in (q, k, v))
    rates, sums = _chunked(rates[..., None]), mx.cumsum(_chunked(decays[..., None]), axis=-2)
    keys, lower = k.swapaxes(-1, -2), mx.tril(mx.ones((CHUNK, CHUNK)))
    # Above the diagonal the difference is positive, and its power might not be finite.
    between = mx.exp(mx.minimum(sums - sums.swapaxes(-1, -2), 0)) * lower
    solved = inverse(mx.tril(rates * between * product(k, keys), -1))
    new, read = product(solved, rates * v), product(solved, rates * mx.exp(sums) * k)
    mixing, queries = between * product(q, keys), mx.exp(sums) * q
    ends = sums[..., -1:, :]
    kept, written = mx.exp(ends), mx.exp(ends - sums) * k
    reading, outs = mx.concatenate([read, queries], axis=-2), []
    for i in range(q.shape[0]):
        before = state.swapaxes(-1, -2)
        found, mixed = mx.split(product(reading[i], before), 2, axis=-2)
        changes = new[i] - found
        outs.append(mixed + product(mixing[i], changes))
        state = kept[i] * state + product(changes.swapaxes(-1, -2), written[i])
    heads_first = mx.concatenate(outs, axis=1)
    return heads_first.swapaxes(0, 1)[:count], state


def product(a: mx.array, b: mx.array) -> mx.array:
    """a @ b, exact but for float32's rounding where factors are cut to 10 bits: each is a sum of
    one of so many bits and of what is left, and the product of the two rests is left out."""
    (coarse_a, fine_a), (coarse_b, fine_b) = _split(a), _split(b)
    left = mx.concatenate([coarse_a, fine_a, coarse_a], axis=-1)
    return multiplied(left, mx.concatenate([coarse_b, coarse_b, fine_b], axis=-2))


def multiplied(a: mx.array, b: mx.array) -> mx.array:
    return a @ b


def _split(x: mx.array) -> tuple[mx.array, mx.array]:
    coarse = (x.view(mx.uint32) & mx.array(_TEN_BITS, mx.uint32)).view(mx.float32)
    return coarse, x - coarse


def _chunked(x: mx.array) -> mx.array:
    """[T, H, D] to [chunks, H, CHUNK, D]; rows of zeros behind the last change nothing."""
    padded = mx.pad(x, [(0, -x.shape[0] % CHUNK), (0, 0), (0, 0)])
    return padded.reshape(-1, CHUNK, *x.shape[1:]).swapaxes(1, 2)


def inverse(below: mx.array) -> mx.array:
    """Of I + below, strictly lower triangular: from blocks of one to the whole. Of two blocks one
    behind the other the inverses are known; -inverse · what lies between · inverse joins them."""
    count = below.shape[-1]
    rows, found, size = mx.arange(count), mx.eye(count), 1
    while size < count:
        block = rows // size
        joins = (block[:, None] == block + 1) & (block % 2 == 0)
        found = found - product(product(found, below * joins), found)
        size *= 2
    return found
