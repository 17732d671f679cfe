"""What another system prompt costs: it stands first, so what is resident behind it is lost."""

from dataclasses import dataclass

from ds4tui.assistant import Assistant
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
    the engine has done nothing since is what it holds this chat.
    """
    if assistant is None or not chat.path or new == chat.system:
        return None
    stats = assistant.stats
    try:
        common, length = await in_thread(
            "ds4tui-render", lambda: _common(assistant, chat, sent, new)
        )
    except Ds4Error:  # the next question will meet it, and tell
        return None
    decided = stats.decision.job_id if stats.decision else ""
    is_ours = bool(last_job_id) and decided == last_job_id and not stats.job_id
    is_resident = is_ours and stats.resident_tokens > 0
    kept = min(common, stats.resident_tokens) if is_resident else 0
    return CostOfChange(stats.resident_tokens, kept, length - kept, is_resident)


def _common(assistant: Assistant, chat: OpenChat, sent: str, new: str) -> tuple[int, int]:
    """(common prefix, length) in tokens of the chat as it was sent and as it would be."""
    # A conversation renders with a question at its end; it is the same one in both.
    as_sent = OpenChat(system=sent, path=chat.path).messages("?", assistant.info)
    would_be = OpenChat(system=new, path=chat.path).messages("?", assistant.info)
    before, after = assistant.render(as_sent), assistant.render(would_be)
    return before.common_prefix(after), len(after)
