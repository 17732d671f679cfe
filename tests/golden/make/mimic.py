"""Makes a transformers model round as llama.cpp's CPU code does.

llama.cpp looks GELU up in an f16 table and multiplies patches with their kernel in f16. The
untouched model is the truth for our engine; the mimic is for comparing with llama.cpp only.
"""

from typing import Any

import torch


class HalfGelu(torch.nn.Module):
    """GELU as llama.cpp's CPU code looks it up: f16 in, f16 out, the identity from 10 on."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = torch.nn.functional.gelu(x.half().float(), approximate="tanh")
        table = table.half().to(x.dtype)
        return torch.where(x <= -10, torch.zeros_like(x), torch.where(x >= 10, x, table))


class HalfQuickGelu(torch.nn.Module):
    """The same of x * sigmoid(1.702 x), whose table has no ends."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = x.half().float()
        return (half * torch.sigmoid(1.702 * half)).half().to(x.dtype)


def half_gelu(model: Any) -> None:
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if "QuickGELU" in type(child).__name__:
                setattr(module, name, HalfQuickGelu())
            elif "GELU" in type(child).__name__:
                setattr(module, name, HalfGelu())


def half_vision(model: Any) -> None:
    """llama.cpp multiplies patches and their kernel in f16 whatever the file holds
    (unless the kernel is bf16), and has one GELU, the tanh one."""
    half_gelu(model)
    for conv in model.modules():
        if isinstance(conv, torch.nn.Conv2d | torch.nn.Conv3d):
            conv.weight.data = conv.weight.data.half().float()
            conv.register_forward_pre_hook(lambda _, x: (x[0].half().to(x[0].dtype),))
