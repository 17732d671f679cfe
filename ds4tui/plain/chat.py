"""The chat in lines: one conversation, one turn after the other, in what order a person says.

It keeps what the app keeps, in the same store, and obeys the commands of the app's table. It
belongs to the main thread, on whose loop one thing runs at a time: reading a line holds the loop,
which has nothing else to do then.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ds4tui import __version__
from ds4tui.agents import Agents
from ds4tui.assistant import Assistant
from ds4tui.chat.finding import purge
from ds4tui.chat.messages import Message
from ds4tui.chat.store import ConversationStore
from ds4tui.config import Settings
from ds4tui.engine.stats import EngineStats
from ds4tui.errors import ConversationWentOn, Ds4Error, StoreError
from ds4tui.plain import telling
from ds4tui.plain.answer import SpokenAnswer
from ds4tui.plain.as_app import AsApp
from ds4tui.plain.lines import Lines
from ds4tui.plain.models import Models
from ds4tui.plain.prompt import NextLine
from ds4tui.plain.signals import Signals
from ds4tui.tui import commands, wording
from ds4tui.tui.attaching import Attaching
from ds4tui.tui.branches import Branches
from ds4tui.tui.commands import Command
from ds4tui.tui.journal import Journal
from ds4tui.tui.open_chat import Fork, OpenChat
from ds4tui.tui.ports import CheckModel, OpenModel, PullModel, StartServer
from ds4tui.tui.turn import Turn, TurnEnd

log = logging.getLogger(__name__)

YOU = "You: "
HELLO = (
    f"ds4tui {__version__} in plain mode. Write a message and press Enter; a backslash at the end "
    "of a line goes on with the next one. /help lists the commands, Ctrl+C stops an answer, "
    "Ctrl+D leaves."
)
HINT = "Ctrl+D or /quit leaves. Up brings back the line that you had begun."

Act = Callable[["PlainChat", str], Any]


@dataclass(frozen=True, slots=True)
class Ports:
    """The world outside, as the app is handed it."""

    open_model: OpenModel
    start_server: StartServer
    pull_model: PullModel
    check_model: CheckModel


class PlainChat:
    """Satisfies branches.BranchHost. `run` once."""

    def __init__(
        self,
        settings: Settings,
        store: ConversationStore,
        ports: Ports,
        lines: Lines,
        signals: Signals,
        act_of: Callable[[Command], Act | None],
        agents: Agents | None = None,
    ) -> None:
        """`act_of` says what a command of the table does here."""
        self.lines = lines
        self.agents = agents or Agents()
        self.journal = Journal(store, self._tell_store_problem)
        self.chat = OpenChat(system=settings.system)
        self.settings = settings
        self._signals = signals
        self._act_of = act_of
        self._asked: list[str] = []
        self._is_leaving = False
        self._begun: tuple[Message, Fork | None] | None = None
        self._has_failed = False
        self._shows_thoughts = False
        self._told_causes: set[str] = set()
        self.prompt = NextLine(lines)
        # Both use of a prompt what NextLine has, and Branches a transcript for marks only.
        self.attaching = Attaching(cast(Any, self.prompt), self.notify, self.tell_error)
        shelf = self.attaching.shelf
        self.branches = Branches(self, self.journal, cast(Any, None), cast(Any, self.prompt), shelf)
        self.models = Models(self, ports, signals)
        self.as_app = AsApp(self)

    # Asking

    async def run(self, name: str, continue_last: bool) -> int:
        """The exit code: 1 where there is nobody to see that an answer failed."""
        self.lines.complete_with(_completions)
        self._signals.on_interrupt = self.lines.keep_unfinished
        self.lines.on_gone = self._signals.stop
        try:
            await self._begin(name, continue_last)
            if self.assistant is None and not self.lines.is_terminal:
                return 1
            while not self._is_leaving and not self._signals.is_leaving:
                text = self._read()
                if text is None:
                    break
                await self._enter(text)
        finally:
            await self._close()
        return 1 if self._has_failed and not self.lines.is_terminal else 0

    async def _begin(self, name: str, continue_last: bool) -> None:
        if self.lines.is_terminal:
            self.lines.say(HELLO)
        if self.journal.store.problem is not None:
            self._tell_store_problem(self.journal.store.problem)
        await self._telling_errors(self.journal.ask(purge))
        await self.models.open_first(name)
        if continue_last:
            await self._telling_errors(self._continue())

    async def _continue(self) -> None:
        latest = await self.journal.ask(lambda store: store.latest())
        if latest is None:
            self.notify(wording.NO_CONVERSATION)
        else:
            await self.open_conversation(latest.id)

    async def _close(self) -> None:
        await self.models.close()
        self.agents.close()
        await self.journal.close()

    def _read(self) -> str | None:
        """The next message or command; None at the end."""
        while True:
            try:
                with self._signals.raising():
                    return self.lines.message(YOU, self.prompt.text)
            except KeyboardInterrupt:
                if not self.lines.is_terminal:
                    raise
                self.lines.write("\n")
                self.lines.say(HINT)

    async def _enter(self, text: str) -> None:
        parsed = commands.parse(text.rstrip())
        if parsed is None:
            await self.ask(self.prompt.taken(text))
        elif parsed[0] is None:
            self.lines.say(wording.no_command(parsed[1]))
        else:
            await self._telling_errors(self._obey(parsed[0], parsed[2]))
        while self._begun is not None:
            (question, fork), self._begun = self._begun, None
            await self._answer(question, fork)

    async def _obey(self, command: Command, argument: str) -> None:
        act = self._act_of(command)
        if act is None:
            self.lines.say(
                f"/{command.name} is for the screen ({command.help}); the plain mode has none. "
                "ds4tui without --plain opens the app."
            )
            return
        result = act(self, argument)
        if result is not None:
            await result

    async def ask(self, text: str) -> None:
        if not text.strip():
            if self.branches.leave_edit():
                self.lines.say("The question stays as it was.")
            return
        if self.assistant is None:
            self.want_model()
            self._give_back(text)
            return
        whole, is_ready = await self.attaching.whole(text)
        if not is_ready:
            self._give_back(whole)
            return
        edit = self.branches.taken_edit()
        self.begin(self.attaching.shelf.parted(whole), edit.fork if edit else None)
        self._asked.append(text)
        self.lines.remember(self._asked)

    async def _answer(self, question: Message, fork: Fork | None) -> None:
        assistant = self.assistant
        assert assistant is not None
        defaults = self.settings.sampling(assistant.info.sampling)
        sampling = defaults.params(**self.chat.sampling)
        answer = SpokenAnswer(self.lines, shows_thoughts=self._shows_thoughts)
        turn = Turn(
            question, self.chat, assistant, sampling, self.journal, fork, on_event=answer.hear
        )
        with self._signals.stopping(turn.cancel):
            end = await turn.run(answer)
        self.branches.last = turn.last_asked
        answer.end(end)
        await self._go_on(end, is_again=fork is not None and fork.is_again)

    async def _go_on(self, end: TurnEnd, *, is_again: bool) -> None:
        self._has_failed |= end.error is not None
        if end.error is not None:
            await self.tell_error(end.error)
            await self.models.offer_again()
        if isinstance(end.error, ConversationWentOn) and self.chat.id is not None:
            await self._telling_errors(self.open_conversation(self.chat.id))
        if not end.answered and not is_again:
            self._give_back(self.attaching.shelf.joined(end.question))
        stats = self.stats
        if stats is not None and stats.tripwire and stats.tripwire_cause not in self._told_causes:
            self._told_causes.add(stats.tripwire_cause)
            self.lines.say(*wording.tripwire(stats.tripwire, stats.tripwire_cause))

    def _give_back(self, text: str) -> None:
        """A question that was not answered: in the next line again, where that can be."""
        if self.lines.can_edit:
            self.prompt.text = text

    # What acts and branches ask

    @property
    def assistant(self) -> Assistant | None:
        return self.models.assistant

    @property
    def stats(self) -> EngineStats | None:
        return self.assistant.stats if self.assistant is not None else None

    @property
    def is_waiting(self) -> bool:
        return False  # a line is read when nothing is at work

    def begin(self, question: Message, fork: Fork | None = None) -> None:
        """Ask `question` next."""
        self._begun = question, fork

    async def start_new(self) -> None:
        self.branches.leave_edit()
        self.chat = OpenChat(system=self.settings.system)
        self._asked = []
        self.lines.say("A new conversation.")

    async def open_conversation(self, conversation_id: int) -> None:
        """Go on with a stored conversation, and say how it ends. Raises StoreError."""
        stored = await self.journal.ask(lambda store: store.load(conversation_id))
        self.branches.leave_edit()
        thinking = self.chat.thinking
        self.chat, unanswered = OpenChat.of(stored)
        self.chat.thinking = thinking
        asked = (m.message for m in self.chat.path if m.message.role == "user" and not m.client)
        self._asked = [self.attaching.shelf.joined(question) for question in asked]
        self.lines.remember(self._asked)
        self.lines.say(f"Conversation: {stored.title}", *telling.last_messages(self.chat.path))
        if unanswered is not None:
            self._give_back(self.attaching.shelf.joined(unanswered))
            self.lines.say(f"A question got no answer when ds4tui ended: {unanswered.text}")

    def leave(self) -> None:
        self._is_leaving = True

    def chosen(self, title: str, choices: Sequence[str]) -> int | None:
        """The place of what a person chooses of a numbered list; None for nothing. Words in the
        place of a number leave what holds them."""
        places = list(range(len(choices)))
        while True:
            self.lines.say(title, *(f"{place + 1}. {choices[place]}" for place in places))
            try:
                with self._signals.raising():
                    read = self.lines.line("Number, words to look for, or nothing: ")
            except KeyboardInterrupt:
                read = None
            wanted = (read or "").strip().lower()
            if not wanted:
                self.lines.say("Nothing was chosen.")
                return None
            if wanted.isdecimal() and 1 <= int(wanted) <= len(choices):
                return int(wanted) - 1
            found = [at for at, choice in enumerate(choices) if wanted in choice.lower()]
            if not found:
                self.lines.say(f"Nothing holds {wanted}.")
            places = found or places

    async def set_sampling(self, values: Mapping[str, float]) -> None:
        """Have this conversation sampled so from now on. Raises StoreError."""
        self.chat.sampling, chat_id = values, self.chat.id
        if chat_id is not None:
            await self.journal.ask(lambda store: store.set_sampling(chat_id, values))

    async def say(self, message: str, hint: str = "") -> None:
        self.lines.say(message, hint)

    def show_thoughts(self, wanted: bool) -> None:
        """Whether what the model thinks is said, or only how long it thought."""
        self._shows_thoughts = wanted

    def show_state(self) -> None:
        """Nothing stands on a screen."""

    def want_model(self) -> None:
        self.lines.say("No model is open, so nothing was sent. /model NAME opens one.")

    def notify(self, message: str) -> None:
        self.lines.say(message)

    async def tell_error(self, error: Ds4Error) -> None:
        self.lines.say(f"Error: {error.message}", error.hint)

    async def _telling_errors(self, running: Any) -> None:
        try:
            await running
        except Ds4Error as exc:
            await self.tell_error(exc)
        except Exception as exc:  # a command's root: it must not end the chat
            log.exception("a command failed")
            await self.tell_error(Ds4Error(f"That failed: {exc}.", wording.SEE_LOG))

    def _tell_store_problem(self, problem: StoreError) -> None:
        if self.agents.ledger is not None:
            self.agents.ledger.use(self.journal.store)
        self.lines.say(*wording.nothing_is_kept(problem))


def _completions(begun: str) -> list[str]:
    """Of a command's name, for Tab."""
    return [f"/{command.name} " for command in commands.completions(begun)]
