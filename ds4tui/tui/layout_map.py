"""What the resident rows are of, as a line: system text, turns, tools, images; below it where the
last prompt parted and where snapshots stand. Read by shape as well as by colour.

Pure functions of a session's stats.
"""

from collections.abc import Sequence

from textual.content import Content

from ds4tui.engine.layout import Run
from ds4tui.engine.stats import SessionStats
from ds4tui.tui.words import QUIET, short_count

COMMON_MARK = "┃"
SNAPSHOT_MARK = "╵"

# What each kind is called, its sign, and its colour; in the order of the legend.
_KINDS = {
    "system": ("system", "█", "$text-primary"),
    "user": ("asked", "▄", "$text-accent"),
    "assistant": ("replies", "▀", "$text-success"),
    "tool": ("tools", "▒", "$text-warning"),
    "image": ("images", "◆", "$text-error"),
    "text": ("text", "━", "$accent"),
}


def map_lines(
    session: SessionStats, common: int, width: int, *, has_legend: bool = False
) -> list[Content]:
    """The line, `width` cells for all that is resident; marks, if there are any; the legend with
    the tokens of each kind. Nothing for a session without rows."""
    runs = _up_to(session.layout, session.resident_tokens)
    if not runs:
        return []
    lines = [_line(_cells(runs, session.resident_tokens, width))]
    if marks := _marks(session, common, width):
        lines.append(marks)
    if has_legend:
        lines.append(_legend(runs, session, common, width))
    return lines


def _up_to(layout: Sequence[Run], resident: int) -> list[Run]:
    """The layout as far as rows are resident; what was sampled since then is of the reply."""
    runs = [Run(r.kind, r.start, min(r.end, resident)) for r in layout if r.start < resident]
    if runs and runs[-1].end < resident:
        kind = "text" if runs[-1].kind == "text" else "assistant"
        runs.append(Run(kind, runs[-1].end, resident))
    return runs


def _cells(runs: Sequence[Run], resident: int, width: int) -> list[str]:
    """The kind of each cell: what most of its tokens are of. A kind that has no cell by that gets
    the one with most of it: a picture of few rows is seen."""
    shares: list[dict[str, float]] = [{} for _ in range(width)]
    for run in runs:
        first, last = run.start * width / resident, run.end * width / resident
        for cell in range(int(first), min(width, int(last) + 1)):
            part = min(last, cell + 1) - max(first, cell)
            if part > 0:
                shares[cell][run.kind] = shares[cell].get(run.kind, 0.0) + part
    cells = [max(share, key=lambda kind: share[kind]) if share else "text" for share in shares]
    for kind in sorted({run.kind for run in runs} - set(cells)):
        most = max(range(width), key=lambda cell: shares[cell].get(kind, 0.0))
        cells[most] = kind
    return cells


def _line(cells: Sequence[str]) -> Content:
    parts: list[tuple[str, str]] = []
    for kind in cells:
        _, sign, colour = _KINDS.get(kind, _KINDS["text"])
        if parts and parts[-1][1] == colour:
            parts[-1] = (parts[-1][0] + sign, colour)
        else:
            parts.append((sign, colour))
    return Content.assemble(*parts)


def _marks(session: SessionStats, common: int, width: int) -> Content | None:
    signs = [" "] * width
    resident = session.resident_tokens
    for at in session.snapshots_at:
        if 0 < at <= resident:
            signs[min(width - 1, at * width // resident)] = SNAPSHOT_MARK
    has_common = 0 < common < resident
    if has_common:
        signs[min(width - 1, common * width // resident)] = COMMON_MARK
    if not has_common and SNAPSHOT_MARK not in signs:
        return None
    styled = [(s, "$text-warning" if s == COMMON_MARK else QUIET) for s in signs]
    return Content.assemble(*styled)


def _legend(runs: Sequence[Run], session: SessionStats, common: int, width: int) -> Content:
    tokens: dict[str, int] = {}
    for run in runs:
        kind = run.kind if run.kind in _KINDS else "text"
        tokens[kind] = tokens.get(kind, 0) + run.end - run.start
    entries = [
        (sign, colour, f" {name} {short_count(tokens[kind])}")
        for kind, (name, sign, colour) in _KINDS.items()
        if tokens.get(kind)
    ]
    if session.snapshots_at:
        entries.append((SNAPSHOT_MARK, QUIET, f" {len(session.snapshots_at):,} snapshots"))
    if 0 < common < session.resident_tokens:
        entries.append((COMMON_MARK, "$text-warning", " common to here"))
    return _wrapped(entries, width)


def _wrapped(entries: Sequence[tuple[str, str, str]], width: int) -> Content:
    """The entries on lines of at most `width` cells; none is cut."""
    lines: list[list[Content]] = [[]]
    used = 0
    for sign, colour, words in entries:
        entry = Content.assemble((sign, colour), words)
        gap = 2 if lines[-1] else 0
        if lines[-1] and used + gap + len(entry) > width:
            lines.append([])
            used = gap = 0
        lines[-1].append(entry)
        used += gap + len(entry)
    return Content("\n").join([Content("  ").join(line) for line in lines])
