"""The commands about models: open one, change it for another, offer to fetch what is not here.

The open model itself, and how it is opened off the UI loop, is in model_slot.py.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from textual.screen import Screen

from ds4tui.assistant import ModelInfo
from ds4tui.chat.store import StoredMessage
from ds4tui.errors import Ds4Error, ModelNotFound
from ds4tui.library.catalogue import CATALOGUE
from ds4tui.library.listing import Listing, Row, list_models
from ds4tui.library.offers import Offer, of_known, offers
from ds4tui.tui import wording
from ds4tui.tui.background import in_thread
from ds4tui.tui.chat_view import ChatView
from ds4tui.tui.model_slot import ModelSlot
from ds4tui.tui.ports import CheckModel, PullModel
from ds4tui.tui.screens.models import ModelsScreen, cost_words
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
        data_dir: Path,
    ) -> None:
        self._data_dir = data_dir
        self._host, self._slot, self._server = host, slot, server
        self._check_model, self._pull_model = check_model, pull_model
        self._missing: Offer | None = None
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
            self._missing = of_known(CATALOGUE[name.lower()])
            self._host.run_worker(self._offer(self._missing))
        elif error is not None:
            await self._host.chat_view.tell_error(error)
        return self._slot.assistant is not None

    async def change_to(self, name: str) -> None:
        """Open `name` in place of what is open; without a name, have the person choose. Raises
        ModelNotFound and GGUFError; then the open one stays."""
        if not name:
            await self._choose()
            return
        before = self._slot.assistant.info if self._slot.assistant else None
        if before is None:
            await self.open(name)
            return
        self._slot.opening = name  # from here on questions wait for the new model
        self._host.show_opening("looking for it")
        is_ready = was_served = False
        try:
            if await self._is_there(name) and self._may_stop_agents(name):
                if tokens := tokens_of(self._host.chat_view.chat.path):
                    self._host.notify(cost_words(tokens), timeout=wording.WARNING_S)
                was_served = await self._server.stop()
                is_ready = True
        finally:
            self._slot.opening = ""
            if not is_ready:
                self._host.show_opening("")
        if is_ready:
            await self._replace(before, name, was_served)

    async def _choose(self) -> None:
        """Let the person choose from what is here and what can be fetched."""
        listing = await in_thread("ds4tui-models", lambda: list_models(self._data_dir))
        choices = choices_of(listing)
        info = self._slot.assistant.info if self._slot.assistant else None
        screen = ModelsScreen(choices, info, tokens_of(self._host.chat_view.chat.path))
        chosen = await self._host.push_screen_wait(screen)
        if isinstance(chosen, Offer):
            if await self._is_fetched(chosen):
                await self.change_to(chosen.name)
        elif isinstance(chosen, Row):
            await self.change_to(str(chosen.path))

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
            return bool(await self._is_fetched(of_known(CATALOGUE[name.lower()])))
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

    async def _offer(self, model: Offer) -> None:
        if await self._is_fetched(model):
            await self.open(model.name)
        else:
            await self._host.chat_view.say(*wording.not_pulled(model.name))

    async def _is_fetched(self, offer: Offer) -> Any:
        is_first = self._slot.assistant is None and offer.name in CATALOGUE
        return await self._host.push_screen_wait(PullScreen(offer, self._pull_model, is_first))


def tokens_of(path: Sequence[StoredMessage]) -> int:
    """How long a conversation was for the model that wrote its last answer; 0 if none did."""
    for stored in reversed(path):
        usage = (stored.stats or {}).get("usage")
        if usage:
            return int(usage.get("prompt_tokens", 0)) + int(usage.get("completion_tokens", 0))
    return 0


def choices_of(listing: Listing) -> list[Row | Offer]:
    """What can be opened, by name, then what can be fetched, then what is wrong with the rest."""
    usable = [row for row in listing.rows if row.facts is not None]
    broken = [row for row in listing.rows if row.facts is None and row.source != "known"]
    return [*usable, *offers(listing.rows), *broken]
