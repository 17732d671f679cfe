"""What the positions of a session are of: system text, turns, tools, images. Pure; for panels."""

from collections.abc import Sequence
from dataclasses import dataclass

from ds4tui.cache.outline import Outline
from ds4tui.cache.timeline import ImageSpan

# What the template writes before a reply belongs to it.
_KINDS = {"opening": "assistant"}


@dataclass(frozen=True, slots=True)
class Run:
    """Positions [start, end) of one kind: a role of `cache.outline.Turn`, or "image"."""

    kind: str
    start: int
    end: int


def layout(outline: Outline, images: Sequence[ImageSpan], tokens: int) -> tuple[Run, ...]:
    """The runs of `tokens` positions, ascending and without holes. What stands behind the last
    turn is the reply to it; without an outline all is "text"."""
    runs: list[Run] = []
    at = 0
    for turn in outline:
        end = min(turn.end, tokens)
        if end > at:
            runs.append(Run(_KINDS.get(turn.role, turn.role), at, end))
            at = end
    if tokens > at:
        last = runs.pop() if runs and runs[-1].kind == "assistant" else None
        kind = "assistant" if outline else "text"
        runs.append(Run(kind, last.start if last else at, tokens))
    return tuple(_with_images(runs, [image for image in images if image.start < tokens]))


def _with_images(runs: list[Run], images: Sequence[ImageSpan]) -> list[Run]:
    found: list[Run] = []
    for run in runs:
        at = run.start
        for image in images:
            start, end = image.start, image.start + image.rows
            if not run.start <= start < run.end:
                continue
            if start > at:
                found.append(Run(run.kind, at, start))
            found.append(Run("image", start, min(end, run.end)))
            at = min(end, run.end)
        if run.end > at:
            found.append(Run(run.kind, at, run.end))
    return found
