"""The gated delta rule in chunks, in plain MLX: for a GPU, where each operation has its price.

With G the sums of g within a chunk, X = (I + A)^-1 and A_ij = β_i e^(G_i - G_j) k_i·k_j for j < i:
    U  = X β V - X (β e^G K) Sᵀ
    O  = e^G Q Sᵀ + B U,            B_ij = e^(G_i - G_j) q_i·k_j   for j <= i
    S' = e^(G_C) S + Uᵀ (e^(G_C - G) K)
Only what reads S goes from chunk to chunk; the rest is done for all of them at once.
"""

import mlx.core as mx

from ds4tui.kernels.delta import delta_steps

CHUNK = 64  # rows; a power of 2
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
    solved = _inverse(mx.tril(rates * between * (k @ keys), -1))
    new, read = solved @ (rates * v), solved @ (rates * mx.exp(sums) * k)
    mixing, queries = between * (q @ keys), mx.exp(sums) * q
    ends = sums[..., -1:, :]
    kept, written = mx.exp(ends), mx.exp(ends - sums) * k
    outs = []
    for i in range(q.shape[0]):
        before = state.swapaxes(-1, -2)
        changes = new[i] - read[i] @ before
        outs.append(queries[i] @ before + mixing[i] @ changes)
        state = kept[i] * state + changes.swapaxes(-1, -2) @ written[i]
    heads_first = mx.concatenate(outs, axis=1)
    return heads_first.swapaxes(0, 1)[:count], state


def _chunked(x: mx.array) -> mx.array:
    """[T, H, D] to [chunks, H, CHUNK, D]; rows of zeros behind the last change nothing."""
    padded = mx.pad(x, [(0, -x.shape[0] % CHUNK), (0, 0), (0, 0)])
    return padded.reshape(-1, CHUNK, *x.shape[1:]).swapaxes(1, 2)


def _inverse(below: mx.array) -> mx.array:
    """Of I + below, strictly lower triangular: from blocks of one to the whole. Of two blocks one
    behind the other the inverses are known; -inverse · what lies between · inverse joins them."""
    rows = mx.arange(CHUNK)
    inverse, size = mx.eye(CHUNK), 1
    while size < CHUNK:
        block = rows // size
        joins = (block[:, None] == block + 1) & (block % 2 == 0)
        inverse = inverse - inverse @ (below * joins) @ inverse
        size *= 2
    return inverse
