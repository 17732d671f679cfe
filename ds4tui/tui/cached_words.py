"""What /cache tells: what is held, where, and what was decided last. Pure."""

from ds4tui.engine.stats import EngineStats
from ds4tui.tui.disk import NO_DISK, storing_problem
from ds4tui.tui.held import held_bytes
from ds4tui.tui.panels import decision_words
from ds4tui.tui.words import counted, percent, size_words


def cache_words(stats: EngineStats) -> tuple[str, str]:
    """A message of a line for each place, and what shows more."""
    lines = [_live(stats), _beside(stats), _disk(stats), _reused(stats), _last(stats)]
    hint = "/cache disk, /cache decisions and /panel show more; /pin keeps this conversation."
    return "\n".join(filter(None, lines)), hint


def why_no_disk(stats: EngineStats) -> tuple[str, str]:
    """Why there is no tier to change, and what helps."""
    if stats.disk is not None and stats.disk.why_not:
        return f"Nothing is kept on disk: {stats.disk.why_not}.", ""
    return "KV states are not kept on disk (kv_disk is off).", "Start with --kv-disk on."


def _live(stats: EngineStats) -> str:
    share = percent(stats.resident_tokens, stats.context_tokens)
    return (
        f"Live: {stats.resident_tokens:,} of {stats.context_tokens:,} tokens ({share}%), "
        f"{size_words(stats.kv_bytes)}."
    )


def _beside(stats: EngineStats) -> str:
    parts = [
        f"{counted(stats.parked_states, 'branch')} parked ({stats.parked_tokens:,} tokens)"
        if stats.parked_states
        else "",
        f"{counted(stats.segments, 'segment')} ({stats.segment_tokens:,} tokens)"
        if stats.segments
        else "",
        counted(stats.snapshots, "snapshot") if stats.snapshots else "",
    ]
    held = ", ".join(filter(None, parts)) or "nothing"
    room = f"{size_words(held_bytes(stats))} of {size_words(stats.cache_budget_bytes)}"
    return f"Beside it in memory: {held}; {room}."


def _disk(stats: EngineStats) -> str:
    disk = stats.disk
    if disk is None:
        return NO_DISK
    count = stats.conversation_count or len(stats.conversations)
    pins = f", {disk.pinned:,} pinned" if disk.pinned else ""
    told = (
        f"On disk: {counted(count, 'conversation')}{pins}, {size_words(disk.used_bytes)} of "
        f"{size_words(disk.budget_bytes)}."
    )
    problem = storing_problem(disk)
    return f"{told} {problem[:1].upper()}{problem[1:]}." if problem else told


def _reused(stats: EngineStats) -> str:
    read = stats.total_cached_tokens + stats.total_evaluated_tokens
    if not read:
        return ""
    share = percent(stats.total_cached_tokens, read)
    return f"Reused since the start: {share}% of {read:,} prompt tokens."


def _last(stats: EngineStats) -> str:
    decision = stats.decision
    if decision is None:
        return ""
    return f"Last decision: {decision_words(decision)}: {decision.reason}."
