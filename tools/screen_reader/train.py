"""Trains the vision part: `vision` by the renderer's truth, `language` through the frozen model.

    python -m tools.screen_reader.train vision|language --start WEIGHTS --lm TEXT_GGUF --out FOLDER

Runs are cut by the clock: --seconds is how long this call steps, --from and --to which share of
the phase's learning-rate curve that is. --state is where the optimiser waits for the next call.
"""

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from tools.screen_reader.evaluate import RUNS, evaluate
from tools.screen_reader.export import load, save_parts
from tools.screen_reader.losses import (
    AnswerLoss,
    CharacterLoss,
    TokenLoss,
    augment,
    grain,
    roll,
)
from tools.screen_reader.model import LM_LAYERS, Heads, Llama, Vision
from tools.screen_reader.optimiser import Optimiser
from tools.screen_reader.pool import Mix, Pool, Renderers
from tools.screen_reader.prompts import around_images, load_tokenizer

MIXES = {"vision": Mix(0.8, 0.08, 0.2, 1.0), "language": Mix(0.0, 0.35, 0.15, 1.0)}
# Weights of the character, token and answer losses.
WEIGHTS = {"vision": (1.0, 0.5, 0.0), "language": (0.5, 0.25, 1.0)}
REPORT_EVERY = 200
WARM_UP = 150  # steps
FEW = 20  # after so many steps, compiling is over and the speed is worth reporting

Log = Callable[[str], None]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("phase", choices=list(MIXES))
    add("--start", type=Path, help="mmproj GGUF or folder of fp16 parts; without it, from scratch")
    add("--lm", type=Path, required=True)
    add("--out", type=Path, required=True)
    add("--state", type=Path)
    add("--seconds", type=float, default=60)
    add("--from", dest="begin", type=float, default=0.0)
    add("--to", dest="end", type=float, default=1.0)
    add("--rate", type=float, default=1e-3)
    add("--batch", type=int, default=64)
    add("--twice", type=float, default=0.1, help="share of steps with llama.cpp's prompt")
    add("--workers", type=int, default=15)
    add("--pool", type=int, default=24_000)
    add("--fill", type=int, default=4_000, help="samples to wait for")
    add("--seed", type=int, default=1)
    add("--layers", type=int, default=0, help="of the language model; 0 is what the phase needs")
    add("--eval", type=Path, help="folder of held-out sets to answer at the end")
    add("--runs", nargs="*", default=RUNS)
    add("--no-compile", action="store_true")
    add("--cudnn", action="store_true", help="attention by cuDNN and nothing else")
    return parser.parse_args()


class Trainer:
    """Owns the networks and their optimiser; step() is one batch."""

    def __init__(self, a: argparse.Namespace, device: str, log: Log) -> None:
        self.phase, self.device = a.phase, device
        self.tokenizer = load_tokenizer()
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        layers = a.layers or (LM_LAYERS if a.phase == "language" else 0)
        self.lm = Llama(a.lm, dtype, device, layers)
        self.vision, self.heads = Vision().to(device), Heads().to(device)
        self._start(a.start, log)
        self.optimiser = Optimiser(
            (self.vision, self.heads), weight_decay=0.05, fused=device == "cuda"
        )
        if a.state and a.state.exists():
            self._restore(a.state, log)
        if not a.no_compile:
            for block in (*self.vision.blocks, *self.lm.blocks):
                block.compile(dynamic=False)
        self.characters = CharacterLoss(device)
        self.tokens = TokenLoss(self.lm.emb)
        forms = {form: around_images(self.tokenizer, form) for form in ("single", "dup")}
        self.answers = AnswerLoss(self.lm, forms)

    def _start(self, source: Path | None, log: Log) -> None:
        if source is None:
            return
        weights = load(source)
        heads = {k[6:]: v for k, v in weights.items() if k.startswith("heads.")}
        if heads:
            self.heads.load_state_dict(heads)
        self.vision.load_state_dict({k: v for k, v in weights.items() if k[:6] != "heads."})
        log(f"weights of {source}, heads {bool(heads)}")

    def _restore(self, path: Path, log: Log) -> None:
        kept = torch.load(path, map_location=self.device, weights_only=True)
        self.vision.load_state_dict(kept["vision"])
        self.heads.load_state_dict(kept["heads"])
        if kept["phase"] == self.phase:
            self.optimiser.restore(kept["optimiser"])
        log(f"state of {path}, phase {kept['phase']}")

    def save(self, out: Path, state: Path | None) -> None:
        heads = {f"heads.{k}": v for k, v in self.heads.state_dict().items()}
        save_parts({**self.vision.state_dict(), **heads}, out)
        if state:
            kept = {
                "phase": self.phase,
                "vision": self.vision.state_dict(),
                "heads": self.heads.state_dict(),
                "optimiser": self.optimiser.state(),
            }
            torch.save(kept, state)

    def step(self, batch: dict[str, Tensor], rate: float, form: str) -> Tensor:
        """One update. -> [7] on the device: three losses, their accuracies, the gradient's norm."""
        learns_letters = self.phase == "vision"
        pixels = augment(batch["image"]) if learns_letters else grain(batch["image"])
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            features, vectors = self.vision(pixels)
            logits = self.heads(features)
        on_characters, letters = self.characters(logits, batch["characters"])
        on_tokens, tokens = self.tokens(vectors, batch["tokens"], self.heads)
        c, t, w = WEIGHTS[self.phase]
        loss = c * on_characters + t * on_tokens
        on_answers = said = torch.zeros((), device=self.device)
        if w:
            on_answers, said = self.answers(vectors, batch["row"], form)
            loss = loss + w * on_answers
        loss.backward()
        norm = self.optimiser.step(rate)
        parts = [on_characters, on_tokens, on_answers, letters, tokens, said, norm]
        return torch.stack([p.detach() for p in parts])


def learning_rate(a: argparse.Namespace, share: float, step: int) -> float:
    """A cosine to nothing over the phase, with a short rise at the start of every call."""
    place = a.begin + (a.end - a.begin) * share
    curve = max(0.004, 0.5 * (1 + math.cos(math.pi * place)))
    return float(a.rate * curve * min(1.0, (step + 1) / WARM_UP))


def report(log: Log, step: int, rate: float, sums: list[Tensor], speed: float, made: int) -> None:
    c, t, w, letters, tokens, said, norm = torch.stack(sums).mean(0).tolist()
    log(
        f"step {step} rate {rate:.1e} loss char {c:.3f} token {t:.3f} answer {w:.3f} | "
        f"right char {letters:.4f} token {tokens:.3f} answer {said:.4f} | norm {norm:.2f} | "
        f"{speed:.0f} images/s, made {made}"
    )


def loop(a: argparse.Namespace, trainer: Trainer, pool: Pool, log: Log) -> None:
    r, begun, step, sums = random.Random(a.seed), time.monotonic(), 0, []
    mark, at = begun, 0
    while (share := (time.monotonic() - begun) / a.seconds) < 1:
        batch = pool.batch(a.batch)
        if a.phase == "vision":
            batch = roll(batch, r.randrange(16), r.randrange(16))
        rate = learning_rate(a, share, step)
        sums.append(trainer.step(batch, rate, "dup" if r.random() < a.twice else "single"))
        step += 1
        if step == FEW or step % REPORT_EVERY == 0 or trainer.device == "cpu":
            made = pool.made  # report() waits for the device, so the clock is read after it
            last, sums = sums, []
            torch.stack(last).sum().item()
            now = time.monotonic()
            report(log, step, rate, last, (step - at) * a.batch / (now - mark), made)
            mark, at = now, step
    log(f"{step} steps of {a.batch}")


def main() -> None:
    a, begun = arguments(), time.monotonic()
    a.out.mkdir(parents=True, exist_ok=True)
    journal = (a.out / "log.txt").open("a")

    def log(line: str) -> None:
        for stream in (sys.stdout, journal):
            print(f"[{time.monotonic() - begun:6.1f}] {line}", file=stream, flush=True)

    tokenizer = load_tokenizer()
    renderers = Renderers(a.workers, 64, a.seed, MIXES[a.phase], tokenizer)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(a.seed)
    torch.set_float32_matmul_precision("high")
    if a.cudnn:
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_mem_efficient_sdp(False)
    pool = Pool(renderers, a.pool, device)
    trainer = Trainer(a, device, log)
    while pool.made < min(a.fill, a.pool):
        time.sleep(0.1)
    log(f"{pool.made} samples")
    loop(a, trainer, pool, log)
    trainer.save(a.out, a.state)
    log("saved")
    pool.stop()
    if a.eval:
        plain = Vision().to(device).eval()  # not the compiled one, whose shapes are fixed
        plain.load_state_dict(trainer.vision.state_dict())
        scores, details = evaluate(plain, trainer.lm, tokenizer, a.eval, a.runs)
        (a.out / "eval.json").write_text(json.dumps(scores, indent=1))
        (a.out / "answers.json").write_text(json.dumps(details, indent=1))
        log("evaluated")


if __name__ == "__main__":
    main()
