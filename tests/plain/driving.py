"""The plain mode with a fake model: lines in, lines out, in this process."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ds4tui.agents import Agents
from ds4tui.assistant import Assistant
from ds4tui.chat.store import ConversationStore
from ds4tui.config import load_settings
from ds4tui.plain.chat import Ports
from ds4tui.plain.lines import Lines
from ds4tui.plain.running import run_plain
from tests.fakes import FakeAssistant
from tests.tui.harness import refuse


def said(
    text: str,
    assistant: Assistant | None = None,
    *,
    database: Path | None = None,
    open_model: Callable[..., Assistant] | None = None,
    start_server: Callable[..., Any] = refuse,
    pull_model: Callable[..., Path] = refuse,
    check_model: Callable[[str], object] = lambda name: None,
    agents: Agents | None = None,
    continue_last: bool = False,
    wants: int = 0,
    **flags: Any,
) -> str:
    """What is said when `text` is piped in; `wants` is the exit code."""
    store = ConversationStore(database) if database else ConversationStore.in_memory()
    shared = assistant or FakeAssistant()
    ports = Ports(
        open_model or (lambda name, progress: shared), start_server, pull_model, check_model
    )
    out = io.StringIO()
    lines = Lines(io.StringIO(text), out)
    with patch("ds4tui.plain.answer.SAY_EVERY_S", float("inf")):  # how far it is, on a busy machine
        code = run_plain(load_settings(flags), store, ports, continue_last, agents, lines)
    assert code == wants, out.getvalue()
    shared.close()
    return out.getvalue()
