"""The commands about models: open one, change it for another, offer to fetch what is not here.

The open model itself, and how it is opened off the UI loop, is in model_slot.py.
"""

from typing import Any, Protocol

from textual.screen import Screen

from ds4tui.assistant import ModelInfo
from ds4tui.errors import Ds4Error, ModelNotFound
from ds4tui.library.catalogue import CATALOGUE, CatalogueModel
from ds4tui.tui import wording
from ds4tui.tui.background import in_thread
from ds4tui.tui.chat_view import ChatView
from ds4tui.tui.model_slot import ModelSlot
from ds4tui.tui.ports import CheckModel, PullModel
from ds4tui.tui.screens.pull import PullScreen
from ds4tui.tui.server_switch import ServerSwitch


class ModelsHost(Protocol):
    """What is needed of the app."""

    @property
    def chat_view(self) -> ChatView: ...
    async def push_screen_wait(self, screen: Screen[Any]) -> Any: ...
    def run_worker(self, work: Any) -> Any: ...
    def notify(self, message: str, **more: Any) -> Any: ...
    def show_opening(self, words: str) -> None: ...
    async def switch_server(self) -> None: ...


class Models:
    """Belongs to the UI loop."""

    def __init__(
        self,
        host: ModelsHost,
        slot: ModelSlot,
        server: ServerSwitch,
        check_model: CheckModel,
        pull_model: PullModel,
    ) -> None:
        self._host, self._slot, self._server = host, slot, server
        self._check_model, self._pull_model = check_model, pull_model
        self._missing: CatalogueModel | None = None
        self._asked_to_stop_agents_for = ""

    async def open(self, name: str) -> bool:
        """Open `name` and tell what went wrong with it; whether a model is open now."""
        self._missing = None
        error: Ds4Error | None = None
        try:
            await self._slot.open(name, self._host.show_opening)
        except Ds4Error as exc:
            error = exc
        self._host.show_opening("")
        if isinstance(error, ModelNotFound) and name.lower() in CATALOGUE:
            self._missing = CATALOGUE[name.lower()]
            self._host.run_worker(self._offer(self._missing))
        elif error is not None:
            await self._host.chat_view.tell_error(error)
        return self._slot.assistant is not None

    async def change_to(self, name: str) -> None:
        """Open `name` in place of what is open; without a name, tell what is. Raises ModelNotFound
        and GGUFError; then the open one stays."""
        before = self._slot.assistant.info if self._slot.assistant else None
        if not name:
            await self._host.chat_view.say(*wording.open_model(before))
            return
        if before is None:
            await self.open(name)
            return
        self._slot.opening = name  # from here on questions wait for the new model
        self._host.show_opening("looking for it")
        is_ready = was_served = False
        try:
            if await self._is_there(name) and self._may_stop_agents(name):
                was_served = await self._server.stop()
                is_ready = True
        finally:
            self._slot.opening = ""
            if not is_ready:
                self._host.show_opening("")
        if is_ready:
            await self._replace(before, name, was_served)

    def tell_none_is_open(self) -> None:
        """Something was to be sent: say that there is no model, and offer what was not here."""
        self._host.notify(wording.NO_MODEL, severity="warning")
        if self._missing is not None:
            self._host.run_worker(self._offer(self._missing))

    async def _is_there(self, name: str) -> bool:
        """Whether `name` is on this machine, perhaps now; the open model is not touched.
        Raises ModelNotFound and GGUFError."""
        try:
            await in_thread("ds4tui-check", lambda: self._check_model(name))
        except ModelNotFound:
            if name.lower() not in CATALOGUE:
                raise
            return bool(await self._is_fetched(CATALOGUE[name.lower()]))
        return True

    def _may_stop_agents(self, name: str) -> bool:
        """Whether no agent's request is at work, or the person asked again."""
        stats = self._slot.assistant.stats if self._slot.assistant else None
        is_at_work = stats is not None and (stats.origin == "agent" or stats.queued_jobs > 0)
        if not is_at_work or self._asked_to_stop_agents_for == name:
            self._asked_to_stop_agents_for = ""
            return True
        self._asked_to_stop_agents_for = name
        words = wording.agent_at_work(name)
        self._host.notify(words, severity="warning", timeout=wording.WARNING_S)
        return False

    async def _replace(self, before: ModelInfo, name: str, was_served: bool) -> None:
        if not await self.open(name) and not self._missing:
            self._host.notify(f"{before.name} is opened again.")
            await self.open(before.path)
        if was_served and self._slot.assistant is not None:
            await self._host.switch_server()

    async def _offer(self, model: CatalogueModel) -> None:
        if await self._is_fetched(model):
            await self.open(model.name)
        else:
            await self._host.chat_view.say(*wording.not_pulled(model.name))

    async def _is_fetched(self, model: CatalogueModel) -> Any:
        return await self._host.push_screen_wait(PullScreen(model, self._pull_model))
