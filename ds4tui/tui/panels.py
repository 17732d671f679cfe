"""What the panels say: pure functions from the engine's stats to styled text.

No widget, no clock, no state: the same stats give the same content, so a panel is redrawn only
when its content differs, and every line can be tested as a value.
"""

from dataclasses import dataclass, field
from typing import Any

from textual.content import Content

from ds4tui.agents import AgentRequest
from ds4tui.assistant import ModelInfo
from ds4tui.engine.stats import EngineStats
from ds4tui.events import Decision, EncodingProgress, PrefillProgress, Usage
from ds4tui.tui.disk import disk_rows
from ds4tui.tui.experts import experts_section
from ds4tui.tui.held import (
    held_section,
    notes_section,
    pictures_section,
    resident_section,
    sessions_section,
    tripwire_section,
)
from ds4tui.tui.layout_map import COMMON_MARK
from ds4tui.tui.shortcuts import Shortcuts
from ds4tui.tui.terminal_text import one_line
from ds4tui.tui.words import (
    HEADING,
    LABEL_CHARS,
    QUIET,
    bar,
    cut,
    duration_words,
    percent,
    rate_words,
    row,
    seconds_words,
    section,
    size_words,
    sparkline,
)

MIN_TITLE_CHARS = 12  # a shorter piece of a title says nothing


@dataclass(frozen=True, slots=True)
class PanelView:
    """All that a panel shows: the engine's stats and what only the app knows."""

    stats: EngineStats | None = None  # None: no model is open
    opening: str = ""  # what the opening of a model does right now
    server_url: str = ""  # "" while the server is off
    requests: tuple[AgentRequest, ...] = ()  # of other programs, newest first, if they are shown
    shortcuts: Shortcuts = field(default_factory=Shortcuts)


# Words


def prefill_words(progress: PrefillProgress) -> str:
    """`prefill 3,072/8,214 (37%) 512 tok/s ETA 10s, 2,048 from cache`, and what slows it."""
    rate = f" {progress.tokens_per_s:,.0f} tok/s" if progress.tokens_per_s else ""
    left = progress.done < progress.total and progress.tokens_per_s
    eta = f" ETA {duration_words(progress.eta_s)}" if left else ""
    return (
        f"prefill {progress.done:,}/{progress.total:,} ({percent(progress.done, progress.total)}%)"
        f"{rate}{eta}, {progress.cached:,} from cache{progress.slowed and f'; {progress.slowed}'}"
    )


def decision_words(decision: Decision) -> str:
    """A decision in a few words: `extend +212`, `rewind -48 -> 1,902, then +4`,
    `restore -> 1,902, then +4`, `cold 512`."""
    if decision.kind == "extend":
        return f"extend +{decision.evaluated:,}"
    if decision.kind == "cold":
        return f"cold {decision.evaluated:,}"
    dropped = f" -{decision.dropped:,}" if decision.kind == "rewind" else ""
    return f"{decision.kind}{dropped} -> {decision.kept:,}, then +{decision.evaluated:,}"


_PUT_AWAY = {"whole": "parked", "tail": "kept aside", "drop": "given up"}


def dropped_words(decision: Decision) -> str:
    """How many tokens left the live state, and what became of them: `48, kept aside`."""
    fate = _PUT_AWAY.get(decision.put_away)
    return f"{decision.dropped:,}" + (f", {fate}" if fate and decision.dropped else "")


def encoding_words(progress: EncodingProgress) -> str:
    """`picture 1 of 2 is seen: shot.png, 0.85 s`."""
    took = seconds_words(progress.took_ms)
    name = one_line(progress.name)
    return f"picture {progress.done} of {progress.total} is seen: {name}, {took}"


def usage_words(usage: Usage, stop_reason: str, status: str = "complete") -> str:
    """The line under a finished answer."""
    parts = []
    if usage.ttft_ms:
        parts.append(f"TTFT {seconds_words(usage.ttft_ms)}")
    if usage.prompt_tokens:
        rate = f" at {rate_words(usage.prefill_tps)}" if usage.prefill_tps else ""
        parts.append(f"prefill {usage.evaluated_tokens:,}{rate}, {usage.cached_tokens:,} cached")
    if usage.encode_ms:
        parts.append(f"pictures {seconds_words(usage.encode_ms)}")
    if usage.completion_tokens:
        rate = f" at {rate_words(usage.decode_tps)}" if usage.decode_tps else ""
        parts.append(f"decode {usage.completion_tokens:,}{rate}")
    parts.append(ending_words(stop_reason, status))
    return " · ".join(parts)


_ENDINGS = {
    "stop": "stop",
    "length": "cut off at the length limit",
    "cancelled": "stopped",
    "tool_calls": "asks for a tool",
    "failed": "failed",
    "partial": "interrupted: ds4tui ended while this was written",
}


def ending_words(stop_reason: str, status: str) -> str:
    """Why an answer ends where it ends."""
    return _ENDINGS[status if status in ("partial", "failed", "cancelled") else stop_reason]


def stored_usage_words(stats: dict[str, Any] | None, status: str) -> str:
    """`usage_words` of a message that was loaded; of the ending alone if nothing was noted."""
    stats = stats or {}
    known = {f: stats.get("usage", {}).get(f, 0) for f in Usage.__dataclass_fields__}
    stop_reason = str(stats.get("stop_reason", "stop"))
    return usage_words(Usage(**known), stop_reason if stop_reason in _ENDINGS else "stop", status)


def state_words(view: PanelView) -> str:
    """What the engine is doing, for whom, and who waits."""
    if view.stats is None:
        return view.opening or "no model is open"
    stats = view.stats
    owner = {"person": " for you", "agent": " for an HTTP client"}.get(stats.origin, "")
    words = stats.state + (owner if stats.job_id else "")
    return words + (f" · {stats.queued_jobs} queued" if stats.queued_jobs else "")


# Header


def header_content(info: ModelInfo | None, opening: str, title: str, width: int) -> Content:
    """One line: the program, the model, and what the conversation is about."""
    model = _model_words(info) if info else (f"opening {opening}…" if opening else "no model")
    left = f" ds4tui  {model}"
    room = width - len(left) - 3
    right = cut(one_line(title), room) if room >= MIN_TITLE_CHARS else ""
    return Content.assemble(
        (" ds4tui", HEADING),
        f"  {cut(model, width - 10)}",
        (right.rjust(max(0, width - len(left) - 1)), QUIET),
    )


def _model_words(info: ModelInfo) -> str:
    millions = info.parameters / 1e6
    size = f"{millions:,.0f}M" if millions < 1000 else f"{millions / 1000:,.1f}B"
    return f"{one_line(info.name)} · {info.quantisation} · {size} · {info.context_tokens:,} ctx"


# Panels


def kv_panel(view: PanelView, width: int) -> Content:
    """The side panel, `width` cells wide."""
    stats = view.stats
    sections: list[Content | None] = []
    if stats is not None:
        sections = [
            tripwire_section(stats),
            resident_section(stats, width),
            _decision_section(stats),
            sessions_section(stats, width),
            held_section(stats, width),
            pictures_section(stats, width),
            experts_section(stats, width),
            disk_rows(stats),
            notes_section(stats),
            _speed_section(stats, width),
            _totals_section(stats),
        ]
    sections += [_engine_section(view, width), _server_section(view)]
    return Content("\n\n").join(s for s in sections if s is not None)


def _decision_section(stats: EngineStats) -> Content:
    decision = stats.decision
    if decision is None:
        return section("Last decision", Content.styled("none yet", QUIET))
    lines = [
        Content.styled(decision_words(decision), "bold"),
        Content(decision.reason),
        row(f"common {COMMON_MARK}", f"{decision.common:,} of {decision.live:,} resident"),
        row("kept", f"{decision.kept:,} of {decision.prompt:,} wanted"),
    ]
    if decision.dropped:
        lines.append(row("dropped", dropped_words(decision), "$text-warning"))
    if stopped := _stopped_at(stats):
        lines.append(row("evaluated", stopped, "$text-warning"))
    return section("Last decision", *lines)


def _stopped_at(stats: EngineStats) -> str:
    """How far the last prefill came if it ended before it was done: the decision says only what
    was planned."""
    decision, usage = stats.decision, stats.usage
    is_over = decision is not None and stats.job_id != decision.job_id
    if decision is None or not is_over or usage.evaluated_tokens >= decision.evaluated:
        return ""
    return f"{usage.evaluated_tokens:,} of {decision.evaluated:,} (stopped)"


def _speed_section(stats: EngineStats, width: int) -> Content:
    usage = stats.usage
    lines = [
        row("TTFT", seconds_words(usage.ttft_ms) if usage.ttft_ms else "-"),
        row("prefill", rate_words(usage.prefill_tps) if usage.prefill_tps else "-"),
        row("decode", rate_words(usage.decode_tps) if usage.decode_tps else "-"),
    ]
    if stats.state == "prefilling" and stats.prefill is not None:
        progress = stats.prefill
        lines = [
            bar(progress.done / progress.total if progress.total else 0.0, width),
            Content(prefill_words(progress)),
            *lines,
        ]
    return section("Speed", *lines)


def _totals_section(stats: EngineStats) -> Content:
    cached = stats.total_cached_tokens
    read = cached + stats.total_evaluated_tokens  # of a stopped prompt: what was read of it
    reused = f"{percent(cached, read)}% of {read:,} tokens" if read else "-"
    return section(
        "Since the start",
        row("requests", f"{stats.requests:,}"),
        row("reused", reused),
        row("written", f"{stats.total_completion_tokens:,} tokens"),
    )


def _engine_section(view: PanelView, width: int) -> Content:
    lines = [Content(state_words(view))]
    if view.stats is not None and view.stats.memory_active_bytes:
        lines.append(row("memory", size_words(view.stats.memory_active_bytes)))
        lines.append(row("its peak", size_words(view.stats.memory_peak_bytes)))
    if view.stats is not None and view.stats.decode_rates:
        lines += _rate_rows(view.stats.decode_rates, width)
    if view.stats is not None and view.stats.compute_path:
        lines.append(Content.styled(view.stats.compute_path, QUIET))
    return section("Engine", *lines)


def _rate_rows(rates: tuple[float, ...], width: int) -> list[Content]:
    """How fast tokens came in each of the last seconds with any, and the fastest of them."""
    line = sparkline(rates, width - LABEL_CHARS)
    return [row("t/s", line, "$accent"), row("", f"{rates[-1]:,.1f} now, {max(rates):,.1f} best")]


def _server_section(view: PanelView) -> Content:
    if view.server_url:
        return section("Server", Content.styled(view.server_url, "$text-success"))
    how = f"off, {view.shortcuts.hint('server')} turns it on"
    return section("Server", Content.styled(how, QUIET))


def status_strip(view: PanelView, width: int) -> Content:
    """The panel on two lines, for narrow terminals."""
    if view.stats is None:
        return Content.styled(cut(state_words(view), width), QUIET)
    first, second = _strip_lines(view.stats)
    state = state_words(view) + (f" · {view.server_url}" if view.server_url else "")
    return Content("\n").join(
        [
            Content.assemble(
                ("KV ", HEADING),
                bar(percent(view.stats.resident_tokens, view.stats.context_tokens) / 100, 8),
                cut(f" {first}", width - 11),
            ),
            Content.styled(cut(f"{state} · {second}" if second else state, width), QUIET),
        ]
    )


def _strip_lines(stats: EngineStats) -> tuple[str, str]:
    resident = f"{stats.resident_tokens:,}/{stats.context_tokens:,}"
    if stats.state == "prefilling" and stats.prefill is not None:
        return prefill_words(stats.prefill), f"{resident} resident"
    decided = f" · {decision_words(stats.decision)}" if stats.decision else ""
    usage = stats.usage
    speeds = (
        f"TTFT {seconds_words(usage.ttft_ms)}" if usage.ttft_ms else "",
        f"prefill {rate_words(usage.prefill_tps)}" if usage.prefill_tps else "",
        f"decode {rate_words(usage.decode_tps)}" if usage.decode_tps else "",
    )
    return f"{resident} resident{decided}", " · ".join(s for s in speeds if s)
