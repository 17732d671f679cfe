"""Compares the golden logits with llama.cpp on the same files: whole next-token distributions.

    python -m tests.parity.three_way [FAMILY ...]     the table of tests/golden/README.md

Modes:
  fresh    every prefix evaluated from nothing, in one batch
  chunked  the same in micro-batches of 16 tokens
  stepped  the prefix grown one token at a time on a kept cache (decode steps)
"""

import argparse
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from tests.golden.files import families, golden, golden_path, projector_path, row
from tests.parity.llamacpp import LlamaCpp

CHUNK = 16
STEPS = 9


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """float64 log-probabilities along the last axis."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    result: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def expected(name: str) -> np.ndarray:
    """float64 [T, vocab]: what llama.cpp is to say, in the mimic's rounding if there is one."""
    arrays = golden(name)
    return log_softmax(arrays.get("mimic_logits", arrays["logits"]))


def right_at(name: str, lengths: Iterable[int]) -> list[int]:
    """Those prompt lengths at which llama.cpp is known to be right (all, but for qwen4exp)."""
    allowed = row(name)["llamacpp_lengths"]
    return [n for n in sorted(set(lengths)) if allowed is None or n in allowed]


def table_lengths(n: int) -> list[int]:
    return [1, 2, 5, 9, n // 3, n // 2, n - 7, n - 4, n]


def stepped_lengths(n: int) -> list[int]:
    return list(range(n - STEPS + 1, n + 1))


def largest_gap(server: LlamaCpp, name: str, lengths: Sequence[int], keep: bool = False) -> float:
    """Largest difference of a log-probability after prefixes of these lengths. `keep` grows
    them on one cache: then all lengths are evaluated, and those compared that are right."""
    ids, want = golden(name)["ids"].tolist(), expected(name)
    fine, worst = right_at(name, lengths), 0.0
    for n in lengths if keep else fine:
        got = server.log_probabilities(ids[:n], want.shape[1], keep)
        if n in fine:
            worst = max(worst, float(np.abs(got - want[n - 1]).max()))
    return worst


def image_gap(server: LlamaCpp, name: str, cuts: Sequence[int]) -> float:
    """The same with the image before the first `cuts` characters of the text after it."""
    arrays, want = golden(name), expected(name)
    before, after = str(arrays["before"]), str(arrays["after"])
    worst = 0.0
    for n in cuts:
        prompt = server.about_image(before, arrays["image"], after[:n])
        got = server.log_probabilities(prompt, want.shape[1])
        at = len(want) - len(after) + n - 1
        worst = max(worst, float(np.abs(got - want[at]).max()))
    return worst


def table_gaps(name: str, folder: Path) -> dict[str, float]:
    """Largest difference by mode."""
    log = folder / f"{name}.log"
    if row(name)["vision"]:
        rest = len(str(golden(name)["after"]))
        with LlamaCpp(golden_path(name), log, projector_path(name)) as server:
            return {"fresh": image_gap(server, name, (1, 2, 7, rest // 2, rest))}
    n, gaps = len(golden(name)["ids"]), {}
    with LlamaCpp(golden_path(name), log) as server:
        gaps["fresh"] = largest_gap(server, name, table_lengths(n))
        gaps["stepped"] = largest_gap(server, name, stepped_lengths(n), keep=True)
    with LlamaCpp(golden_path(name), log, ubatch=CHUNK) as server:
        gaps["chunked"] = largest_gap(server, name, table_lengths(n))
    return gaps


def line(name: str, gaps: dict[str, float]) -> tuple[str, bool]:
    """A line of the table and whether it passes."""
    facts = row(name)
    same = max(gaps.values()) <= facts["tolerance"]
    felt = facts["sensitivity"] >= 100 * facts["tolerance"]
    modes = [
        f"{gaps[mode]:.1e}" if mode in gaps else "-" for mode in ("fresh", "chunked", "stepped")
    ]
    mark = " *" if facts["mimic"] else ""
    verdict = "PASS" if same and felt else "DIFFERS" if not same else "BLIND"
    cells = [name + mark, f"{facts['parameters']:,}", str(facts["tokens"]), *modes]
    cells += [f"{facts['tolerance']:.0e}", f"{facts['sensitivity']:.2g}", verdict]
    return f"| {' | '.join(cells)} |", same and felt


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*", metavar="FAMILY")
    print(
        "| family | parameters | tokens | fresh | chunked | stepped | tolerance | sensitivity | |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    passed = []
    with tempfile.TemporaryDirectory() as folder:
        for name in parser.parse_args().families or families():
            text, good = line(name, table_gaps(name, Path(folder)))
            passed.append(good)
            print(text, flush=True)
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
