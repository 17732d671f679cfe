"""A BenchResult for people and for scripts."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ds4tui.bench.walk import BenchResult, Leg, Side

BUSY = 0.5  # load average from which something else took a good part of a CPU


def table(result: BenchResult) -> str:
    """Fixed-width lines: a row a frontier, the whole walk last."""
    sides = [result.ours] + ([result.theirs] if result.theirs else [])
    lines = [f"{result.model}, {result.threads} threads, median of {result.repeats}"]
    if result.busy > BUSY:
        lines.append(f"The machine is busy (load {result.busy:.1f}): these rates are too low.")
    lines += [f"  {side.name}: {side.about}" for side in sides]
    return "\n".join([*lines, "", *_rows(result, sides)])


def _rows(result: BenchResult, sides: list[Side]) -> Iterator[str]:
    names = [f"{side.name} {what}" for what in ("prefill", "decode") for side in sides]
    ratios = ["ratio prefill", "ratio decode"] if result.theirs else []
    yield "  ".join([f"{'tokens':>8}", *(f"{name:>17}" for name in [*names, *ratios])])
    for legs in zip(*(side.legs for side in sides), strict=True):
        yield _row(str(legs[0].frontier), _rates(legs))
    yield _row("all", _rates(sides))


def _rates(columns: "tuple[Leg, ...] | list[Side]") -> list[float]:
    prefill, decode = [c.prefill_tps for c in columns], [c.decode_tps for c in columns]
    ratios = [prefill[0] / prefill[1], decode[0] / decode[1]] if len(columns) == 2 else []
    return [*prefill, *decode, *ratios]


def _row(name: str, values: list[float]) -> str:
    cells = [f"{value:>17.1f}" if value >= 10 else f"{value:>17.2f}" for value in values]
    return "  ".join([f"{name:>8}", *cells])


def summary(result: BenchResult) -> dict[str, Any]:
    """One JSON object; rates in tokens a second, ratios ours over theirs (null without a peer)."""
    return {
        "model": result.model,
        "threads": result.threads,
        "repeats": result.repeats,
        "load_before": result.busy,
        "ours": _side(result.ours),
        "theirs": _side(result.theirs) if result.theirs else None,
        "ratio_prefill": result.ratio_prefill,
        "ratio_decode": result.ratio_decode,
    }


def _side(side: Side) -> dict[str, Any]:
    return {
        "name": side.name,
        "about": side.about,
        "prefill_tps": side.prefill_tps,
        "decode_tps": side.decode_tps,
        "legs": [
            asdict(leg) | {"prefill_tps": leg.prefill_tps, "decode_tps": leg.decode_tps}
            for leg in side.legs
        ],
    }
