"""What the kernels compute, from their definitions, in float64 NumPy."""

import numpy as np


def linear(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    y = x.astype(np.float64) @ weight.astype(np.float64).T
    return y if bias is None else y + bias


def attend(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, first_position: int
) -> np.ndarray:
    """One query of one head at a time."""
    q, k, v = (a.astype(np.float64) for a in (q, k, v))
    share = len(q) // len(k)
    out = np.empty((*q.shape[:2], v.shape[2]))
    for h in range(q.shape[0]):
        for t in range(q.shape[1]):
            seen = first_position + t + 1
            scores = scale * (k[h // share, :seen] @ q[h, t])
            weights = np.exp(scores - scores.max())
            out[h, t] = weights @ v[h // share, :seen] / weights.sum()
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
