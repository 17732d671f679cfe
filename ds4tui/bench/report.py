"""A BenchResult for people and for scripts."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from ds4tui.bench.walk import BenchResult, Leg, Side

BUSY = 0.5  # load average from which something else took a good part of a CPU


# Fields of Leg and Side, and what they are called in the table.
MEMORY = {
    "kv_bytes": "KV",
    "memory_peak_bytes": "memory peak",
    "device_peak_bytes": "GPU peak",
}
MEASURES = ("prefill_tps", "decode_tps", "prefill_s", "decode_s", *MEMORY)


def table(result: BenchResult) -> str:
    """Fixed-width lines: a row a frontier, the whole walk last."""
    sides = [result.ours] + ([result.theirs] if result.theirs else [])
    lines = [f"{result.model}, {result.threads} threads, median of {result.repeats}"]
    if result.busy > BUSY:
        lines.append(f"The machine is busy (load {result.busy:.1f}): these rates are too low.")
    lines += [f"  {side.name}: {side.about}" for side in sides]
    return "\n".join([*lines, "", *_rows(result, sides), "", *_memory_rows(sides)])


def _rows(result: BenchResult, sides: list[Side]) -> Iterator[str]:
    names = [f"{side.name} {what}" for what in ("prefill", "decode") for side in sides]
    ratios = ["ratio prefill", "ratio decode"] if result.theirs else []
    yield "  ".join([f"{'tokens':>8}", *(f"{name:>17}" for name in [*names, *ratios])])
    for legs in zip(*(side.legs for side in sides), strict=True):
        yield _row(str(legs[0].frontier), _rates(legs))
    yield _row("all", _rates(sides))


def _rates(columns: Sequence[Leg | Side]) -> list[float]:
    prefill, decode = [c.prefill_tps for c in columns], [c.decode_tps for c in columns]
    ratios = [prefill[0] / prefill[1], decode[0] / decode[1]] if len(columns) == 2 else []
    return [*prefill, *decode, *ratios]


def _memory_rows(sides: list[Side]) -> Iterator[str]:
    """What is never known has no column."""
    columns = [
        (f"{side.name} {title}", [getattr(of, name) for of in (*side.legs, side)])
        for name, title in MEMORY.items()
        for side in sides
    ]
    columns = [(title, values) for title, values in columns if any(v is not None for v in values)]
    yield "  ".join([f"{'MB':>8}", *(f"{title:>{_wide(title)}}" for title, _ in columns)])
    names = [*(str(leg.frontier) for leg in sides[0].legs), "all"]
    for at, name in enumerate(names):
        cells = (f"{_megabytes(values[at]):>{_wide(title)}}" for title, values in columns)
        yield "  ".join([f"{name:>8}", *cells])


def _wide(title: str) -> int:
    return max(17, len(title))


def _megabytes(count: int | None) -> str:
    return "-" if count is None else f"{count / 1e6:,.1f}"


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


def csv_text(result: BenchResult) -> str:
    """A header and a row an interval; what is not known, a peer that was not asked for too, is
    empty. Bytes, seconds, tokens a second."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    sides = {"ours": result.ours, "theirs": result.theirs}
    writer.writerow(
        ["model", "threads", "repeats", "frontier", "prefill_tokens", "decode_steps"]
        + [f"{who}_{name}" for who in sides for name in MEASURES]
        + ["ratio_prefill", "ratio_decode"]
    )
    for at, leg in enumerate(result.ours.legs):
        legs = [side.legs[at] if side else None for side in sides.values()]
        writer.writerow(
            [result.model, result.threads, result.repeats]
            + [leg.frontier, leg.prefill_tokens, leg.decode_steps]
            + [getattr(each, name, None) for each in legs for name in MEASURES]
            + _rates([each for each in legs if each])[4:]
            + ([] if result.theirs else [None, None])
        )
    return text.getvalue()


def _side(side: Side) -> dict[str, Any]:
    return {
        "name": side.name,
        "about": side.about,
        "prefill_tps": side.prefill_tps,
        "decode_tps": side.decode_tps,
        **{name: getattr(side, name) for name in MEMORY},
        "legs": [
            asdict(leg) | {"prefill_tps": leg.prefill_tps, "decode_tps": leg.decode_tps}
            for leg in side.legs
        ],
    }
