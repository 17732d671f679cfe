"""Muon for the encoder's matrices (K. Jordan 2024), AdamW for the rest, under one learning rate.

Muon replaces a matrix's update by the nearest orthogonal one, found by five Newton-Schulz steps;
scaled by 0.2 sqrt(longer side) its size is AdamW's (J. Liu et al. 2025, "Muon is scalable").
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5


def orthogonal(m: Tensor) -> Tensor:
    """[n, rows, columns] -> the same, each with its singular values near 1."""
    wide = m.shape[-2] <= m.shape[-1]
    x = (m if wide else m.mT).bfloat16()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if wide else x.mT


class Muon:
    """Matrices are stacked by shape; a fused qkv matrix counts as three."""

    def __init__(
        self, named: Iterable[tuple[str, nn.Parameter]], momentum: float, weight_decay: float
    ) -> None:
        self.named = list(named)
        self.parameters = [p for _, p in self.named]
        self.momentum, self.weight_decay = momentum, weight_decay
        self.velocities = [torch.zeros_like(p) for p in self.parameters]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        gradients = [p.grad for p in self.parameters]
        torch._foreach_lerp_(self.velocities, gradients, 1 - self.momentum)
        updates = torch._foreach_lerp(gradients, self.velocities, self.momentum)
        torch._foreach_mul_(self.parameters, 1 - rate * self.weight_decay)
        by_shape: dict[torch.Size, list[tuple[Tensor, Tensor]]] = {}
        for (name, p), update in zip(self.named, updates, strict=True):
            parts = 3 if "qkv" in name else 1
            for target, piece in zip(p.chunk(parts), update.chunk(parts), strict=True):
                by_shape.setdefault(piece.shape, []).append((target, piece))
        for shape, pairs in by_shape.items():
            stacked = orthogonal(torch.stack([piece for _, piece in pairs])).float()
            scale = -rate * 0.2 * max(shape) ** 0.5
            torch._foreach_add_([t for t, _ in pairs], list(stacked.unbind(0)), alpha=scale)


class Optimiser:
    """Both, over a model's named parameters. `rate` is set at every step."""

    def __init__(self, modules: Iterable[nn.Module], *, weight_decay: float, fused: bool) -> None:
        named = [pair for m in modules for pair in m.named_parameters()]
        inner = [(n, p) for n, p in named if n.startswith("blocks.") and p.dim() == 2]
        chosen = {id(p) for _, p in inner}
        rest = [(n, p) for n, p in named if id(p) not in chosen]
        decayed = [p for n, p in rest if p.dim() >= 2 and "pos" not in n]
        plain = [p for n, p in rest if p.dim() < 2 or "pos" in n]
        self.muon = Muon(inner, momentum=0.95, weight_decay=weight_decay)
        self.adamw = torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": weight_decay},
                {"params": plain, "weight_decay": 0.0},
            ],
            betas=(0.9, 0.95),
            fused=fused,
        )
        self.parameters = [p for _, p in named]

    def step(self, rate: float) -> Tensor:
        """Clips the gradients' norm to 1, steps, clears them; the norm before clipping."""
        norm = nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for group in self.adamw.param_groups:
            group["lr"] = rate
        self.adamw.step()
        self.muon.step(rate)
        for p in self.parameters:
            p.grad = None
        return norm

    def state(self) -> dict[str, object]:
        return {"adamw": self.adamw.state_dict(), "muon": self.muon.velocities}

    def restore(self, state: dict[str, object]) -> None:
        self.adamw.load_state_dict(state["adamw"])  # type: ignore[arg-type]
        for mine, kept in zip(self.muon.velocities, state["muon"], strict=True):  # type: ignore[call-overload]
            mine.copy_(kept)
