"""How the plain mode says what the app shows: sentences that can be read aloud, without signs,
columns and abbreviations. Pure functions.
"""

import math
from collections.abc import Sequence

from ds4tui.agents import AgentRequest
from ds4tui.assistant import ModelInfo
from ds4tui.chat.store import StoredMessage
from ds4tui.engine.stats import EngineStats
from ds4tui.events import Decision, EncodingProgress, PrefillProgress, Usage
from ds4tui.library.progress import PullProgress
from ds4tui.tui.forecast import Forecast
from ds4tui.tui.panels import ending_words
from ds4tui.tui.terminal_text import one_line
from ds4tui.tui.words import clock_words, counted, percent, size_words

_FATES = {"whole": " and parked", "tail": " and kept aside", "drop": " and given up"}


def rate(per_s: float) -> str:
    return f"{per_s:,.{0 if per_s >= 100 else 1}f} tokens a second"


def seconds(of: float) -> str:
    """`0.85 seconds`, `12 seconds`, `2 minutes 5 seconds`."""
    if of < 10:
        return f"{of:.2f} seconds"
    minutes, rest = divmod(math.ceil(of), 60)
    if not minutes:
        return f"{rest} seconds"
    return f"{counted(minutes, 'minute')} {counted(rest, 'second')}"


def decision(told: Decision) -> str:
    """What is kept of what is resident, what is evaluated, and why."""
    parts = [f"{told.kept:,} of {told.prompt:,} tokens kept", f"{told.evaluated:,} evaluated"]
    if told.dropped:
        parts.append(f"{told.dropped:,} dropped{_FATES.get(told.put_away, '')}")
    cause = f" Cause: {told.cause}." if told.cause else ""
    reason = one_line(told.reason).rstrip(".")
    return f"Decision: {told.kind}, {', '.join(parts)}. Reason: {reason}.{cause}"


def prefill(progress: PrefillProgress) -> str:
    share = percent(progress.done, progress.total)
    words = f"Reading: {progress.done:,} of {progress.total:,} tokens, {share} percent"
    if progress.tokens_per_s:
        words += f", {rate(progress.tokens_per_s)}"
        if progress.done < progress.total and math.isfinite(progress.eta_s):
            words += f", {seconds(progress.eta_s)} left"
    return f"{words}."


def encoding(progress: EncodingProgress) -> str:
    name, took = one_line(progress.name), seconds(progress.took_ms / 1e3)
    return f"Picture {progress.done} of {progress.total} is seen: {name}, in {took}."


def ended(usage: Usage, stop_reason: str, status: str) -> str:
    """The line behind an answer."""
    parts = [f"End of answer: {ending_words(stop_reason, status)}."]
    if usage.ttft_ms:
        parts.append(f"First token after {seconds(usage.ttft_ms / 1e3)}.")
    if usage.prompt_tokens:
        parts.append(
            f"{counted(usage.evaluated_tokens, 'token')} evaluated, "
            f"{usage.cached_tokens:,} from cache."
        )
    if usage.completion_tokens:
        at = f", {rate(usage.decode_tps)}" if usage.decode_tps else ""
        parts.append(f"{counted(usage.completion_tokens, 'token')} written{at}.")
    return " ".join(parts)


def model(info: ModelInfo) -> str:
    sight = "It sees pictures." if info.vision else "It sees no pictures."
    return (
        f"{one_line(info.name)} is open: {info.architecture}, {info.quantisation}, "
        f"{info.parameters / 1e6:,.0f} million parameters, {size_words(info.file_bytes)}, "
        f"{info.context_tokens:,} tokens of context. {sight}"
    )


def cost(told: Forecast | None) -> str:
    """What the next question keeps and drops; "" if that cannot be told."""
    if told is None:
        return ""
    if not told.is_resident:
        return f"The next question takes about {counted(told.evaluated, 'token')}."
    return (
        f"The next question keeps about {told.kept:,} of {told.resident:,} resident tokens "
        f"and drops {told.dropped:,}."
    )


def last_messages(path: Sequence[StoredMessage], most: int = 2) -> list[str]:
    """The end of a conversation that was opened."""
    lines = []
    if len(path) > most:
        lines.append(f"{counted(len(path) - most, 'earlier message')}, not repeated here.")
    for stored in path[-most:]:
        who = "You" if stored.message.role == "user" else stored.message.role.capitalize()
        lines.append(f"{who}: {stored.message.text or 'nothing'}")
        lines += [f"With the picture {one_line(i.name)}." for i in stored.message.images]
    return lines


def engine(stats: EngineStats | None, server_url: str) -> list[str]:
    """What the panel of the app shows."""
    served = f"The server is on: {server_url}" if server_url else "The server is off."
    if stats is None:
        return ["No model is open.", served]
    lines = [
        f"The engine is {stats.state}.",
        f"{stats.resident_tokens:,} of {stats.context_tokens:,} tokens are resident.",
    ]
    if stats.tripwire:
        lines.append(f"{stats.tripwire}.")
    if stats.decision is not None:
        lines.append(decision(stats.decision))
    read = stats.total_cached_tokens + stats.total_evaluated_tokens
    if read:
        share = percent(stats.total_cached_tokens, read)
        lines.append(
            f"Since the start: {counted(stats.requests, 'request')}, {share} percent of "
            f"{read:,} tokens reused, {stats.total_completion_tokens:,} written."
        )
    if stats.memory_active_bytes:
        peak = size_words(stats.memory_peak_bytes)
        lines.append(f"Memory: {size_words(stats.memory_active_bytes)}, {peak} at most.")
    return [*lines, served]


def decisions(stats: EngineStats | None, most: int = 10) -> list[str]:
    """The last ones, newest last."""
    known = (stats.decisions or ((stats.decision,) if stats.decision else ())) if stats else ()
    told = [
        f"{clock_words(each.time_s)}. {decision(each)}" if each.time_s else decision(each)
        for each in known[-most:]
    ]
    return told or ["There were no decisions yet."]


def disk(stats: EngineStats | None) -> list[str]:
    if stats is None or stats.disk is None:
        return ["Nothing is kept on disk."]
    if stats.disk.why_not:
        return [f"Nothing is kept on disk: {stats.disk.why_not}"]
    return [f"On disk, in {stats.disk.folder}: {stats.disk.words}."]


def requests(of: Sequence[AgentRequest]) -> list[str]:
    """What other programs asked over HTTP, newest first."""
    lines = [
        f"{one_line(each.client)}, {each.endpoint}: {each.state}. "
        f"{decision(each.decision) if each.decision else ''}".rstrip()
        for each in of
    ]
    return lines or ["No other program has asked anything."]


def pulled(progress: PullProgress) -> str:
    if not progress.total_bytes:
        return f"{progress.step}."
    share = percent(progress.done_bytes, progress.total_bytes)
    return f"{progress.step}: {share} percent of {size_words(progress.total_bytes)}."
