"""`ds4tui models show NAME`: the report of report.py for people or for programs."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TextIO

from ds4tui.config import Settings
from ds4tui.library.listing import megabytes
from ds4tui.library.report import ModelReport, plain, report
from ds4tui.library.resolve import resolve_model
from ds4tui.library.verified import require_sound

UNUSED_NAMED = 20

# What engine.holding's ways mean to a person.
WAYS = {
    "blocks": "exact, read where the file lies",
    "values": "exact values",
    "rounded values": "values, rounded",
    "native form": "exact, MLX's own form",
    "native form, rounded": "MLX's own form, scales rounded",
    "re-quantised": "quantised anew, not exact",
    "unused": "not used",
}


def show(settings: Settings, name: str, as_json: bool, measure: bool, out: TextIO) -> int:
    """Print the report; 0, or 1 if the file cannot be run as a model.

    Raises ModelNotFound, ModelError for a damaged one of the catalogue, and GGUFError for a file
    that is no GGUF or damaged.
    """
    from ds4tui.engine.gguf import GGUFFile

    path = resolve_model(name, settings.data_dir)
    require_sound(path, settings.data_dir, _say)
    with GGUFFile.open(path) as gguf:
        found = report(gguf, settings, measure)
    if as_json:
        print(json.dumps(asdict(found), ensure_ascii=False), file=out)
    else:
        print("\n".join(_text(found)), file=out)
    return 1 if found.problem else 0


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _text(r: ModelReport) -> Iterator[str]:
    yield f"{r.name}  ({r.title})" if r.title else r.name
    for name, value in _header(r):
        yield f"  {name:<14} {value}"
    if r.problem:
        yield from ("", f"This file cannot be run: {r.problem}")
    yield from ("", "tensors by type")
    yield from _table(_type_cells(r))
    yield from ("", "largest tensors")
    yield from _table(_largest_cells(r))
    if r.unused:
        names = ", ".join(r.unused[:UNUSED_NAMED])
        more = len(r.unused) - UNUSED_NAMED
        yield f"not used: {names}" + (f" and {more} more" if more > 0 else "")
    yield from ("", "memory")
    yield from (f"  {line}" for line in _memory_lines(r))
    if r.measured:
        yield from ("", "errors of quantising anew, of samples of each tensor")
        yield from _table(_measured_cells(r))
    for note in r.notes:
        yield from ("", note)


def _header(r: ModelReport) -> Iterator[tuple[str, str]]:
    mix = ", ".join(f"{row.tensors} {row.type}" for row in r.types)
    yield "file", f"{r.path} ({megabytes(r.file_bytes)})"
    yield "architecture", plain(r.architecture)
    yield "quantisation", f"{r.quantisation} ({mix})"
    yield "parameters", f"{r.parameters / 1e6:,.1f} M"
    yield "context", f"{r.context_tokens:,} tokens" if r.context_tokens else "not known"
    size = f"{r.vocabulary_tokens:,} tokens" if r.vocabulary_tokens else ""
    yield "tokenizer", ", ".join(part for part in (r.tokenizer, size) if part) or "none"
    yield "chat template", "yes" if r.chat_template else "no"
    yield "vision", f"yes, with {r.vision_part}" if r.vision else "no"
    if r.vision_limits:
        yield "", r.vision_limits
    if not r.problem:
        yield "runs as", r.runs_as
    yield "sampling", r.sampling


Cells = list[list[str]]


def _type_cells(r: ModelReport) -> Cells:
    rows: Cells = [
        ["type", "tensors", "in file", "held as", "how", "in memory", "bits a weight", "change"]
    ]
    for row in r.types:
        used = row.way != "unused"
        rows.append([
            row.type,
            str(row.tensors),
            megabytes(row.file_bytes),
            row.held_as or "-",
            WAYS[row.way],
            megabytes(row.memory_bytes),
            f"{row.bits:.2f}" if used else "-",
            _change(row.file_bytes, row.memory_bytes) if used else "-",
        ])  # fmt: skip
    in_file = sum(row.file_bytes for row in r.types)
    weights = sum(row.weights for row in r.types if row.way != "unused")
    rows.append([
        "all",
        str(sum(row.tensors for row in r.types)),
        megabytes(in_file),
        "",
        "",
        megabytes(r.memory.weights_bytes),
        f"{r.memory.weights_bytes * 8 / weights:.2f}" if weights else "-",
        _change(in_file, r.memory.weights_bytes),
    ])  # fmt: skip
    return rows


def _change(in_file: int, in_memory: int) -> str:
    """Memory against file, as a share of the file."""
    return f"{in_memory / in_file - 1:+.0%}" if in_file else "-"


def _largest_cells(r: ModelReport) -> Cells:
    return [["name", "shape", "type", "in file", "held as", "in memory"]] + [
        [
            row.name,
            " x ".join(map(str, row.shape)),
            row.type,
            megabytes(row.file_bytes),
            row.held_as,
            megabytes(row.memory_bytes),
        ]
        for row in r.largest
    ]


def _measured_cells(r: ModelReport) -> Cells:
    return [["type", "to", "relative RMS error", "largest error", "weights"]] + [
        [
            row.type,
            f"{row.bits} bits",
            f"{row.relative_rms:.3%}",
            f"{row.largest:.3%} of the largest weight",
            f"{row.weights:,}",
        ]
        for row in r.measured
    ]


def _memory_lines(r: ModelReport) -> Iterator[str]:
    m = r.memory
    yield f"weights {megabytes(m.weights_bytes)}; loading needs {megabytes(m.needed_bytes)}"
    if m.kv_bytes is not None and m.own_bytes is not None:
        yield (
            f"context {megabytes(m.kv_bytes)} for {m.kv_tokens:,} tokens, "
            f"{megabytes(m.own_bytes)} for the model's own {r.context_tokens:,}"
        )
    available = f"{megabytes(m.available_bytes)} are available now"
    if m.fits and m.fitting_tokens is not None:
        yield f"fits, with a context of {m.fitting_tokens:,} tokens: {available}"
    elif not r.problem:
        yield f"does not fit: {available}"
    else:
        yield available


def _table(rows: Cells) -> Iterator[str]:
    """Columns as wide as their widest cell; those of numbers are flush right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = (
            cell.rjust(width) if title in _NUMBERS else cell.ljust(width)
            for title, cell, width in zip(rows[0], row, widths, strict=True)
        )
        yield "  " + "  ".join(cells).rstrip()


_NUMBERS = {
    "tensors", "in file", "in memory", "bits a weight", "change", "relative RMS error", "weights"
}  # fmt: skip
