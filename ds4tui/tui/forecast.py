"""What the next question keeps and drops of what is resident, before it is asked.

An estimate: what is rendered is compared with what this app had computed last. What else is held
(parked, on disk) is known to the engine only, and told when the question is asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ds4tui.assistant import Assistant
from ds4tui.chat.messages import Message
from ds4tui.engine.stats import EngineStats
from ds4tui.errors import Ds4Error
from ds4tui.tui.background import in_thread

# A conversation renders with a question at its end; here it is the same one everywhere.
SOME_QUESTION = Message("user", "?")


@dataclass(frozen=True, slots=True)
class Forecast:
    """In tokens. `is_resident`: what the engine holds is what this app asked for last; else
    nothing of it is lost, and `held` says how many of those to evaluate are held elsewhere, where
    that could be told."""

    resident: int
    kept: int
    evaluated: int  # unless they are held elsewhere
    is_resident: bool
    held: int | None = None

    @property
    def dropped(self) -> int:
        return self.resident - self.kept


@dataclass(frozen=True, slots=True)
class LastAsked:
    """The last job that this app asked for: what was sent and answered, with a question at its
    end."""

    job_id: str = ""
    messages: tuple[Message, ...] = ()
    thinking: bool | None = None


async def forecast(
    assistant: Assistant | None,
    last: LastAsked,
    wanted: Sequence[Message],
    thinking: bool | None = None,
) -> Forecast | None:
    """What asking `wanted` would cost, `thinking` or not; None if that cannot be told."""
    if assistant is None:
        return None
    resident = _resident(assistant.stats, last.job_id)
    sent = last if resident else LastAsked()
    asked = LastAsked("", tuple(wanted), thinking)
    try:
        common, length = await in_thread("ds4tui-render", lambda: _common(assistant, sent, asked))
    except Ds4Error:  # the next question will meet it, and tell
        return None
    kept = min(common, resident)
    return Forecast(resident, kept, length - kept, resident > 0)


def _resident(stats: EngineStats, last_job_id: str) -> int:
    """How many tokens are live of what was asked with `last_job_id`: 0 if its session has done
    something else since, or is at work."""
    known = stats.decisions or ((stats.decision,) if stats.decision else ())
    ours = next((d for d in reversed(known) if d.job_id == last_job_id), None)
    if ours is None or [d for d in known if d.session == ours.session][-1] != ours:
        return 0
    session = next((s for s in stats.sessions if s.session == ours.session), None)
    if session is None:
        return 0 if stats.job_id else stats.resident_tokens
    return 0 if session.job_id else session.resident_tokens


def _common(assistant: Assistant, sent: LastAsked, wanted: LastAsked) -> tuple[int, int]:
    """(common prefix, length) in tokens of what was sent and what is wanted."""
    after = assistant.render(wanted.messages, thinking=wanted.thinking)
    if not sent.messages:
        return 0, len(after)
    return assistant.render(sent.messages, thinking=sent.thinking).common_prefix(after), len(after)
