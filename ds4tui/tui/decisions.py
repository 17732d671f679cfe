"""How decisions are told: a line each in a list, and one of them in full. Pure functions.

The reason and the cause are the engine's own words; what a cause means comes from ds4tui.advice.
Text of conversations is shown as text, whatever is in it.
"""

from textual.content import Content

from ds4tui.advice import advice
from ds4tui.events import Decision
from ds4tui.tui.held import what_words, who_words
from ds4tui.tui.panels import dropped_words
from ds4tui.tui.terminal_text import harmless, one_line
from ds4tui.tui.words import (
    QUIET,
    clock_words,
    counted,
    cut,
    hanging_row,
    left_out_words,
    percent,
    seconds_words,
    section,
    short_count,
)

_TIME_CELLS, _WHO_CELLS, _KIND_CELLS, _COUNT_CELLS = 9, 6, 8, 7
# Below this a list has no room for the reason beside the cause.
_REASON_CELLS_MIN = 24
PARTED = "┃"
_WINDOW_TOKENS = 8  # that a decision's windows hold of each side

_KIND_STYLES = {"extend": "$text-success", "cold": "$text-error"}
_SOURCES = {
    "memory": "the live state",
    "parked": "a parked branch",
    "segment": "a kept segment",
    "snapshot": "a snapshot",
    "disk": "the disk",
    "none": "nowhere: nothing was kept",
}
_GRADES = {
    "restore-exact": "what is kept is, bit for bit, what was computed for these tokens",
    "recompute-equal": "computed anew: the same mathematics, rounded perhaps in another order",
}
_IMAGES = {
    "match": "all that were resident are in the prompt",
    "changed": "one was replaced",
    "removed": "one is gone",
}


# The list


def list_head(width: int) -> Content:
    """The heads of the columns of `decision_line`."""
    columns = _columns("time", "who", "kind", "kept", "new")
    return Content.styled(cut(f"{columns}cause, reason", width), QUIET)


def decision_line(decision: Decision, width: int) -> Content:
    """One decision on one line of at most `width` cells."""
    kind = decision.kind.ljust(_KIND_CELLS)
    before = _time_words(decision).ljust(_TIME_CELLS) + _who(decision).ljust(_WHO_CELLS)
    kept, new = short_count(decision.kept), short_count(decision.evaluated)
    counts = f"{kept.rjust(_COUNT_CELLS)}{new.rjust(_COUNT_CELLS)}  "
    room = width - len(before) - len(kind) - len(counts)
    return Content.assemble(
        (before, QUIET),
        (kind, _KIND_STYLES.get(decision.kind, "$text-warning")),
        counts,
        *_why(decision, room),
    )[:width]


def _columns(when: str, who: str, kind: str, kept: str, new: str) -> str:
    left = when.ljust(_TIME_CELLS) + who.ljust(_WHO_CELLS) + kind.ljust(_KIND_CELLS)
    return f"{left}{kept.rjust(_COUNT_CELLS)}{new.rjust(_COUNT_CELLS)}  "


def _time_words(decision: Decision) -> str:
    return clock_words(decision.time_s) if decision.time_s else ""


def _who(decision: Decision) -> str:
    return who_words(decision.origin)


def _why(decision: Decision, room: int) -> list[Content | tuple[str, str]]:
    reason = one_line(decision.reason)
    if not decision.cause:
        return [(cut(reason, room), QUIET)]
    left = room - len(decision.cause) - 2
    if left < _REASON_CELLS_MIN:
        return [Content(cut(decision.cause, room))]
    return [Content(decision.cause), (f"  {cut(reason, left)}", QUIET)]


# One in full


def decision_detail(decision: Decision, width: int, *, has_sessions: bool = False) -> Content:
    """All that is known of a decision, in words, what matters most first; `has_sessions`: there
    are several."""
    rows = _Rows(width)
    parts = [_summary(decision)]
    if decision.divergence is not None:
        parts.append(_parting_section(decision, rows))
    if decision.cause:
        parts.append(_cause_section(decision, rows))
    parts += [
        _tokens_section(decision, rows),
        _kept_section(decision, rows),
        _asked_section(decision, rows, has_sessions),
    ]
    if decision.tripwire:
        parts.append(section("Nothing is reused", Content(one_line(decision.tripwire))))
    return Content("\n\n").join(parts)


class _Rows:
    """Rows of a text that is `width` cells wide."""

    def __init__(self, width: int) -> None:
        self._width = width

    def __call__(self, label: str, *values: str | Content | tuple[str, str]) -> Content:
        return hanging_row(label, Content.assemble(*values), self._width)


def _summary(decision: Decision) -> Content:
    counts = (
        f"{decision.kind}: kept {decision.kept:,} of {counted(decision.prompt, 'token')}, "
        f"evaluated {decision.evaluated:,}"
    )
    return Content("\n").join([Content.styled(counts, "bold"), Content(one_line(decision.reason))])


def _cause_section(decision: Decision, row: _Rows) -> Content:
    told = advice(decision.cause)
    lines = [row("cause", f"{decision.cause}")]
    if told is not None:
        lines.append(row("that is", told.meaning))
        if told.help:
            lines.append(row("helps", told.help))
    return section("Why again", *lines)


def _parting_section(decision: Decision, row: _Rows) -> Content:
    at = decision.divergence or 0
    shared = ("…" if at > _WINDOW_TOKENS else "") + _shown(decision.shared_window)
    live, wanted = _shown(decision.live_window), _shown(decision.wanted_window)
    return section(
        f"Where they part, at token {at:,}",
        row("resident", *_side(shared, live, decision.live - at, "$text-error")),
        row("wanted", *_side(shared, wanted, decision.prompt - at, "$text-success")),
    )


def _side(shared: str, own: str, tokens: int, style: str) -> tuple[tuple[str, str], ...]:
    """How one side goes on, for `tokens`, behind what both share; a mark where they part."""
    more = "…" if tokens > _WINDOW_TOKENS else ""
    return (
        (shared, QUIET),
        (PARTED, "$text-warning"),
        (f"{own}{more}", style) if own else ("(no text)", QUIET),
    )


def _shown(text: str) -> str:
    """Text of a conversation on one line, with signs for what would break or steer it."""
    return harmless(text).replace("\n", "⏎").replace("\t", "⇥")


def _tokens_section(decision: Decision, row: _Rows) -> Content:
    return section(
        "Tokens",
        row("live", f"{decision.live:,} were resident"),
        row("prompt", f"{decision.prompt:,} are wanted"),
        row("common", f"{decision.common:,} at the start of both"),
        row("held", f"{decision.held:,} of the prompt, wherever they are held"),
        row("kept", f"{decision.kept:,} ({percent(decision.kept, decision.prompt)}%)"),
        row("dropped", dropped_words(decision)),
        row("evaluated", f"{decision.evaluated:,}"),
        row("replayed", _replayed_words(decision)),
    )


def _replayed_words(decision: Decision) -> str:
    if not decision.replayed:
        return "0"
    return f"{decision.replayed:,} of those evaluated were held already"


def _kept_section(decision: Decision, row: _Rows) -> Content:
    sources = " and ".join(_SOURCES.get(name, name) for name in decision.source.split("+"))
    grade = _GRADES.get(decision.grade, "")
    lines = [row("from", sources), row("grade", f"{decision.grade}: {grade}")]
    if decision.estimated_ms:
        lines.append(row("estimated", f"{seconds_words(decision.estimated_ms)} to the first token"))
    if decision.images in _IMAGES:
        lines.append(row("images", _IMAGES[decision.images]))
    if decision.images_left_out:
        lines.append(row("left out", left_out_words(decision.images_left_out)))
    return section("What is kept", *lines)


def _asked_section(decision: Decision, row: _Rows, has_sessions: bool) -> Content:
    who = {"person": "you, in the app", "agent": "a program, over HTTP"}.get(decision.origin, "-")
    when = f", at {_time_words(decision)}" if decision.time_s else ""
    lines = [row("by", f"{who}{when}")]
    if decision.what:
        _, _, about = what_words(decision.what).partition(": ")
        lines.append(row("begins", about))
    if has_sessions and decision.session:
        lines.append(row("session", f"{decision.session}"))
    return section("Asked", *lines)
