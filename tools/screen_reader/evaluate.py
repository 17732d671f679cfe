"""Greedy answers of encoder and language model to the held-out sets, and their scores.

    python -m tools.screen_reader.evaluate WEIGHTS TEXT_GGUF FOLDER OUT.json [SET/FORM ...]

WEIGHTS is an mmproj GGUF (evaluated as stored, dequantised) or a folder of fp16 parts.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tools.screen_reader.export import load
from tools.screen_reader.heldout import MOST_TOKENS, read_set
from tools.screen_reader.model import Llama, Vision
from tools.screen_reader.prompts import (
    END_OF_TEXT,
    END_OF_TURN,
    around_images,
    load_tokenizer,
    turn,
)
from tools.screen_reader.scoring import score

RUNS = ["seen_fonts/dup", "seen_fonts/single", "easy/dup", "easy/single", "unseen_fonts/dup"]
BATCH = 256


@torch.no_grad()
def answers(
    vision: Vision,
    lm: Llama,
    tokenizer: Any,
    pictures: list[NDArray[np.uint8]],
    questions: list[str],
    form: str,
    batch: int = BATCH,
) -> list[str]:
    """Greedy answers; questions are padded on the right and masked."""
    device = lm.emb.device
    half = lm.emb.dtype == torch.bfloat16

    def embed(ids: list[int] | list[list[int]]) -> Tensor:
        return lm.emb[torch.tensor(ids, device=device)]

    said: list[str] = []
    for start in range(0, len(questions), batch):
        pixels = torch.from_numpy(np.stack(pictures[start : start + batch])).to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            _, vectors = vision(pixels)
        vectors = vectors.to(lm.emb.dtype)
        parts: list[Tensor] = []
        for i, ids in enumerate(around_images(tokenizer, form)):
            parts += [vectors] if i else []
            parts.append(embed(ids)[None].expand(len(pixels), -1, -1))
        asked = [turn(tokenizer, q, first=True) for q in questions[start : start + batch]]
        longest = max(map(len, asked))
        parts.append(embed([ids + [END_OF_TURN] * (longest - len(ids)) for ids in asked]))
        x = torch.cat(parts, 1)
        lengths = [x.shape[1] - longest + len(ids) for ids in asked]
        rows = lm.generate(
            x, torch.tensor(lengths, device=device), MOST_TOKENS, (END_OF_TURN, END_OF_TEXT)
        )
        said += [tokenizer.decode(row) for row in rows]
    return said


def evaluate(
    vision: Vision, lm: Llama, tokenizer: Any, folder: Path, runs: list[str], batch: int = BATCH
) -> tuple[dict[str, Any], dict[str, list[dict[str, str]]]]:
    """Scores by run, and every answer by run. A run is SET/FORM."""
    scores: dict[str, Any] = {}
    details: dict[str, list[dict[str, str]]] = {}
    for run in runs:
        name, form = run.split("/")
        examples, pictures = read_set(folder, name)
        questions = [e.question for e in examples]
        said = answers(vision, lm, tokenizer, pictures, questions, form, batch)
        scores[run] = score([(e.question, e.answer, e.scene) for e in examples], said)
        details[run] = [{**asdict(e), "said": s} for e, s in zip(examples, said, strict=True)]
        print(run, json.dumps(scores[run]["ALL"]), flush=True)
    return scores, details


def main(arguments: list[str]) -> None:
    weights, text_gguf, folder, out = map(Path, arguments[:4])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    lm = Llama(text_gguf, torch.bfloat16 if device == "cuda" else torch.float32, device)
    vision = Vision().to(device).eval()
    vision.load_state_dict(load(weights))
    batch = BATCH if device == "cuda" else 8
    scores, details = evaluate(vision, lm, load_tokenizer(), folder, arguments[4:] or RUNS, batch)
    out.write_text(json.dumps(scores, indent=1))
    out.with_suffix(".answers.json").write_text(json.dumps(details, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
