"""The plain mode from its first line to its last: loop, signals, exit code."""

import asyncio

from ds4tui.agents import Agents
from ds4tui.chat.store import ConversationStore
from ds4tui.config import Settings
from ds4tui.interrupts import INTERRUPTED
from ds4tui.plain.acts import act_of
from ds4tui.plain.chat import PlainChat, Ports
from ds4tui.plain.lines import Lines
from ds4tui.plain.signals import Leaving, Signals


def run_plain(
    settings: Settings,
    store: ConversationStore,
    ports: Ports,
    continue_last: bool = False,
    agents: Agents | None = None,
    lines: Lines | None = None,
) -> int:
    """Chat on standard input and output until their end; the exit code. Closes `store`. Must be
    called on the main thread."""
    lines = lines or Lines()

    async def chat(signals: Signals) -> int:
        host = PlainChat(settings, store, ports, lines, signals, act_of, agents)
        return await host.run(settings.model, continue_last)

    with Signals() as signals:
        try:
            return asyncio.run(chat(signals))
        except KeyboardInterrupt:
            lines.end_line()
            return INTERRUPTED
        except Leaving:
            return 0
