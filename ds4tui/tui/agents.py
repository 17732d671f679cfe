"""How requests of other programs are told: a line each in a list, and one of them in full.

Pure functions of snapshots; what came over HTTP is shown as text, whatever is in it.
"""

from collections.abc import Sequence

from textual.content import Content

from ds4tui.agents import AgentRequest
from ds4tui.tui.panels import decision_words, prefill_words, usage_words
from ds4tui.tui.terminal_text import one_line
from ds4tui.tui.words import (
    QUIET,
    clock_words,
    counted,
    cut,
    hanging_row,
    percent,
    rate_words,
    short_count,
)

NO_REQUEST = "No request yet: {server} serves the open model to other programs."
NO_SERVER = "The server is off: {server} serves the open model to other programs."

_RATE_WIDTH = 92  # below it the decision has its room; the details tell the rate
_TIME_CELLS, _CLIENT_CELLS, _STATE_CELLS, _COUNT_CELLS, _RATE_CELLS = 9, 13, 13, 8, 11
_STATE_STYLES = {
    "waiting": QUIET,
    "prefilling": "$text-accent",
    "writing": "$text-success",
    "stopped": "$text-warning",
    "failed": "$text-error",
}


def agents_title(requests: Sequence[AgentRequest]) -> str:
    """`Agents · 2 at work`."""
    at_work = sum(request.is_at_work for request in requests)
    return f"Agents · {at_work} at work" if at_work else "Agents"


def agents_head(width: int) -> Content:
    """The heads of the columns of `request_line`."""
    counts = "".join(head.rjust(_COUNT_CELLS) for head in ("prompt", "reused", "written"))
    left = "time".ljust(_TIME_CELLS) + "client".ljust(_CLIENT_CELLS) + "state".ljust(_STATE_CELLS)
    rate = "rate".rjust(_RATE_CELLS) if width >= _RATE_WIDTH else ""
    head = f"{left}{counts}{rate}  decision, reason"
    return Content.styled(cut(head, width), QUIET)


def request_line(request: AgentRequest, width: int) -> Content:
    """One request on one line of at most `width` cells."""
    client = cut(one_line(request.client), _CLIENT_CELLS - 1).ljust(_CLIENT_CELLS)
    prompt, reused = _prompt(request)
    counts = "".join(
        (short_count(n) if n else "-").rjust(_COUNT_CELLS)
        for n in (prompt, reused, request.written)
    )
    left = clock_words(request.began_s).ljust(_TIME_CELLS)
    state = state_words(request)
    rate = _rate(request).rjust(_RATE_CELLS) if width >= _RATE_WIDTH else ""
    room = width - len(left) - len(client) - _STATE_CELLS - len(counts) - len(rate) - 2
    return Content.assemble(
        (left, QUIET),
        client,
        (state.ljust(_STATE_CELLS), _STATE_STYLES.get(request.state, "")),
        counts,
        (rate, QUIET),
        f"  {cut(_why(request), max(0, room))}",
    )[:width]


def request_detail(request: AgentRequest, width: int) -> Content:
    """All that is known of a request, in words."""

    def row(label: str, value: str) -> Content:
        return hanging_row(label, Content(value), width)

    lines = [row("asked", f"{one_line(request.client)}, {one_line(request.endpoint)}")]
    if request.begins:
        lines.append(row("says", cut(one_line(request.begins), 160)))
    decision = request.decision
    if decision is not None:
        lines.append(row("decided", f"{decision_words(decision)}: {decision.reason}"))
    if request.state == "prefilling" and request.prefill is not None:
        lines.append(row("now", prefill_words(request.prefill)))
    elif request.state == "writing":
        lines.append(row("now", f"{counted(request.written, 'token')}, {_rate(request)}"))
    elif not request.is_at_work:
        status = {"stopped": "cancelled", "failed": "failed"}.get(request.state, "complete")
        how = usage_words(request.usage, request.stop_reason, status)
        lines.append(row("ended", f"{clock_words(request.ended_s)} · {how}"))
    if request.error:
        lines.append(row("error", one_line(request.error)))
    lines.append(row("kept", _kept_words(request)))
    return Content("\n").join(lines)


def state_words(request: AgentRequest) -> str:
    """`waiting`, `reading 37%`, `writing`, `done`, `stopped`, `failed`."""
    if request.state != "prefilling":
        return request.state
    progress = request.prefill
    return f"reading {percent(progress.done, progress.total)}%" if progress else "reading"


def _prompt(request: AgentRequest) -> tuple[int, int]:
    """Tokens of the prompt, and how many of them were reused."""
    usage, decision = request.usage, request.decision
    if usage.prompt_tokens:
        return usage.prompt_tokens, usage.cached_tokens
    return (decision.prompt, decision.kept) if decision is not None else (0, 0)


def _rate(request: AgentRequest) -> str:
    if request.state == "prefilling" and request.prefill is not None:
        per_s = request.prefill.tokens_per_s
    else:
        per_s = request.written_per_s
    return rate_words(per_s) if per_s else "-"


def _why(request: AgentRequest) -> str:
    decision = request.decision
    if decision is None:
        return one_line(request.error) if request.error else ""
    return f"{decision_words(decision)}: {one_line(decision.reason)}"


def _kept_words(request: AgentRequest) -> str:
    if request.conversation_id is None:
        return "as no conversation"
    doing = "reads it as it is written" if request.is_at_work else "opens it"
    return f"in the list of conversations; Enter {doing}"
