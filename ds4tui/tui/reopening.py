"""What happens when the engine of the open model stops by a fault: its model is offered again.

The reason is in the transcript by then, and the question that met it is back in the prompt.
"""

from typing import Any, Protocol

from textual.screen import Screen

from ds4tui.assistant import ModelInfo
from ds4tui.tui.chat_view import ChatView
from ds4tui.tui.model_slot import ModelSlot
from ds4tui.tui.models import Models
from ds4tui.tui.screens.choice import Choice, ChoiceScreen
from ds4tui.tui.server_switch import ServerSwitch
from ds4tui.tui.terminal_text import one_line

NOT_NOW = "The model is not open any more.", "/model NAME opens one; a question offers it again."


class ReopeningHost(Protocol):
    """What is needed of the app."""

    @property
    def chat_view(self) -> ChatView: ...
    @property
    def models(self) -> Models: ...
    async def push_screen_wait(self, screen: Screen[Any]) -> Any: ...
    def run_worker(self, work: Any) -> Any: ...
    async def switch_server(self) -> None: ...


class Reopening:
    """Belongs to the UI loop."""

    def __init__(self, host: ReopeningHost, slot: ModelSlot, server: ServerSwitch) -> None:
        self._host, self._slot, self._server = host, slot, server
        self._is_offering = False

    def look(self) -> None:
        """Offer the open model once more if its engine has stopped."""
        assistant = self._slot.assistant
        if assistant is None or self._slot.opening or self._is_offering:
            return
        if assistant.stats.state == "closed":
            self._is_offering = True
            self._host.run_worker(self._offer(assistant.info))

    async def _offer(self, stopped: ModelInfo) -> None:
        name = one_line(stopped.name)
        choices = [Choice("1", f"Open {name} again"), Choice("2", "Not now")]
        screen = ChoiceScreen(f"The engine of {name} stopped", "does it", choices)
        try:
            if await self._host.push_screen_wait(screen) != 0:
                await self._host.chat_view.say(*NOT_NOW)
                return
            was_served = await self._server.stop()
            if await self._host.models.open(stopped.path) and was_served:
                await self._host.switch_server()
        finally:
            self._is_offering = False
