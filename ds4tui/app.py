"""The Textual app: what is on the screen and who is told what; composition and routing only.

Everything that takes time happens elsewhere (engine thread, journal thread, a thread per
blocking call) and comes back to this loop. The world is handed in as callables: nothing here
knows MLX, the server or the network.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.filter import LineFilter
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Footer

from ds4tui.agents import Agents
from ds4tui.chat.finding import purge
from ds4tui.chat.ledger import Joined
from ds4tui.chat.store import ConversationStore
from ds4tui.config import Settings
from ds4tui.engine.stats import EngineStats
from ds4tui.errors import Ds4Error, StoreError, UsageError
from ds4tui.pictures.paths import quoted
from ds4tui.tui import commands, wording
from ds4tui.tui.acts import Acts
from ds4tui.tui.agents_view import AgentsView
from ds4tui.tui.background import in_thread, on_this_loop
from ds4tui.tui.cached import Cached
from ds4tui.tui.chat_view import ChatView
from ds4tui.tui.clipboard import copy_with_tool
from ds4tui.tui.commands import Command
from ds4tui.tui.conversations import Conversations
from ds4tui.tui.crashing import ReportingApp
from ds4tui.tui.decisions_view import DecisionsView
from ds4tui.tui.disk_view import DiskView
from ds4tui.tui.driver import TerminalDriver
from ds4tui.tui.graphics import Way
from ds4tui.tui.journal import Journal, Writing, write_nothing
from ds4tui.tui.keymap import bindings, is_no_key, keymap
from ds4tui.tui.leaving import SECOND_PRESS_S, Leaving
from ds4tui.tui.messages import LinkChosen
from ds4tui.tui.metering import POLL_S, Metering
from ds4tui.tui.meters import Header, KVPanel
from ds4tui.tui.model_slot import ModelSlot
from ds4tui.tui.models import Models
from ds4tui.tui.palette import palette
from ds4tui.tui.panels import PanelView
from ds4tui.tui.ports import CheckModel, OpenModel, PullModel, StartServer
from ds4tui.tui.prompt import Prompt
from ds4tui.tui.readable import READABLE
from ds4tui.tui.reopening import Reopening
from ds4tui.tui.screens.help import HelpScreen
from ds4tui.tui.screens.picture import choose_picture
from ds4tui.tui.server_switch import ServerSwitch
from ds4tui.tui.shortcuts import Shortcuts
from ds4tui.tui.terminal_text import harmless
from ds4tui.tui.themes import keep_theme, known_theme

log = logging.getLogger(__name__)

QUIT_WAIT_S = 5.0  # for a stopped answer's last word
# Which take turns in one place.
PANELS = (DecisionsView, DiskView, AgentsView)
WIDE_CELLS = 110  # from here on the panel stands beside the conversation
BROAD_CELLS = 170  # from here on a decision's details stand beside the list, else below it
SHORT_CELLS = 10  # below it the prompt and the conversation are all that is shown
TALL_CELLS = 36  # from here on the decisions stand below the conversation, else over it


class Ds4App(ReportingApp, inherit_bindings=False):
    """A chat with a local model. Satisfies commands.CommandHost."""

    CSS_PATH = "tui/ds4.tcss"
    TITLE = "ds4tui"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (WIDE_CELLS, "-wide"), (BROAD_CELLS, "-broad")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (SHORT_CELLS, "-short"), (TALL_CELLS, "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings(),
        Binding("ctrl+c,super+c", "copy_or_quit", show=False, priority=True),
    ]

    def __init__(
        self,
        settings: Settings,
        store: ConversationStore,
        open_model: OpenModel,
        start_server: StartServer,
        pull_model: PullModel,
        model_name: str | None = None,
        continue_last: bool = False,
        check_model: CheckModel = lambda name: None,
        way: Way = Way.TEXT,
        agents: Agents | None = None,
        shortcuts: Shortcuts | None = None,
    ) -> None:
        """`agents` watches the requests of the server that `start_server` starts; `shortcuts` are
        the keys in force."""
        super().__init__()
        self.shortcuts = shortcuts or Shortcuts()
        self.set_keymap(keymap(self.shortcuts))
        self._agents = agents or Agents()
        self._settings = settings
        self._model_name = model_name or settings.model
        self._continue_last = continue_last
        self._way = way
        self._told_causes: set[str] = set()
        self._journal = Journal(store, self._tell_store_problem)
        self.acts = Acts(self)
        self.cached = Cached(self)
        self.conversations = Conversations(self, self._journal, not settings.lists_agents)
        self._slot = ModelSlot(open_model)
        self._server = ServerSwitch(start_server)
        self._reopening = Reopening(self, self._slot, self._server)
        self.models = Models(
            self, self._slot, self._server, check_model, pull_model, settings.data_dir
        )
        self._opening_words = ""
        self._leaving = Leaving(self)
        self._is_closed = False
        self._standing: Writing = write_nothing  # keeps what was in the prompt when the app crashed
        self._metering = Metering()
        self._poll: Timer | None = None

    # Composition

    def compose(self) -> ComposeResult:
        yield Header(id="header")
        with Horizontal(id="main"):
            panels = (
                DecisionsView(id="decisions"),
                DiskView(id="disk"),
                AgentsView(id="agents"),
            )
            yield ChatView(self._settings, self._journal, self._way, panels, self._agents)
            yield KVPanel(id="panel")
        yield Footer()

    @property
    def chat_view(self) -> ChatView:
        return self.screen_stack[0].query_one(ChatView)

    def on_mount(self) -> None:
        self._standing = self.chat_view.leave_drafts
        self.theme = known_theme(self._settings.theme, self.available_themes)
        self.theme_changed_signal.subscribe(self, lambda theme: keep_theme(theme.name))
        self._poll = self.set_interval(POLL_S, self._tick, pause=True)
        self._leaving.heed_signals()
        if self._agents.ledger is not None:
            self._agents.ledger.on_change = on_this_loop(self._agent_wrote)
            self._agents.ledger.on_problem = on_this_loop(self._tell_not_kept)
        self.run_worker(self.models.open(self._model_name))
        self.run_worker(self._recall())
        if self.shortcuts.problems:
            self.run_worker(self.chat_view.warn(*wording.keys_not_used(self.shortcuts.problems)))

    async def _recall(self) -> None:
        """Bring back what the last run left: its draft, its conversation if that is wanted."""
        problem = self._journal.store.problem
        if problem is not None:
            self._tell_store_problem(problem)
        try:
            await self.chat_view.recall_draft()
            await self._journal.ask(purge)
            if self._continue_last:
                latest = await self._journal.ask(lambda store: store.latest())
                if latest is None:
                    self.notify(wording.NO_CONVERSATION)
                else:
                    await self.chat_view.open_conversation(latest.id)
            await self.chat_view.tell_drafts()
        except StoreError as exc:
            if not self._is_closed:  # quit at once
                await self.chat_view.tell_error(exc)

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [*super().get_line_filters(), READABLE]

    def get_driver_class(self) -> type[Driver]:
        found = super().get_driver_class()
        return TerminalDriver if found is LinuxDriver else found

    # CommandHost

    @property
    def is_busy(self) -> bool:
        return self.chat_view.is_busy

    def stop_turn(self) -> None:
        self.chat_view.stop()

    async def new_chat(self) -> None:
        await self.chat_view.start_new()

    async def add_picture(self, paths: str) -> None:
        if paths:
            await self.chat_view.add_pictures(paths)
            return
        chosen = await choose_picture(self)
        if chosen is not None:
            await self.chat_view.add_pictures(quoted(str(chosen)))

    async def take_screenshot(self) -> None:
        await self.chat_view.add_screenshot()

    async def switch_server(self, wanted: bool | None = None) -> None:
        """On, off, or (None) over; without words where it is so already, but for the address."""
        if wanted is False and not self._server.url:
            self.notify("The server is off.")
        elif wanted and self._server.url:
            self.notify(f"The server is on: {self._server.url}")
        elif self._server.is_starting:
            self.notify("The server is starting.")
        elif self._server.url:
            await self._server.stop()
            self.notify("The server is off.")
        elif self._slot.opening:
            self.notify("The server has to wait while a model is opened.")
        elif self._slot.assistant is None:
            self.notify("Open a model first: it is what is served.")
        else:
            await self._server.start(self._slot.assistant)
            self.notify(f"The server is on: {self._server.url}")
            if self._server.warning:
                self.notify(self._server.warning, severity="warning", timeout=wording.WARNING_S)
        self.keep_polling()

    def switch_panel(self) -> None:
        screen, is_shown = self.screen_stack[0], self.query_one(KVPanel).display
        screen.set_class(not is_shown, "-panel")
        screen.set_class(is_shown, "-no-panel")

    def switch_decisions(self) -> None:
        self._switch(DecisionsView)

    def switch_disk(self) -> None:
        self._switch(DiskView)

    def switch_agents(self) -> None:
        self._switch(AgentsView)

    def _switch(self, kind: type[DecisionsView | DiskView | AgentsView]) -> None:
        """Show a panel in the place of the one that is shown, or hide it."""
        wanted = self.query_one(kind)
        is_shown = wanted.display
        self._hide_panels()
        if not is_shown:
            wanted.display = True
            self._show_meters()
            wanted.focus_list()

    @on(DiskView.Closed)
    @on(DecisionsView.Closed)
    @on(AgentsView.Closed)
    def _hide_panels(self) -> None:
        for kind in PANELS:
            self.query_one(kind).display = False
        self.chat_view.focus_prompt()

    @on(AgentsView.Opened)
    async def _open_request(self, event: AgentsView.Opened) -> None:
        """Show what a request asks, and its reply as it is written."""
        conversation_id, reply_id = event.request.conversation_id, event.request.reply_id
        if self.is_busy:
            self.notify(wording.BUSY_HERE)
        elif conversation_id is not None:
            self._hide_panels()
            await self._tell_errors(self.chat_view.open_conversation(conversation_id, reply_id))

    @on(AgentsView.Stopped)
    def _stop_request(self, event: AgentsView.Stopped) -> None:
        if self._agents.cancel(event.request.number):
            self.notify(wording.request_stopped(event.request.client))

    def choose_theme(self) -> None:
        self.search_themes()

    def show_help(self) -> None:
        self.push_screen(HelpScreen())

    def quit_app(self) -> None:
        self._leaving.begin()

    # Routing

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action != "command":
            return True
        if len(self.screen_stack) > 1 and parameters != ("quit",):
            return False  # a dialog is open: its keys are its own
        return commands.named(str(parameters[0])).is_enabled(self)

    def action_command(self, name: str) -> None:
        self.run_command(commands.named(name), "")

    async def action_quit(self) -> None:
        self.quit_app()

    def get_key_display(self, binding: Binding) -> str:
        return "" if is_no_key(binding.key) else super().get_key_display(binding)

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        return palette(self)

    @on(ChatView.CommandEntered)
    def _command_entered(self, event: ChatView.CommandEntered) -> None:
        if self.run_command(event.command, event.argument):
            self.chat_view.command_ran()

    def run_command(self, command: Command, argument: str) -> bool:
        """Whether it runs: some have to wait until nothing is at work."""
        if command.when_idle and (self.is_busy or self._slot.opening):
            doing = "an answer is written" if self.is_busy else "a model is opened"
            self.notify(f"/{command.name} has to wait while {doing}.")
            return False
        try:
            result = command.run(self, argument)
        except UsageError as exc:
            self.run_worker(self.chat_view.tell_error(exc))
            return False
        if result is not None:
            self.run_worker(self._tell_errors(result))
        return True

    async def _tell_errors(self, running: Any) -> None:
        try:
            await running
        except Ds4Error as exc:
            await self.chat_view.tell_error(exc)
        except Exception as exc:  # a command's root: it must not end the app
            log.exception("a command failed")
            await self.chat_view.tell_error(Ds4Error(f"That failed: {exc}.", wording.SEE_LOG))

    def notify(self, message: str, *, markup: bool = False, **more: Any) -> None:
        """A toast. Its text is never markup, whoever asks, and steers no terminal."""
        super().notify(harmless(message), markup=False, **more)

    @on(ChatView.TurnsChanged)
    def _turns_changed(self) -> None:
        if not self.screen_stack:
            return  # quit while a conversation was opened
        self._reopening.look()
        self.refresh_bindings()
        self._show_header()
        self.keep_polling()

    @on(ChatView.ModelWanted)
    def _model_wanted(self) -> None:
        self.models.tell_none_is_open()

    @on(LinkChosen)
    async def _link_chosen(self, event: LinkChosen) -> None:
        await self.copy(event.href, f"Nothing was opened. The address {event.href}")

    async def action_copy_or_quit(self) -> None:
        selected = getattr(self.focused, "selected_text", "") or self.screen.get_selected_text()
        if selected:
            self.screen.clear_selection()  # the next Ctrl+C is about quitting again
            await self.copy(selected, "The selection")
        elif self._leaving.is_pressed_twice():
            self.quit_app()
        else:
            self.notify(wording.second_press(self.is_busy), timeout=SECOND_PRESS_S)

    @on(Prompt.CopyWanted)
    async def _copy_cut(self, event: Prompt.CopyWanted) -> None:
        await self.copy(event.text, "The text")

    def copy_to_clipboard(self, text: str) -> None:
        self.run_worker(self.copy(text, "The text"))

    async def copy(self, text: str, what: str) -> None:
        self._clipboard = text  # what Ctrl+V in the prompt pastes
        outcome = await in_thread("ds4tui-copy", lambda: copy_with_tool(text))
        if outcome.tool is None:
            super().copy_to_clipboard(text)  # OSC 52, which no terminal answers
        self.notify(wording.copied(what, outcome))

    # Showing

    def show_opening(self, words: str) -> None:
        self._opening_words = words
        usable = None if self._slot.opening else self._slot.assistant
        self.chat_view.use(usable, self._slot.opening)
        self._show_header()
        self._show_meters()

    def _show_header(self) -> None:
        info = self._slot.assistant.info if self._slot.assistant else None
        header = self.screen_stack[0].query_one(Header)
        header.show(info, self._slot.opening, self.chat_view.chat.title)

    def _tick(self) -> None:
        if self._metering.is_due():
            self._show_meters()

    def _show_meters(self) -> None:
        if not self.screen_stack:
            return  # a last tick of the timer, while the app is closed
        stats = self._slot.assistant.stats if self._slot.assistant else None
        opening = wording.opening(self._slot.opening, self._opening_words)
        screen = self.screen_stack[0]  # which loses its widgets while the app is closed
        is_listed = any(panel.display for panel in screen.query(AgentsView))
        requests = self._agents.requests if is_listed else ()
        view = PanelView(stats, opening, self._server.url, requests, self.shortcuts)
        self._metering.show(screen, view)
        if stats is not None:
            self._tell_tripwire(stats)
        is_at_work = stats is not None and (
            stats.state in ("prefilling", "decoding")
            or (stats.is_storing and stats.state == "idle")
        )
        if not (self.is_busy or is_at_work or self._server.url) and self._poll is not None:
            self._poll.pause()

    def _tell_tripwire(self, stats: EngineStats) -> None:
        """Once for each cause; the panel says it as long as it is so."""
        if stats.tripwire and stats.tripwire_cause not in self._told_causes:
            self._told_causes.add(stats.tripwire_cause)
            words = wording.tripwire(
                stats.tripwire, stats.tripwire_cause, self.shortcuts.hint("decisions")
            )
            self.run_worker(self.chat_view.warn(*words))

    def keep_polling(self) -> None:
        self._show_meters()
        if self._poll is not None:
            self._poll.resume()

    def _agent_wrote(self, joined: Joined) -> None:
        for view in self.screen_stack[0].query(ChatView) if self.screen_stack else ():
            view.agent_wrote(joined)  # none, while the app is closed

    def _tell_not_kept(self, problem: StoreError) -> None:
        if not self._is_closed:
            self.notify(
                wording.agents_not_kept(problem), severity="warning", timeout=wording.WARNING_S
            )

    def _tell_store_problem(self, problem: StoreError) -> None:
        if self._agents.ledger is not None:
            self._agents.ledger.use(self._journal.store)
        self.run_worker(self.chat_view.say(*wording.nothing_is_kept(problem), "warning"))

    # Leaving

    def terminal_is_gone(self) -> None:
        """Leave, with nobody there to press a key; also what signals ask for."""
        self._leaving.without_person()

    async def leave(self) -> None:
        """Stop what is at work, keep what there is, close what is open."""
        await self.chat_view.stopped(QUIT_WAIT_S)
        await self._close(self.chat_view.last_words())
        self.exit()

    async def on_unmount(self) -> None:
        if not self._is_closed:  # the app ends by an error
            await self._close(self._standing)

    def keep_what_stands(self) -> None:
        self._standing = self.chat_view.last_words()

    async def _close(self, last: Writing) -> None:
        self._is_closed = True
        await self._server.stop()
        await self._slot.close()
        await in_thread("ds4tui-agents", self._agents.close)
        await self._journal.close(last)
