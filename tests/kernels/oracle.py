"""What the kernels compute, from their definitions, in float64 NumPy."""

import numpy as np


def linear(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    y = x.astype(np.float64) @ weight.astype(np.float64).T
    return y if bias is None else y + bias


def attend(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    scale: float,
    first_position: int,
    window: int | None = None,
) -> np.ndarray:
    """One query of one head at a time."""
    q, k, v = (a.astype(np.float64) for a in (q, k, v))
    share = len(q) // len(k)
    out = np.empty((*q.shape[:2], v.shape[2]))
    for h in range(q.shape[0]):
        for t in range(q.shape[1]):
            end = first_position + t + 1
            seen = slice(0 if window is None else max(0, end - window), end)
            scores = scale * (k[h // share, seen] @ q[h, t])
            weights = np.exp(scores - scores.max())
            out[h, t] = weights @ v[h // share, seen] / weights.sum()
    return out


def turned(x: np.ndarray, positions: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    """x [H, T, D]."""
    out = x.astype(np.float64)
    for j, frequency in enumerate(frequencies):
        angles = positions * frequency
        a, b = out[..., 2 * j].copy(), out[..., 2 * j + 1].copy()
        out[..., 2 * j] = a * np.cos(angles) - b * np.sin(angles)
        out[..., 2 * j + 1] = a * np.sin(angles) + b * np.cos(angles)
    return out


def normed(x: np.ndarray, weight: np.ndarray | None, epsilon: float) -> np.ndarray:
    """RMSNorm over the last axis; x itself without a weight."""
    if weight is None:
        return x
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * weight


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS = {"silu": silu, "gelu": gelu}


def gated(
    m: np.ndarray, gate: np.ndarray, up: np.ndarray, down: np.ndarray, activation: str
) -> np.ndarray:
    return (ACTIVATIONS[activation](m @ gate.T) * (m @ up.T)) @ down.T


def experts(
    m: np.ndarray,
    router: np.ndarray,
    gate: np.ndarray,
    up: np.ndarray,
    down: np.ndarray,
    used: int,
    activation: str,
) -> np.ndarray:
    """One row at a time; gate, up and down are [experts, out, in]."""
    y = np.zeros_like(m)
    for t, row in enumerate(m):
        scores = np.exp(router @ row)
        best = np.argsort(-scores)[:used]
        for e in best:
            own = gated(row, gate[e], up[e], down[e], activation)
            y[t] += own * scores[e] / scores[best].sum()
    return y


def delta_rule(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray, rates: np.ndarray, s: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """One row of one head at a time, as it is published, with s [Dv, Dk] a head: q, k [T, H, Dk],
    v [T, H, Dv], g, rates [T, H] to o [T, H, Dv] and the last s."""
    out, s = np.empty(v.shape), s.astype(np.float64)
    for t in range(len(q)):
        for h in range(q.shape[1]):
            key, rate, kept = k[t, h].astype(np.float64), rates[t, h], np.exp(np.float64(g[t, h]))
            erased = np.eye(len(key)) - rate * np.outer(key, key)
            s[h] = kept * s[h] @ erased + rate * np.outer(v[t, h], key)
            out[t, h] = s[h] @ q[t, h]
    return out, s


def convolved(rows: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """rows [T, C], nothing before them, weight [C, K]: each channel over its last K rows."""
    kernel = weight.shape[1]
    padded = np.concatenate([np.zeros((kernel - 1, rows.shape[1])), rows])
    out = np.empty(rows.shape)
    for t in range(len(rows)):
        out[t] = (padded[t : t + kernel].T * weight).sum(axis=1)
    return out


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))
