"""What another system prompt costs: it stands first, so what is resident behind it is lost."""

from dataclasses import dataclass

from ds4tui.assistant import Assistant
from ds4tui.chat.messages import Message
from ds4tui.engine.stats import EngineStats
from ds4tui.errors import Ds4Error
from ds4tui.tui.background import in_thread
from ds4tui.tui.open_chat import OpenChat


@dataclass(frozen=True, slots=True)
class CostOfChange:
    """In tokens. `is_resident`: what the engine holds is this chat; else nothing of it is lost."""

    resident: int
    kept: int
    evaluated: int  # of this chat with its new system prompt, before the next question
    is_resident: bool

    @property
    def dropped(self) -> int:
        return self.resident - self.kept


async def cost_of_change(
    assistant: Assistant | None, chat: OpenChat, new: str, last_job_id: str, sent: str
) -> CostOfChange | None:
    """The cost of giving `chat` the system prompt `new`; None if there is none to speak of.

    `last_job_id` is the last job that this chat asked for, with the system prompt `sent`: only if
    its session has done nothing since is what that one holds this chat.
    """
    if assistant is None or not chat.path or new == chat.system:
        return None
    resident = _resident(assistant.stats, last_job_id)
    try:
        common, length = await in_thread(
            "ds4tui-render", lambda: _common(assistant, chat, sent, new)
        )
    except Ds4Error:  # the next question will meet it, and tell
        return None
    kept = min(common, resident)
    return CostOfChange(resident, kept, length - kept, resident > 0)


def _resident(stats: EngineStats, last_job_id: str) -> int:
    """How many tokens are live of the chat whose last job was `last_job_id`: 0 if its session has
    done something else since, or is at work."""
    known = stats.decisions or ((stats.decision,) if stats.decision else ())
    ours = next((d for d in reversed(known) if d.job_id == last_job_id), None)
    if ours is None or [d for d in known if d.session == ours.session][-1] != ours:
        return 0
    session = next((s for s in stats.sessions if s.session == ours.session), None)
    if session is None:
        return 0 if stats.job_id else stats.resident_tokens
    return 0 if session.job_id else session.resident_tokens


def _common(assistant: Assistant, chat: OpenChat, sent: str, new: str) -> tuple[int, int]:
    """(common prefix, length) in tokens of the chat as it was sent and as it would be."""
    # A conversation renders with a question at its end; it is the same one in both.
    question = Message("user", "?")
    as_sent = OpenChat(system=sent, path=chat.path).messages(question, assistant.info)
    would_be = OpenChat(system=new, path=chat.path).messages(question, assistant.info)
    before, after = assistant.render(as_sent), assistant.render(would_be)
    return before.common_prefix(after), len(after)
