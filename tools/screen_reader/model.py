"""The two networks in plain torch: the vision part, trained, and SmolLM2 from its GGUF, frozen."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tools.screen_reader.canvas import PATCHES, SLOTS

LM_WIDTH, LM_LAYERS, LM_HEADS, LM_KV_HEADS, LM_FF, LM_EPS = 576, 30, 9, 3, 1536, 1e-5
LM_ROPE_BASE = 100_000.0
LM_CONTEXT = 2048
CHARACTER_CLASSES = 96  # 0 is none, then 32..126


@dataclass(frozen=True)
class Shape:
    """The encoder's sizes, as the mmproj's metadata gives them."""

    image: int = 512
    patch: int = 16
    width: int = 384
    layers: int = 12
    heads: int = 6
    ff: int = 1536
    merge: int = 2
    lm_width: int = LM_WIDTH
    eps: float = 1e-6


class Block(nn.Module):
    """Pre-norm attention and MLP, as SigLIP's."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        d, self.heads = shape.width, shape.heads
        self.ln1 = nn.LayerNorm(d, shape.eps)
        self.qkv = nn.Linear(d, 3 * d)
        self.o = nn.Linear(d, d)
        self.ln2 = nn.LayerNorm(d, shape.eps)
        self.up = nn.Linear(d, shape.ff)
        self.down = nn.Linear(shape.ff, d)
        for layer in (self.qkv, self.o, self.up, self.down):
            nn.init.trunc_normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)
        for layer in (self.o, self.down):
            layer.weight.data.mul_(1 / math.sqrt(2 * shape.layers))

    def forward(self, x: Tensor) -> Tensor:
        batch, n, d = x.shape
        qkv = self.qkv(self.ln1(x)).view(batch, n, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        a = F.scaled_dot_product_attention(q, k, v)
        x = x + self.o(a.transpose(1, 2).reshape(batch, n, d))
        return x + self.down(F.gelu(self.up(self.ln2(x)), approximate="tanh"))


class Vision(nn.Module):
    """A SigLIP-style encoder and idefics3's projector: pixel shuffle, then one matrix."""

    def __init__(self, shape: Shape | None = None) -> None:
        super().__init__()
        self.shape = shape = shape or Shape()
        d, self.n = shape.width, shape.image // shape.patch
        self.patch = nn.Linear(3 * shape.patch**2, d)  # a conv; weight order channel, y, x
        self.pos = nn.Parameter(torch.randn(self.n**2, d) * 0.02)
        self.blocks = nn.ModuleList([Block(shape) for _ in range(shape.layers)])
        self.post = nn.LayerNorm(d, shape.eps)
        self.fc = nn.Linear(d * shape.merge**2, shape.lm_width, bias=False)

    def features(self, pixels: Tensor) -> Tensor:
        """[B, H, W, 3], uint8 or float 0..255 -> [B, patches, width]."""
        n, p = self.n, self.shape.patch
        x = pixels.float() / 127.5 - 1
        x = x.view(-1, n, p, n, p, 3).permute(0, 1, 3, 5, 2, 4).reshape(-1, n * n, 3 * p * p)
        x = self.patch(x) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.post(x)

    def project(self, features: Tensor) -> Tensor:
        """[B, patches, width] -> [B, cells, lm_width]; channel order dy, dx, c."""
        batch, _, d = features.shape
        m, side = self.shape.merge, self.n // self.shape.merge
        x = features.view(batch, side, m, side, m, d).permute(0, 1, 3, 2, 4, 5)
        return self.fc(x.reshape(batch, side * side, m * m * d))

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        features = self.features(pixels)
        return features, self.project(features)


class Heads(nn.Module):
    """For training only: characters of a patch, and the temperature of the token loss."""

    def __init__(self, width: int = 384) -> None:
        super().__init__()
        self.characters = nn.Linear(width, SLOTS * CHARACTER_CLASSES)
        self.log_scale = nn.Parameter(torch.tensor(3.0))

    def forward(self, features: Tensor) -> Tensor:
        """[B, patches, width] -> [B, patches, slots, classes]."""
        batch = features.shape[0]
        return self.characters(features).view(batch, PATCHES**2, SLOTS, CHARACTER_CLASSES)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions on interleaved pairs, as GGUF's llama weights want; cos, sin float32."""
    a, b = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(x.dtype)


@dataclass
class Cache:
    """Keys and values of one layer: room for all, `used` of them written, and who sees what."""

    keys: Tensor
    values: Tensor
    used: int = 0
    mask: Tensor | None = None

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        end = self.used + k.shape[2]
        self.keys[:, :, self.used : end] = k
        self.values[:, :, self.used : end] = v
        self.used = end
        return self.keys[:, :, :end], self.values[:, :, :end]


class LlamaBlock(nn.Module):
    """One layer of SmolLM2; the names are those of the GGUF's tensors."""

    NORMS = ("attn_norm", "ffn_norm")
    MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")

    attn_norm: Tensor
    ffn_norm: Tensor
    attn_q: Tensor
    attn_k: Tensor
    attn_v: Tensor
    attn_output: Tensor
    ffn_gate: Tensor
    ffn_up: Tensor
    ffn_down: Tensor

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        for name, value in weights.items():
            setattr(self, name, nn.Parameter(value, requires_grad=False))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: Cache | None = None) -> Tensor:
        batch, n, d = x.shape
        h = F.rms_norm(x, (d,), self.attn_norm, LM_EPS)
        q = F.linear(h, self.attn_q).view(batch, n, LM_HEADS, -1).transpose(1, 2)
        k = F.linear(h, self.attn_k).view(batch, n, LM_KV_HEADS, -1).transpose(1, 2)
        v = F.linear(h, self.attn_v).view(batch, n, LM_KV_HEADS, -1).transpose(1, 2)
        q, k, mask = rotate(q, cos, sin), rotate(k, cos, sin), None
        if cache is not None:
            k, v = cache.extend(k, v)
            mask = cache.mask
        a = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )
        x = x + F.linear(a.transpose(1, 2).reshape(batch, n, d), self.attn_output)
        h = F.rms_norm(x, (d,), self.ffn_norm, LM_EPS)
        return x + F.linear(
            F.silu(F.linear(h, self.ffn_gate)) * F.linear(h, self.ffn_up), self.ffn_down
        )


class Llama(nn.Module):
    """SmolLM2-135M, dequantised from its GGUF. `layers=0` reads the embeddings alone."""

    def __init__(
        self, path: Path, dtype: torch.dtype, device: str, layers: int = LM_LAYERS
    ) -> None:
        super().__init__()
        read = gguf_reader(path)

        def weight(name: str) -> Tensor:
            return read(name).to(device, dtype)

        self.emb = nn.Parameter(weight("token_embd.weight"), requires_grad=False)
        self.blocks = nn.ModuleList()
        if layers:
            self.norm = nn.Parameter(weight("output_norm.weight"), requires_grad=False)
        names = LlamaBlock.NORMS + LlamaBlock.MATRICES
        for i in range(layers):
            self.blocks.append(LlamaBlock({n: weight(f"blk.{i}.{n}.weight") for n in names}))
        half = LM_WIDTH // LM_HEADS // 2
        frequencies = LM_ROPE_BASE ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.outer(torch.arange(LM_CONTEXT, dtype=torch.float64), frequencies)
        self.cos = angles.cos().to(device, torch.float32)
        self.sin = angles.sin().to(device, torch.float32)

    def hidden(self, x: Tensor) -> Tensor:
        """[B, T, width] embeddings -> [B, T, width], normed, ready for the output matrix."""
        n = x.shape[1]
        for block in self.blocks:
            x = block(x, self.cos[:n], self.sin[:n])
        return F.rms_norm(x, (x.shape[-1],), self.norm, LM_EPS)

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.emb.T

    @torch.no_grad()
    def generate(
        self, x: Tensor, lengths: Tensor, most: int, stops: tuple[int, int]
    ) -> list[list[int]]:
        """Greedy tokens. x: [B, T, width] padded on the right, lengths: [B] without the padding."""
        batch, n, d = x.shape
        room = (batch, LM_KV_HEADS, n + most, LM_WIDTH // LM_HEADS)
        caches = [Cache(x.new_zeros(room), x.new_zeros(room)) for _ in self.blocks]
        for block, cache in zip(self.blocks, caches, strict=True):
            # forward(), not the call: it passes the compiled form by, whose shapes are fixed
            x = block.forward(x, self.cos[:n], self.sin[:n], cache)
        x = x[torch.arange(batch, device=x.device), lengths - 1]
        positions = torch.arange(n + most, device=x.device)
        done = torch.zeros(batch, dtype=torch.bool, device=x.device)
        out = []
        for i in range(most):
            token = self.logits(F.rms_norm(x, (d,), self.norm, LM_EPS)).argmax(-1)
            done |= (token == stops[0]) | (token == stops[1])
            out.append(torch.where(done, stops[0], token))
            if bool(done.all()):
                break
            at = lengths + i
            cos, sin = self.cos[at][:, None, None], self.sin[at][:, None, None]
            seen = positions[None, : n + i + 1]
            mask = ((seen < lengths[:, None]) | (seen >= n))[:, None, None]
            x = self.emb[token][:, None]
            for block, cache in zip(self.blocks, caches, strict=True):
                cache.mask = mask
                x = block.forward(x, cos, sin, cache)
            x = x[:, 0]
        rows = torch.stack(out, 1).tolist()
        return [row[: row.index(stops[0])] if stops[0] in row else row for row in rows]


def gguf_reader(path: Path) -> Callable[[str], Tensor]:
    """A function from a tensor's name to its float32 values."""
    import gguf
    from gguf.quants import dequantize

    tensors = {t.name: t for t in gguf.GGUFReader(path).tensors}

    def read(name: str) -> Tensor:
        t = tensors[name]
        return torch.from_numpy(np.array(dequantize(t.data, t.tensor_type), dtype=np.float32))

    return read
