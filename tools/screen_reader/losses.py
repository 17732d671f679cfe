"""What training minimises: characters of patches, tokens of cells, answers of the language model.

Nothing here waits for the device: labels are picked by top-k at a fixed count, not by masks.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tools.screen_reader.canvas import UNSURE
from tools.screen_reader.model import CHARACTER_CLASSES, Heads, Llama
from tools.screen_reader.prompts import IGNORE, ROW

EMPTY_WEIGHT = 0.12  # of a slot without a character; they are most, and easy
TOKENS_PER_IMAGE = 64  # of a page's cells, and of a row's answers, that one step learns
ANSWERS_PER_IMAGE = 72
DISTANCE_WEIGHT = 0.3


def pick(labels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`count` places of [n] labels, those >= 0 first and at random; (places, labels or IGNORE)."""
    rank = torch.rand(labels.shape, device=labels.device) + (labels >= 0)
    places = rank.topk(min(count, labels.numel())).indices
    chosen = labels[places].long()
    return places, torch.where(chosen >= 0, chosen, IGNORE)


class CharacterLoss:
    """Cross-entropy of the three slots of each patch; patches of unsure truth are left out."""

    def __init__(self, device: str) -> None:
        self.weights = torch.ones(CHARACTER_CLASSES, device=device)
        self.weights[0] = EMPTY_WEIGHT

    def __call__(self, logits: Tensor, characters: Tensor) -> tuple[Tensor, Tensor]:
        """logits [B, patches, slots, classes], characters uint8. -> (loss, accuracy of letters)."""
        truth = characters.flatten().long()
        truth = torch.where(truth == UNSURE, IGNORE, truth)
        flat = logits.float().flatten(0, 2)
        loss = F.cross_entropy(flat, truth, weight=self.weights, ignore_index=IGNORE)
        with torch.no_grad():
            letters = truth > 0
            right = ((flat.argmax(-1) == truth) & letters).sum() / letters.sum().clamp(min=1)
        return loss, right


class TokenLoss:
    """Each cell's vector against the embedding of the token that starts there.

    Cosine cross-entropy over the vocabulary, plus the distance, which keeps the vectors' length
    that of embeddings.
    """

    def __init__(self, embeddings: Tensor) -> None:
        self.embeddings = embeddings.float()
        self.square = self.embeddings.pow(2).mean().item()
        self.directions = F.normalize(self.embeddings, dim=-1).to(embeddings.dtype)

    def __call__(self, vectors: Tensor, tokens: Tensor, heads: Heads) -> tuple[Tensor, Tensor]:
        """vectors [B, cells, width], tokens int32 [B, cells]. -> (loss, accuracy)."""
        places, truth = pick(tokens.flatten(), len(vectors) * TOKENS_PER_IMAGE)
        chosen = vectors.flatten(0, 1)[places].float()
        logits = F.normalize(chosen, dim=-1).to(self.directions.dtype) @ self.directions.T
        logits = logits.float() * heads.log_scale.exp()
        real = truth >= 0
        count = real.sum().clamp(min=1)
        loss = F.cross_entropy(logits, truth, ignore_index=IGNORE, reduction="sum") / count
        gap = (chosen - self.embeddings[truth.clamp(min=0)]).pow(2).mean(-1) * real
        accuracy = ((logits.argmax(-1) == truth) & real).sum() / count
        return loss + DISTANCE_WEIGHT * gap.sum() / count / self.square, accuracy


class AnswerLoss:
    """Cross-entropy of the answers' tokens through the frozen language model."""

    def __init__(self, lm: Llama, prompts: dict[str, list[list[int]]]) -> None:
        self.lm = lm
        device = lm.emb.device
        self.parts = {
            form: [lm.emb[torch.tensor(ids, device=device)] for ids in parts]
            for form, parts in prompts.items()
        }

    def __call__(self, vectors: Tensor, row: Tensor, form: str) -> tuple[Tensor, Tensor]:
        """vectors [B, cells, width], row int32 [B, 2, ROW]. -> (loss, accuracy)."""
        batch, seen = len(vectors), vectors.to(self.lm.emb.dtype)
        sequence: list[Tensor] = []
        for i, part in enumerate(self.parts[form]):
            sequence += [seen] if i else []
            sequence.append(part[None].expand(batch, -1, -1))
        sequence.append(self.lm.emb[row[:, 0].long()])
        hidden = self.lm.hidden(torch.cat(sequence, 1))[:, -ROW - 1 : -1]
        places, truth = pick(row[:, 1].flatten(), batch * ANSWERS_PER_IMAGE)
        logits = self.lm.logits(hidden.flatten(0, 1)[places]).float()
        real = truth >= 0
        loss = F.cross_entropy(logits, truth, ignore_index=IGNORE)
        accuracy = ((logits.argmax(-1) == truth) & real).sum() / real.sum().clamp(min=1)
        return loss, accuracy


def augment(pixels: Tensor) -> Tensor:
    """uint8 [B, H, W, 3] -> float: contrast, inversion, colour and noise, for learning letters."""
    batch, device = len(pixels), pixels.device
    shape = (batch, 1, 1, 1)
    contrast = torch.empty(shape, device=device).uniform_(0.55, 1.05)
    contrast *= torch.where(torch.rand(shape, device=device) < 0.2, -1.0, 1.0)
    tint = torch.empty((batch, 1, 1, 3), device=device).uniform_(0.8, 1.0)
    shift = torch.empty((batch, 1, 1, 3), device=device).uniform_(-20, 20)
    x = (pixels.float() - 127.5) * contrast * tint + 127.5 + shift
    return grain(x).clamp(0, 255)


def grain(pixels: Tensor) -> Tensor:
    """Noise of a different strength for every picture."""
    strength = torch.randn(len(pixels), 1, 1, 1, device=pixels.device).abs() * 3
    return pixels + strength * torch.randn_like(pixels, dtype=torch.float32)


def roll(batch: dict[str, Tensor], rows: int, columns: int) -> dict[str, Tensor]:
    """Moves pictures round by whole cells, and their truth with them."""
    side = math.isqrt(batch["tokens"].shape[-1])
    cell = batch["image"].shape[1] // side
    tokens = batch["tokens"].view(-1, side, side)
    per_cell = batch["characters"].shape[1] // side
    return {
        **batch,
        "image": batch["image"].roll((rows * cell, columns * cell), (1, 2)),
        "characters": batch["characters"].roll((rows * per_cell, columns * per_cell), (1, 2)),
        "tokens": tokens.roll((rows, columns), (1, 2)).flatten(1),
    }
