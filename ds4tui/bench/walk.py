"""The walk of one or two programs over the same token ids, and what comes of it.

A Walker times itself, so that starting it, tokenising and waiting for its turn do not count.
"""

import logging
import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ds4tui.bench.llama_cpp import LlamaCpp
from ds4tui.bench.ours import Ours
from ds4tui.bench.text import bench_ids
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.tokenizer import Tokenizer
from ds4tui.errors import UsageError
from ds4tui.kernels.cpu.threads import cpus, limit_threads

log = logging.getLogger(__name__)

# llama.cpp's threads keep spinning for a while after a graph: not in our turn.
REST_S = 0.3


@dataclass(frozen=True, slots=True)
class Leg:
    """From one frontier to the next: `prefill_tokens` were evaluated, then `decode_steps` steps
    of one token made the reply (the first token comes out of the prefill).

    `kv_bytes` are allocated for the KV state at the frontier; `memory_peak_bytes` is the most
    that was resident of the program's process so far, mapped files included;
    `device_peak_bytes` the most that its allocator took on a GPU. None: not known.
    """

    frontier: int
    prefill_tokens: int
    prefill_s: float
    decode_steps: int
    decode_s: float
    kv_bytes: int | None = None
    memory_peak_bytes: int | None = None
    device_peak_bytes: int | None = None

    @property
    def prefill_tps(self) -> float:
        return self.prefill_tokens / self.prefill_s

    @property
    def decode_tps(self) -> float:
        return self.decode_steps / self.decode_s


class Walker(Protocol):
    """A program with one live sequence. `leg` drops what differs from `ids`, evaluates the rest
    and decodes greedily; `forget` drops all."""

    name: str
    about: str  # what it computes with, in words

    def leg(self, ids: Sequence[int], decode_tokens: int) -> Leg: ...
    def forget(self) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Side:
    """One program's walk: medians over the repeats."""

    name: str
    about: str
    legs: tuple[Leg, ...]

    @property
    def prefill_tps(self) -> float:
        return sum(leg.prefill_tokens for leg in self.legs) / sum(
            leg.prefill_s for leg in self.legs
        )

    @property
    def decode_tps(self) -> float:
        return sum(leg.decode_steps for leg in self.legs) / sum(leg.decode_s for leg in self.legs)

    @property
    def kv_bytes(self) -> int | None:
        return most(leg.kv_bytes for leg in self.legs)

    @property
    def memory_peak_bytes(self) -> int | None:
        return most(leg.memory_peak_bytes for leg in self.legs)

    @property
    def device_peak_bytes(self) -> int | None:
        return most(leg.device_peak_bytes for leg in self.legs)


def most(counts: Iterable[int | None]) -> int | None:
    """The largest that is known."""
    return max((count for count in counts if count is not None), default=None)


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Ratios are our rate over theirs, over the whole walk; None without a peer. `busy` is the
    load average before the start: what else the machine had to do."""

    model: str
    threads: int
    repeats: int
    busy: float
    ours: Side
    theirs: Side | None = None

    @property
    def ratio_prefill(self) -> float | None:
        return self.ours.prefill_tps / self.theirs.prefill_tps if self.theirs else None

    @property
    def ratio_decode(self) -> float | None:
        return self.ours.decode_tps / self.theirs.decode_tps if self.theirs else None


def run_bench(
    model_path: Path,
    against: str | None = None,
    *,
    frontiers: Sequence[int],
    decode_tokens: int,
    repeats: int = 1,
    threads: int | None = None,
) -> BenchResult:
    """Measure the model in `model_path`, and `against` ("llama.cpp") on the same file.

    Raises UsageError if the peer is not installed or the context is too short for the walk.
    """
    if threads is not None:
        if threads > cpus():
            raise UsageError(f"--threads {threads} is more than the {cpus()} CPUs of this process.")
        limit_threads(threads)
    shared, busy = threads or cpus(), os.getloadavg()[0]
    with ExitStack() as stack, GGUFFile.open(model_path) as gguf:
        context = frontiers[-1] + decode_tokens
        walkers: list[Walker] = [Ours(gguf, context)]  # says at once if the context is too short
        ids = bench_ids(Tokenizer.from_gguf(gguf), frontiers[-1])
        if against == "llama.cpp":
            walkers.append(LlamaCpp(model_path, context, shared))
        elif against is not None:
            raise UsageError(f"{against!r} is no program to measure against.", "Try llama.cpp.")
        for walker in walkers:
            stack.callback(walker.close)
        sides = walk(walkers, ids, frontiers, decode_tokens, repeats)
    return BenchResult(model_path.name, shared, repeats, busy, *sides)


def walk(
    walkers: Sequence[Walker],
    ids: Sequence[int],
    frontiers: Sequence[int],
    decode_tokens: int,
    repeats: int,
    rest: Callable[[float], None] = time.sleep,
) -> list[Side]:
    """Let all walk `repeats` times, taking turns at each frontier; who is first alternates."""
    legs: dict[tuple[int, int], list[Leg]] = {}
    for walker in walkers:  # so that no page of the weights is read for the first time later
        walker.leg(ids[: min(32, frontiers[0])], 2)
    for repeat in range(repeats):
        for walker in walkers:
            walker.forget()
        for at, frontier in enumerate(frontiers):
            turns = list(enumerate(walkers))
            for who, walker in turns if (at + repeat) % 2 == 0 else reversed(turns):
                rest(REST_S)
                leg = walker.leg(ids[:frontier], decode_tokens)
                log.info("%s: %s", walker.name, leg)
                legs.setdefault((who, frontier), []).append(leg)
    return [
        Side(w.name, w.about, tuple(_median(legs[who, frontier]) for frontier in frontiers))
        for who, w in enumerate(walkers)
    ]


def _median(legs: list[Leg]) -> Leg:
    first = legs[0]
    return Leg(
        first.frontier,
        first.prefill_tokens,
        statistics.median(leg.prefill_s for leg in legs),
        first.decode_steps,
        statistics.median(leg.decode_s for leg in legs),
        most(leg.kv_bytes for leg in legs),
        most(leg.memory_peak_bytes for leg in legs),
        most(leg.device_peak_bytes for leg in legs),
    )
