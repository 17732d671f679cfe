"""Samples rendered by forked workers, kept in device memory, drawn at random.

Rendering is slower than training: each sample is drawn about twice before a newer one takes its
place. The workers own slots of a shared ring; one thread of the trainer copies what is new.
Start it before the first CUDA call, since the workers are forked.
"""

import mmap
import multiprocessing
import os
import random
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from tools.screen_reader.canvas import CELLS, PATCHES, SIDE, SLOTS, preprocess
from tools.screen_reader.faces import TRAINING
from tools.screen_reader.pages import page, reading_screen
from tools.screen_reader.prompts import IGNORE, ROW, sample_row
from tools.screen_reader.screens import Screen, screen

FIELDS = {
    "image": ((SIDE, SIDE, 3), np.uint8),
    "characters": ((PATCHES, PATCHES, SLOTS), np.uint8),
    "tokens": ((CELLS * CELLS,), np.int32),
    "row": ((2, ROW), np.int32),
}


@dataclass(frozen=True)
class Mix:
    """Shares of pages and reading scenes, the rest are screens; difficulty is even in a range."""

    pages: float
    reading: float
    easiest: float
    hardest: float


def make(r: random.Random, mix: Mix, tokenizer: Tokenizer) -> Screen:
    k = r.random()
    if k < mix.pages:
        return page(r, TRAINING, tokenizer)
    difficulty = r.uniform(mix.easiest, mix.hardest)
    if k < mix.pages + mix.reading:
        return reading_screen(r, difficulty, TRAINING, tokenizer)
    return screen(r, difficulty, TRAINING, tokenizer)


def sample(r: random.Random, mix: Mix, tokenizer: Tokenizer) -> dict[str, NDArray[Any]]:
    """One sample, its fields as in FIELDS."""
    while True:
        made = make(r, mix, tokenizer)
        row: NDArray[np.int32] | None = np.full((2, ROW), IGNORE, np.int32)
        if made.questions:
            row = sample_row(r, tokenizer, made.questions, 2 if r.random() < 0.5 else 1)
        if row is not None:
            return {
                "image": np.asarray(preprocess(made.image)),
                "characters": made.truth.characters,
                "tokens": made.truth.tokens,
                "row": row,
            }


def shared(shape: tuple[int, ...], dtype: type) -> NDArray[Any]:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(mmap.mmap(-1, size), dtype).reshape(shape)


class Renderers:
    """Worker processes writing samples into a ring in shared memory."""

    def __init__(self, workers: int, slots: int, seed: int, mix: Mix, tokenizer: Tokenizer) -> None:
        self.workers, self.slots = workers, slots
        self.ring = {k: shared((workers, slots, *s), t) for k, (s, t) in FIELDS.items()}
        self.written = shared((workers,), np.int64)
        self.taken = shared((workers,), np.int64)
        context = multiprocessing.get_context("fork")
        self.processes = [
            context.Process(target=self._work, args=(i, seed, mix, tokenizer), daemon=True)
            for i in range(workers)
        ]
        for process in self.processes:
            process.start()

    def _work(self, worker: int, seed: int, mix: Mix, tokenizer: Tokenizer) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        r = random.Random((seed * 1009 + worker) * 7919 + 13)
        pause = threading.Event()
        count = 0
        while True:
            made = sample(r, mix, tokenizer)
            while count - self.taken[worker] >= self.slots:
                pause.wait(0.01)
            for name, value in made.items():
                self.ring[name][worker, count % self.slots] = value
            count += 1
            self.written[worker] = count

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()


class Pool:
    """The newest `size` samples on the device."""

    def __init__(self, renderers: Renderers, size: int, device: str) -> None:
        self.renderers, self.size, self.device = renderers, size, device
        self.data = {
            k: torch.empty((size, *s), dtype=torch.from_numpy(np.empty(0, t)).dtype, device=device)
            for k, (s, t) in FIELDS.items()
        }
        self.made = 0
        self.stopping = threading.Event()
        self.failure: BaseException | None = None
        self._cuda = device == "cuda"
        self._stream = torch.cuda.Stream() if self._cuda else None
        self._staging = {
            k: torch.empty((renderers.slots, *s), dtype=v.dtype, pin_memory=self._cuda)
            for (k, (s, _)), v in zip(FIELDS.items(), self.data.values(), strict=True)
        }
        self._thread = threading.Thread(target=self._upload, daemon=True)
        self._thread.start()

    def _upload(self) -> None:
        try:
            with torch.cuda.stream(self._stream) if self._stream else torch.no_grad():
                while not self.stopping.is_set():
                    if not sum(self._take(w) for w in range(self.renderers.workers)):
                        self.stopping.wait(0.005)
        except BaseException as error:  # thread root: batch() raises it where the trainer sees it
            self.failure = error

    def _take(self, worker: int) -> int:
        """Copies a worker's new samples to the device; how many."""
        source = self.renderers
        first, last = int(source.taken[worker]), int(source.written[worker])
        for number in range(first, last):
            for name, staging in self._staging.items():
                value = torch.from_numpy(source.ring[name][worker, number % source.slots])
                staging[number - first].copy_(value)
                at = (self.made + number - first) % self.size
                self.data[name][at].copy_(staging[number - first], non_blocking=True)
        if self._stream:
            self._stream.synchronize()
        source.taken[worker] = last
        self.made += last - first
        return last - first

    def batch(self, size: int) -> dict[str, Tensor]:
        """A random batch, on the device."""
        if self.failure is not None:
            raise RuntimeError("copying samples failed") from self.failure
        index = torch.randint(min(self.made, self.size), (size,), device=self.device)
        return {k: v.index_select(0, index) for k, v in self.data.items()}

    def stop(self) -> None:
        self.stopping.set()
        self._thread.join()
        self.renderers.stop()
