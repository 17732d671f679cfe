"""The chat: transcript, prompt, and the one turn at work.

It asks the assistant that the app gave it, and tells the app what only the app can do: run a
command, find a model. What Enter took out of the prompt goes back into it unless it is used.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Container, Vertical
from textual.message import Message
from textual.widget import Widget
from textual.widgets import OptionList, TextArea

from ds4tui.agents import Agents
from ds4tui.assistant import Assistant
from ds4tui.chat.drafts import Draft, Waiting
from ds4tui.chat.ledger import Joined
from ds4tui.chat.messages import Message as ChatMessage
from ds4tui.chat.store import Conversation, ConversationStore
from ds4tui.config import Settings
from ds4tui.errors import ConversationWentOn, Ds4Error
from ds4tui.events import Event
from ds4tui.pictures.mentions import may_mention
from ds4tui.tui import commands, wording
from ds4tui.tui.attaching import Attaching
from ds4tui.tui.branches import Branches
from ds4tui.tui.commands import Command
from ds4tui.tui.completing import Completing
from ds4tui.tui.completion import CompletionList
from ds4tui.tui.drafts import Drafts, Standing
from ds4tui.tui.following import LOOK_EVERY_S, Following
from ds4tui.tui.graphics import Way
from ds4tui.tui.journal import Journal, Writing
from ds4tui.tui.messages import Answer, Notice, NoticeKind, Warned
from ds4tui.tui.meters import StatusStrip
from ds4tui.tui.open_chat import Fork, OpenChat
from ds4tui.tui.panels import usage_words
from ds4tui.tui.prompt import Prompt
from ds4tui.tui.shortcuts import shortcuts_of
from ds4tui.tui.transcript import Transcript
from ds4tui.tui.turn import Turn, TurnEnd
from ds4tui.tui.words import left_out_words

TOLD_S = 12.0  # a reason and what to do about it take their time
SECOND_PRESS_S = 1.0


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
        way: Way = Way.TEXT,
        panels: Sequence[Widget] = (),
        agents: Agents | None = None,
    ) -> None:
        """`panels` share the room of the transcript; `agents` are those of this process."""
        super().__init__(id="chat")
        self._panels = panels
        self.chat = OpenChat(system=settings.system)
        self._settings = settings
        self._journal = journal
        self._assistant: Assistant | None = None
        self._opening = ""
        self._turn: Turn | None = None
        self._answering: Answer | None = None  # what it writes into
        self._queued = ""  # what is sent next; it stands in the prompt, too
        self._asked: list[str] = []  # in this chat, whatever became of it; oldest first
        self._entered = ""  # the text of a command that the app has not answered yet
        self._idle = asyncio.Event()
        self._idle.set()
        self._transcript = Transcript("transcript", way)
        self._following = Following(
            self._transcript, journal, agents or Agents(), self._reopen, self._others_wrote
        )
        self._following.show(self.chat)
        self._completions = CompletionList(id="completions")
        self._prompt = Prompt(id="prompt")
        self._attaching = Attaching(self._prompt, self._say_for_a_moment, self.tell_error)
        shelf = self._attaching.shelf
        self.branches = Branches(self, journal, self._transcript, self._prompt, shelf)
        self._completing = Completing(
            self._prompt, self._completions, self._attaching, self._enter, self.run_worker
        )
        self._drafts = Drafts(journal, self._standing, self.set_timer)
        self._escaped_s = -SECOND_PRESS_S

    def compose(self) -> ComposeResult:
        with Container(id="upper"):  # the prompt stays below it
            yield self._transcript
            yield from self._panels
        yield self._completions
        yield StatusStrip(id="strip")
        yield self._prompt

    def on_mount(self) -> None:
        self._prompt.focus()
        self.show_state()
        self.set_interval(LOOK_EVERY_S, self._look)

    # What the app asks

    @property
    def is_busy(self) -> bool:
        return self._turn is not None

    @property
    def is_waiting(self) -> bool:
        """Whether a question has to wait: an answer is written, or a model opened."""
        return self.is_busy or bool(self._opening) or self._following.is_at_work

    @property
    def assistant(self) -> Assistant | None:
        return self._assistant

    @property
    def draft(self) -> ChatMessage:
        return self._attaching.shelf.parted(self._attaching.held + self._prompt.text)

    def last_words(self) -> Writing:
        """What keeps the draft when the app ends."""
        return self._drafts.last_words()

    @property
    def leave_drafts(self) -> Writing:
        """What leaves the drafts that are kept to others."""
        return self._drafts.leave

    def use(self, assistant: Assistant | None, opening: str) -> None:
        """Ask `assistant` from now on; `opening` is the model being opened, "" if none is."""
        self._assistant, self._opening = assistant, opening
        queued = self._queued
        self._attaching.use(assistant)
        self._transcript.count_by(self._attaching.shelf.tokens_of)
        self._transcript.offer_sample(assistant is not None and assistant.vision is not None)
        self._asked = list(map(self._attaching.shelf.recounted, self._asked))
        self._prompt.remember(self._asked)
        self._queued = self._prompt.text if queued else ""
        self.show_state()
        if self._queued and assistant is not None:
            self._send_queued()
        elif not opening:  # the opening that it waited for has failed
            self._unqueue()

    def stop(self) -> None:
        """Stop the answer at work; what is queued stays in the prompt. A list of commands that is
        open is closed first, and nothing else."""
        if not self._completing.close():
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
        finally:
            self._following.show(OpenChat())  # nobody reads along any more
        return True

    async def recall_draft(self) -> None:
        """Bring back what was typed, and not sent, in a new chat. Raises StoreError."""
        draft = await self._journal.ask(lambda store: self._drafts.taken(store, None))
        if self.chat.id is None:
            self._drafts.shown(None, draft)
            if text := self._text_of(draft):
                self._prompt.give_back(text)

    async def drafts(self) -> dict[int, Waiting]:
        """The drafts that wait, by conversation, the newest last. Raises StoreError."""
        self._drafts.keep()
        return await self._journal.ask(self._drafts.waiting)

    async def tell_drafts(self) -> None:
        """Tell of a draft that waits in a conversation that is not shown. Raises StoreError."""
        found = [draft for id_, draft in (await self.drafts()).items() if id_ != self.chat.id]
        if found:
            key = shortcuts_of(self.app).hint("resume")
            self.notify(wording.draft_waits(found[-1].title, key), timeout=TOLD_S)

    async def start_new(self) -> None:
        self.branches.leave_edit()
        if self.chat.id is not None:
            draft = await self._journal.ask(lambda store: self._drafts.taken(store, None))
            self._swap_drafts(None, draft)
        self.chat = OpenChat(system=self._settings.system, thinking=self.chat.thinking)
        self._following.show(self.chat)
        self._remember_only([])
        await self._transcript.clear()
        self._tell_changed()

    async def open_conversation(self, conversation_id: int, at: int | None = None) -> None:
        """Show a stored conversation at once, its branch that ends `at` a message if that is
        given. Raises StoreError."""
        before, is_other = self.chat, conversation_id != self.chat.id

        def read(store: ConversationStore) -> tuple[Conversation, Draft | None]:
            stored = store.load(conversation_id, at)
            return stored, self._drafts.taken(store, conversation_id) if is_other else None

        stored, draft = await self._journal.ask(read)
        self.branches.leave_edit()
        if draft is not None:
            self._swap_drafts(conversation_id, draft)
        self.chat, unanswered = OpenChat.of(stored)
        self.chat.thinking = before.thinking
        asked = (m.message for m in self.chat.path if m.message.role == "user" and not m.client)
        self._remember_only([self._attaching.shelf.joined(question) for question in asked])
        await self._show_path()
        self._following.show(self.chat)
        self._tell_changed()
        if unanswered is not None and self._bring_back(unanswered, draft):
            self.notify(wording.UNANSWERED, timeout=8)

    def _text_of(self, draft: Draft) -> str:
        for paste in draft.pastes:
            self._attaching.shelf.folded(paste)
        return self._attaching.shelf.joined(draft.message)

    def _swap_drafts(self, conversation_id: int | None, draft: Draft) -> None:
        """What stands in the prompt stays with the conversation that is left, and its draft comes
        in the place of it."""
        self._drafts.keep()
        if self._prompt.text.strip():
            self.notify(wording.DRAFT_STAYS)
        self._prompt.put(self._text_of(draft))
        self._drafts.shown(conversation_id, draft)

    def _bring_back(self, question: ChatMessage, draft: Draft | None) -> bool:
        """Put a question that got no answer into the prompt, in front of a `draft` of its
        conversation; whether it was put there."""
        text = self._attaching.shelf.joined(question)
        if draft is None or not self._prompt.text:
            return self.restore(question)
        if not self._prompt.text.startswith(text):
            self._prompt.give_back(text)
        return True

    async def _show_path(self) -> None:
        await self._transcript.show(self.chat.path)
        self.run_worker(self._transcript.enrich(), group="enrich", exclusive=True)
        self.run_worker(self.branches.show_marks(), group="marks", exclusive=True)

    def focus_prompt(self) -> None:
        self._prompt.focus()

    def restore(self, question: ChatMessage) -> bool:
        """Put `question` into the prompt unless something stands there; whether it did."""
        text = self._attaching.shelf.joined(question)
        if not text or self._prompt.text:
            return False
        self._prompt.put(text)
        return True

    async def add_pictures(self, paths: str) -> None:
        """Put the picture files that `paths` names into the prompt. Raises UsageError; then, and
        if they are refused, what was asked for stands in an empty prompt."""
        is_added = False
        try:
            is_added = await self._attaching.add_named(paths)
        finally:
            if not is_added:
                self.restore(ChatMessage("user", f"/image {paths}"))

    async def add_screenshot(self) -> None:
        """Have the person choose a part of the screen. Raises UsageError where nothing can."""
        await self._attaching.add_screenshot()

    @property
    def shows_thoughts(self) -> bool:
        return self._transcript.shows_thoughts

    def show_thoughts(self, is_shown: bool) -> None:
        """Unfold, or fold, what the model thinks before it answers."""
        self._transcript.show_thoughts(is_shown)

    @property
    def settings(self) -> Settings:
        return self._settings

    async def set_sampling(self, values: Mapping[str, float]) -> None:
        """Have this conversation sampled so from now on. Raises StoreError."""
        self.chat.sampling, chat_id = values, self.chat.id
        if chat_id is not None:
            await self._journal.ask(lambda store: store.set_sampling(chat_id, values))

    def use_settings(self, settings: Settings) -> None:
        """What new conversations begin with, and all go by that say nothing else."""
        self._settings = settings

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
        self._completing.show()
        parsed = commands.parse(event.text)
        if parsed is None:
            self._send_when_whole(event.text)
            return
        command, name, argument = parsed
        argument = self._attaching.shelf.unfolded(argument)
        if command is None:
            self.notify(wording.no_command(name), severity="warning")
            self._prompt.give_back(event.text)
        else:
            self._enter(command, argument, event.text)

    def _send_when_whole(self, text: str) -> None:
        """Send, or wait for the pictures that are on their way or are mentioned."""
        if self._attaching.held:  # one at a time: this one is for later
            self._prompt.give_back(text)
        elif self._attaching.is_at_work or may_mention(text):
            self.run_worker(self._send_whole(text))
        else:
            self._send_or_queue(text)

    async def _send_whole(self, text: str) -> None:
        waiting = self._attaching.whole(text)
        self.call_later(self.show_state)
        whole, is_ready = await waiting
        self.show_state()
        if is_ready:
            self._send_or_queue(whole)
        else:
            self._prompt.give_back(whole)

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
        if left := self._completing.choose(event.key, event.text):
            self._submit(Prompt.Submitted(left))

    @on(OptionList.OptionSelected, "#completions")
    def _complete_clicked(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._complete(Prompt.Choose("tab"))

    @on(TextArea.Changed)
    def _prompt_changed(self) -> None:
        self._drafts.changed()
        self._completing.show()
        if self._prompt.text != self._queued:
            self._unqueue()

    @on(Prompt.Rewritten)
    def _draft_changed(self, event: Prompt.Rewritten) -> None:
        event.stop()
        self._drafts.changed()

    def _standing(self) -> Standing:
        text, shelf = self._attaching.held + self.branches.draft(), self._attaching.shelf
        return self.chat.id, Draft(shelf.parted(text), tuple(shelf.pastes(text)))

    @on(Prompt.Escaped)
    def _escape(self, event: Prompt.Escaped) -> None:
        """Out of an edit; twice in an empty prompt: into one."""
        event.stop()
        before_s, self._escaped_s = self._escaped_s, time.monotonic()
        is_second = self._escaped_s - before_s < SECOND_PRESS_S
        if not self.branches.leave_edit() and is_second and not self._prompt.text:
            self._enter(commands.named("edit"), "", "")

    @on(Prompt.PasteWanted)
    def _paste(self, event: Prompt.PasteWanted) -> None:
        event.stop()
        self.run_worker(self._attaching.begun(self._attaching.paste(event.is_asked)))

    @on(Prompt.Dropped)
    def _drop(self, event: Prompt.Dropped) -> None:
        event.stop()
        self.run_worker(self._attaching.begun(self._attaching.drop(event.text, event.raw)))

    def _say_for_a_moment(self, words: str) -> None:
        self.app.clear_notifications()  # a reason that is told again must not pile up
        self.notify(words, severity="warning", timeout=TOLD_S)

    @on(Prompt.Scroll)
    async def _scroll(self, event: Prompt.Scroll) -> None:
        event.stop()
        await self._transcript.scroll_towards(event.direction)

    @on(Transcript.Followed)
    def _show_following(self) -> None:
        self.show_state()

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
        can_send = not self.is_waiting and self._assistant is not None
        if self._is_refused(text):
            self._prompt.give_back(text)
            return
        if text.strip() and can_send:
            self._send(text)
            return
        self._prompt.give_back(text)
        if not text.strip():
            return
        if self.is_waiting:
            self._queued = "" if text == self._queued else text
            self.show_state()
        else:
            self.want_model()

    def want_model(self) -> None:
        self.post_message(self.ModelWanted())

    def _is_refused(self, text: str) -> bool:
        """Whether `text` has pictures and the open model takes none, which is told then."""
        refusal = self._attaching.refusal
        is_refused = bool(refusal and self._attaching.shelf.found(text))
        if is_refused:
            self._say_for_a_moment(refusal)
        return is_refused

    def _send_queued(self) -> None:
        if self._is_refused(self._queued):
            self._unqueue()
            return
        text, self._queued = self._queued, ""
        self._prompt.drop_front(text)
        self._send(text)

    def _send(self, text: str) -> None:
        if self._asked[-1:] != [text]:
            self._asked = [*self._asked, text]
        edit = self.branches.taken_edit()
        self.begin(self._attaching.shelf.parted(text), edit.fork if edit else None)
        if edit is not None and edit.draft:
            self._prompt.give_back(edit.draft)

    def begin(self, question: ChatMessage, fork: Fork | None = None) -> None:
        """Ask `question` at the end of the path, or where the `fork` is."""
        assert self._assistant is not None
        defaults = self._settings.sampling(self._assistant.info.sampling)
        sampling = defaults.params(**self.chat.sampling)
        self._turn = Turn(
            question, self.chat, self._assistant, sampling, self._journal, fork, self._hear
        )
        self._idle.clear()
        self._tell_changed()
        self.run_worker(self._answer(self._turn), group="turn")

    async def _answer(self, turn: Turn) -> None:
        fork = turn.fork
        if fork is not None:
            await self._transcript.cut(fork.kept + fork.is_again)
        if fork is None or not fork.is_again:
            await self._transcript.add_question(turn.question.text, turn.question.images)
        answer = self._answering = await self._transcript.add_answer()
        end = await turn.run(answer)
        if isinstance(end.error, ConversationWentOn):
            await self._transcript.take_back(answer)
        self.branches.last = turn.last_asked
        footer = usage_words(end.usage, end.stop_reason, end.status)
        if (self.branches.was_moved() or fork is not None) and end.decision is not None:
            footer += wording.kept_words(end.decision)
        if end.decision is not None and end.decision.images_left_out:
            footer += f" · {left_out_words(end.decision.images_left_out)}"
        if not end.answered:
            footer += wording.ASIDE
        await self._transcript.end_turn(answer, footer, is_aside=not end.answered)
        if fork is not None and not end.answered:
            await self._show_path()  # what was there before
            self.notify(wording.EARLIER_STAYS)
        elif end.answered:
            self.run_worker(self.branches.show_marks(), group="marks", exclusive=True)
        self._turn = None
        self._idle.set()
        await self._go_on(end, is_again=fork is not None and fork.is_again)
        self._tell_changed()
        if isinstance(end.error, ConversationWentOn):
            self.run_worker(self._take_in())

    def _hear(self, event: Event) -> None:
        if self._answering is not None:
            self._answering.hear(event)

    async def _go_on(self, end: TurnEnd, *, is_again: bool) -> None:
        """What comes after a turn: the error, the question back, the queued question."""
        if end.error is not None:
            self._unqueue()
            await self.tell_error(end.error)
        if self._queued:
            self._send_queued()
        elif not end.answered and not is_again:
            self.restore(end.question)

    # What others write in this conversation

    def agent_wrote(self, joined: Joined) -> None:
        """An agent of this process asked, or its reply has ended."""
        if joined.conversation_id != self.chat.id:
            return
        if joined.is_shown:
            self.run_worker(self._take_in())
        elif not self.chat.is_told_of_branch:  # once: agents ask often
            self.chat.is_told_of_branch = True
            key = shortcuts_of(self.app).hint("agents")
            self.notify(wording.beside(key), timeout=TOLD_S)

    async def _look(self) -> None:
        if not self.is_busy:
            await self._following.look()

    async def _take_in(self) -> None:
        if not self.is_busy:
            await self._following.take_in()

    async def _reopen(self, conversation_id: int) -> None:
        """The conversation went on from an earlier message: show that branch."""
        self.notify(wording.ANOTHER_BRANCH, timeout=TOLD_S)
        await self.open_conversation(conversation_id)

    def _others_wrote(self) -> None:
        if self._queued and not self.is_busy and not self._following.is_at_work:
            self._send_queued()
        self._tell_changed()

    def _remember_only(self, asked: list[str]) -> None:
        """Another conversation is shown: Up brings back what was asked in it."""
        self._asked = asked
        self._attaching.shelf.keep_only([self._prompt.text, *asked])

    def _unqueue(self) -> None:
        self._queued = ""
        self.show_state()

    # Showing

    def _tell_changed(self) -> None:
        self._prompt.remember(self._asked)
        self.show_state()
        self.post_message(self.TurnsChanged())

    def show_state(self) -> None:
        title, subtitle = wording.prompt_borders(
            is_queued=bool(self._queued),
            is_held=bool(self._attaching.held),
            is_busy=self.is_busy or self._following.is_at_work,
            opening=self._opening,
            is_at_end=self._transcript.is_at_end,
            editing=self.branches.editing,
        )
        self._prompt.border_title, self._prompt.border_subtitle = title, subtitle
