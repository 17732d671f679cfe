"""The chat: transcript, prompt, and the one turn at work.

It asks the assistant that the app gave it, and tells the app what only the app can do: run a
command, find a model. What Enter took out of the prompt goes back into it unless it is used.
"""

import asyncio
from collections.abc import Sequence

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Container, Vertical
from textual.message import Message
from textual.widget import Widget
from textual.widgets import OptionList, TextArea

from ds4tui.assistant import Assistant
from ds4tui.config import Settings
from ds4tui.errors import Ds4Error
from ds4tui.tui import commands, wording
from ds4tui.tui.commands import Command
from ds4tui.tui.completion import CompletionList
from ds4tui.tui.journal import Journal
from ds4tui.tui.messages import Notice, NoticeKind, Warned
from ds4tui.tui.meters import StatusStrip
from ds4tui.tui.open_chat import OpenChat
from ds4tui.tui.panels import usage_words
from ds4tui.tui.prompt import Prompt
from ds4tui.tui.system_prompt import cost_of_change
from ds4tui.tui.transcript import Transcript
from ds4tui.tui.turn import Turn, TurnEnd


class ChatView(Vertical):
    """One conversation on the screen. Belongs to the UI loop."""

    class CommandEntered(Message):
        """A command was typed or chosen; the app answers with `command_ran`."""

        def __init__(self, command: Command, argument: str) -> None:
            super().__init__()
            self.command = command
            self.argument = argument

    class ModelWanted(Message):
        """Something was to be sent and no model is open."""

    class TurnsChanged(Message):
        """A turn began or ended, or another conversation is shown."""

    def __init__(
        self,
        settings: Settings,
        journal: Journal,
        panels: Sequence[Widget] = (),
    ) -> None:
        """`panels` share the room of the transcript."""
        super().__init__(id="chat")
        self._panels = panels
        self.chat = OpenChat(system=settings.system)
        self._settings = settings
        self._journal = journal
        self._assistant: Assistant | None = None
        self._opening = ""
        self._turn: Turn | None = None
        self._last_job_id = ""
        self._sent_system = ""  # the system prompt of the last question
        self._queued = ""  # what is sent next; it stands in the prompt, too
        self._asked: list[str] = []  # in this chat, whatever became of it; oldest first
        self._entered = ""  # the text of a command that the app has not answered yet
        self._idle = asyncio.Event()
        self._idle.set()
        self._transcript = Transcript(id="transcript")
        self._completions = CompletionList(id="completions")
        self._prompt = Prompt(id="prompt")

    def compose(self) -> ComposeResult:
        with Container(id="upper"):  # the prompt stays below it
            yield self._transcript
            yield from self._panels
        yield self._completions
        yield StatusStrip(id="strip")
        yield self._prompt

    def on_mount(self) -> None:
        self._prompt.focus()
        self._show_state()

    # What the app asks

    @property
    def is_busy(self) -> bool:
        return self._turn is not None

    @property
    def draft(self) -> str:
        return self._prompt.text

    @property
    def last_answer(self) -> str:
        return self._transcript.last_answer

    def use(self, assistant: Assistant | None, opening: str) -> None:
        """Ask `assistant` from now on; `opening` is the model being opened, "" if none is."""
        self._assistant, self._opening = assistant, opening
        self._show_state()
        if self._queued and assistant is not None:
            self._send_queued()
        elif not opening:  # the opening that it waited for has failed
            self._unqueue()

    def stop(self) -> None:
        """Stop the answer at work; what is queued stays in the prompt. A list of commands that is
        open is closed first, and nothing else."""
        if self._completions.display:
            self._completions.display = self._prompt.is_completing = False
        else:
            self._cancel()

    def _cancel(self) -> None:
        if self._turn is not None:
            self._turn.cancel()
            self._unqueue()

    async def stopped(self, timeout_s: float) -> bool:
        """Stop, and wait until the answer's last word is kept."""
        self._cancel()
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    async def start_new(self) -> None:
        self.chat = OpenChat(system=self._settings.system)
        self._asked = []
        await self._transcript.clear()
        self._tell_changed()

    async def open_conversation(self, conversation_id: int) -> None:
        """Show a stored conversation at once. Raises StoreError."""
        stored = await self._journal.ask(lambda store: store.load(conversation_id))
        self.chat, unanswered = OpenChat.of(stored)
        self._asked = [m.message.text for m in self.chat.path if m.message.role == "user"]
        await self._transcript.show(self.chat.path)
        self._tell_changed()
        if unanswered and self.restore(unanswered):
            self.notify(wording.UNANSWERED, timeout=8)
        self.run_worker(self._transcript.enrich(), group="enrich", exclusive=True)

    async def set_system(self, text: str) -> None:
        """Show (no text), remove ("off") or set the system prompt. Raises StoreError."""
        if not text:
            await self.say(*wording.system_prompt(self.chat.system))
            return
        new = "" if text.lower() == "off" else text
        cost = await cost_of_change(
            self._assistant, self.chat, new, self._last_job_id, self._sent_system
        )
        self.chat.system = new
        chat_id = self.chat.id
        if chat_id is not None:
            await self._journal.ask(lambda store: store.set_system(chat_id, new))
        await self.say(*wording.system_prompt_set(new, cost))

    def focus_prompt(self) -> None:
        self._prompt.focus()

    def restore(self, text: str) -> bool:
        """Put `text` into the prompt unless something stands there; whether it did."""
        if not text or self._prompt.text:
            return False
        self._prompt.put(text)
        return True

    async def say(self, message: str, hint: str = "", kind: NoticeKind = "information") -> None:
        """Say something in the transcript."""
        await self._transcript.add_notice(Notice(message, hint, kind), message)

    async def warn(self, message: str, hint: str) -> None:
        """Warn in the transcript; a person can put it away."""
        await self._transcript.add_notice(Warned(message, hint), message)

    async def tell_error(self, error: Ds4Error) -> None:
        await self.say(error.message, error.hint, "error")

    def command_ran(self) -> None:
        """A command that was entered is done with."""
        self._entered = ""

    # The prompt

    @on(Prompt.Submitted)
    def _submit(self, event: Prompt.Submitted) -> None:
        event.stop()
        self._show_completions()
        parsed = commands.parse(event.text)
        if parsed is None:
            self._send_or_queue(event.text)
            return
        command, name, argument = parsed
        if command is None:
            self.notify(wording.no_command(name), severity="warning")
            self._prompt.give_back(event.text)
        else:
            self._enter(command, argument, event.text)

    def _enter(self, command: Command, argument: str, text: str) -> None:
        """Ask the app to run a command; the text comes back if the app does not."""
        self._entered = text
        self.app.post_message(self.CommandEntered(command, argument))
        self.app.call_later(self._give_back_refused)

    def _give_back_refused(self) -> None:
        if self._entered:
            self._prompt.give_back(self._entered)
            self._entered = ""

    @on(Prompt.Choose)
    def _complete(self, event: Prompt.Choose) -> None:
        event.stop()
        if event.key == "escape":
            self._completions.display = self._prompt.is_completing = False
        elif event.key in ("up", "down"):
            self._completions.move(-1 if event.key == "up" else 1)
        elif event.key == "tab":
            if (command := self._completions.chosen) is not None:
                self._prompt.put(f"/{command.name} ")
        else:
            self._choose(event.text)

    def _choose(self, text: str) -> None:
        """Enter in the list of completions, with `text` taken out of the prompt."""
        command = self._completions.chosen_for(text)
        if command is None:  # the list was of a text that stands there no more
            self._submit(Prompt.Submitted(text))
            return
        if command.argument:
            self._prompt.give_back(f"/{command.name} ")
        else:
            self._enter(command, "", text)
        self._show_completions()

    @on(OptionList.OptionSelected, "#completions")
    def _complete_clicked(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._complete(Prompt.Choose("tab"))

    @on(TextArea.Changed)
    def _prompt_changed(self) -> None:
        self._show_completions()
        if self._prompt.text != self._queued:
            self._unqueue()

    def _show_completions(self) -> None:
        self._prompt.is_completing = self._completions.offer(self._prompt.text)

    @on(Prompt.Scroll)
    async def _scroll(self, event: Prompt.Scroll) -> None:
        event.stop()
        await self._transcript.scroll_towards(event.direction)

    @on(Transcript.Followed)
    def _show_following(self) -> None:
        self._show_state()

    @on(Transcript.Typed)
    def _type(self, event: Transcript.Typed) -> None:
        event.stop()
        self._go_on_typing(event.character)

    def on_key(self, event: events.Key) -> None:
        """Who types while a panel has the focus goes on in the prompt."""
        if event.character is not None and event.is_printable:
            event.stop()
            self._go_on_typing(event.character)

    def _go_on_typing(self, character: str) -> None:
        self._prompt.focus()
        self._prompt.insert(character)

    # Turns

    def _send_or_queue(self, text: str) -> None:
        can_send = not self.is_busy and not self._opening and self._assistant is not None
        if text.strip() and can_send:
            self._send(text)
            return
        self._prompt.give_back(text)
        if not text.strip():
            return
        if self.is_busy or self._opening:
            self._queued = "" if text == self._queued else text
            self._show_state()
        else:
            self.post_message(self.ModelWanted())

    def _send_queued(self) -> None:
        text, self._queued = self._queued, ""
        self._prompt.drop_front(text)
        self._send(text)

    def _send(self, text: str) -> None:
        assert self._assistant is not None
        sampling = self._settings.sampling(self._assistant.info.sampling).params()
        self._sent_system = self.chat.system
        if self._asked[-1:] != [text]:
            self._asked = [*self._asked, text]
        self._turn = Turn(text, self.chat, self._assistant, sampling, self._journal)
        self._idle.clear()
        self._tell_changed()
        self.run_worker(self._answer(self._turn), group="turn")

    async def _answer(self, turn: Turn) -> None:
        await self._transcript.add_question(turn.question)
        answer = await self._transcript.add_answer()
        end = await turn.run(answer)
        self._last_job_id = turn.job_id
        footer = usage_words(end.usage, end.stop_reason, end.status)
        if not end.answered:
            footer += wording.ASIDE
        await self._transcript.end_turn(answer, footer, is_aside=not end.answered)
        self._turn = None
        self._idle.set()
        await self._go_on(end)
        self._tell_changed()

    async def _go_on(self, end: TurnEnd) -> None:
        """What comes after a turn: the error, the question back, the queued question."""
        if end.error is not None:
            self._unqueue()
            await self.tell_error(end.error)
        if self._queued:
            self._send_queued()
        elif not end.answered:
            self.restore(end.question)

    def _unqueue(self) -> None:
        self._queued = ""
        self._show_state()

    # Showing

    def _tell_changed(self) -> None:
        self._prompt.remember(self._asked)
        self._show_state()
        self.post_message(self.TurnsChanged())

    def _show_state(self) -> None:
        title, subtitle = wording.prompt_borders(
            is_queued=bool(self._queued),
            is_busy=self.is_busy,
            opening=self._opening,
            is_at_end=self._transcript.is_at_end,
        )
        self._prompt.border_title, self._prompt.border_subtitle = title, subtitle
