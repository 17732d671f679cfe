"""The sections of the side panel about memory: what is resident, what is held beside it, which
sessions there are, what was given up. Pure functions of the engine's stats."""

from textual.content import Content

from ds4tui.engine.stats import EngineStats, MemoryNote, SessionStats
from ds4tui.tui.layout_map import COMMON_MARK, map_lines
from ds4tui.tui.terminal_text import one_line
from ds4tui.tui.words import (
    QUIET,
    bar,
    clock_words,
    cut,
    percent,
    row,
    seconds_words,
    section,
    short_count,
    size_words,
)

# A panel has little room: the rest is in the decisions panel and the log.
NOTES_SHOWN = 3
# What goes as a matter of course is no news, and the tripwire has a place of its own.
_NO_NEWS = ("pruned", "thinned", "tripwire")


def resident_section(stats: EngineStats, width: int) -> Content:
    """What the session that worked last holds, with a mark where its prompt parted, and what
    that is of."""
    resident, context = stats.resident_tokens, stats.context_tokens
    lines = [
        row("resident", f"{resident:,} / {context:,} ({percent(resident, context)}%)"),
        resident_bar(stats, width),
        *_map_of_last(stats, width),
        row("size", size_words(stats.kv_bytes)),
        row("weights", size_words(stats.weights_bytes)),
    ]
    return section("KV cache", *lines)


def resident_bar(stats: EngineStats, width: int) -> Content:
    """`━━━┃━━────`: what is resident of the context, and how far of it the last prompt was common
    with what was resident before."""
    context, decision = stats.context_tokens, stats.decision
    filled = bar(stats.resident_tokens / context if context else 0.0, width)
    if decision is None or not context or not 0 < decision.common <= stats.resident_tokens:
        return filled
    at = min(width - 1, decision.common * width // context)
    return Content.assemble(filled[:at], (COMMON_MARK, "$text-warning"), filled[at + 1 :])


def held_section(stats: EngineStats, width: int) -> Content | None:
    """What is held of branches that are not live, and of what room; None if there is none."""
    if not stats.cache_budget_bytes:
        return None
    lines = [
        row("parked", _amount(stats.parked_states, stats.parked_tokens, stats.parked_bytes)),
        row("segments", _amount(stats.segments, stats.segment_tokens, stats.segment_bytes)),
        *_snapshot_rows(stats),
        bar(held_bytes(stats) / stats.cache_budget_bytes, width),
        row("room", f"{size_words(held_bytes(stats))} of {size_words(stats.cache_budget_bytes)}"),
    ]
    return section("Held beside it", *lines)


def _map_of_last(stats: EngineStats, width: int) -> list[Content]:
    """What the rows are of, of the session that worked last."""
    used = [s for s in stats.sessions if s.resident_tokens and s.layout]
    if not used:
        return []
    last = max(used, key=lambda session: (bool(session.job_id), session.used_s))
    decision = stats.decision
    is_its = decision is not None and decision.session in (0, last.session)
    common = decision.common if decision is not None and is_its else 0
    return map_lines(last, common, width, has_legend=True)


def held_bytes(stats: EngineStats) -> int:
    return stats.parked_bytes + stats.segment_bytes + stats.snapshot_bytes


def _amount(count: int, tokens: int, nbytes: int) -> str:
    return f"{count:,} · {short_count(tokens)} tok · {size_words(nbytes)}" if count else "none"


def _snapshot_rows(stats: EngineStats) -> list[Content]:
    worst = max((s.worst_replay for s in stats.sessions), default=0)
    rows = []
    if stats.snapshots:
        each = size_words(stats.snapshot_bytes / stats.snapshots)
        total = size_words(stats.snapshot_bytes)
        rows.append(row("snapshots", f"{stats.snapshots:,} of {each}: {total}"))
    if worst:
        rows.append(row("an edit", f"replays {worst:,} at most"))
    return rows


def pictures_section(stats: EngineStats, width: int) -> Content | None:
    """What was seen, and whose vectors are held so that it is not seen again; None if nothing
    was."""
    if not (stats.images_encoded or stats.images_held):
        return None
    last = f", last in {seconds_words(stats.last_encode_ms)}" if stats.last_encode_ms else ""
    budget = f" of {size_words(stats.images_budget_bytes)}" if stats.images_budget_bytes else ""
    return section(
        "Pictures",
        row("seen", f"{stats.images_encoded:,}{last}"),
        row("held", f"{stats.images_held:,} · {size_words(stats.images_bytes)}{budget}"),
        Content.styled(cut(f"by {one_line(stats.encoder)}", width), QUIET),
    )


def sessions_section(stats: EngineStats, width: int) -> Content | None:
    """Who is live; None for the one session that the rest of the panel is about."""
    if len(stats.sessions) < 2:
        return None
    lines: list[Content] = []
    for session in stats.sessions:
        lines.append(_session_line(session))
        lines += map_lines(session, 0, width)[:1]
        if session.what and session.resident_tokens:
            what = cut(f"  {what_words(session.what)}", width)
            lines.append(Content.styled(what, QUIET))
        lines += _reading_lines(session)
    return section("Sessions", *lines)


def _reading_lines(session: SessionStats) -> list[Content]:
    """How far the prompt is read, and what slows it."""
    progress = session.prefill
    if progress is None:
        return []
    done = f"  read {progress.done:,} of {progress.total:,}"
    slowed = [Content.styled(f"  {progress.slowed}", QUIET)] if progress.slowed else []
    return [Content(done), *slowed]


# One that has no job rests, whatever its last job was doing when it ended.
_STATES = {"EMPTY": "empty", "POISONED": "given up"}


def _session_line(session: SessionStats) -> Content:
    state = "at work" if session.job_id else _STATES.get(session.state, "rests")
    style = "$text-accent" if session.job_id else ""
    size = ""
    if session.resident_tokens:
        size = f" · {session.resident_tokens:,} tok · {size_words(session.kv_bytes)}"
    return Content.assemble(f"{session.session} ", (state, style), size)


def what_words(what: str) -> str:
    """`you: Why is the sky blue?` of the engine's `person: Why is the sky blue?`."""
    who, colon, rest = one_line(what).partition(":")
    return f"{who_words(who)}{colon}{rest}"


def who_words(origin: str) -> str:
    return {"person": "you"}.get(origin, origin)


def notes_section(stats: EngineStats) -> Content | None:
    """The newest things that were evicted or refused, in the engine's words; None for none."""
    told = [note for note in stats.notes if note.kind not in _NO_NEWS and not _is_of_disk(note)]
    if not told:
        return None
    return section("Given up for room", *map(_note, reversed(told[-NOTES_SHOWN:])))


def _is_of_disk(note: MemoryNote) -> bool:
    """Told in the disk panel; what goes from there is given up, too."""
    return note.text.startswith("disk: ") and note.kind not in ("evicted", "refused")


def _note(note: MemoryNote) -> Content:
    when = f"{clock_words(note.time_s)} "
    return Content.assemble((when, QUIET), one_line(note.text))


def tripwire_section(stats: EngineStats) -> Content | None:
    if not stats.tripwire:
        return None
    return section("Nothing is reused", Content.styled(one_line(stats.tripwire), "$text-warning"))
