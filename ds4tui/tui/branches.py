"""Acts on the conversation on the screen that make or show another branch of it: one more answer,
a question edited, a conversation forked off, going from branch to branch.

Each tells before it is done what it will keep and drop of what is resident. Nothing is ever
overwritten: what was there stays a branch of the tree.
"""

import logging
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ds4tui.assistant import Assistant
from ds4tui.cache.foreseen import Foreseen
from ds4tui.chat.branching import Tree, copied, tree
from ds4tui.chat.messages import Message
from ds4tui.errors import ConversationWentOn, Ds4Error, StoreError
from ds4tui.tui import wording
from ds4tui.tui.background import in_thread
from ds4tui.tui.forecast import SOME_QUESTION, Forecast, LastAsked, forecast
from ds4tui.tui.journal import Journal
from ds4tui.tui.open_chat import Fork, OpenChat
from ds4tui.tui.prompt import Prompt
from ds4tui.tui.shelf import Shelf
from ds4tui.tui.transcript import Transcript

log = logging.getLogger(__name__)


@dataclass
class Editing:
    """A question of the conversation that stands in the prompt to be asked anew, `question` as it
    was. `draft` stood there before; `words` say which it is, and what it costs."""

    fork: Fork
    question: str
    draft: str
    words: str


class BranchHost(Protocol):
    """What is needed of the chat on the screen."""

    chat: OpenChat

    @property
    def assistant(self) -> Assistant | None: ...
    @property
    def is_waiting(self) -> bool: ...
    def begin(self, question: Message, fork: Fork | None = None) -> None: ...
    async def open_conversation(self, conversation_id: int) -> None: ...
    def show_state(self) -> None: ...
    def want_model(self) -> None: ...
    def notify(self, message: str) -> Any: ...


class Branches:
    """Belongs to the UI loop."""

    def __init__(
        self,
        host: BranchHost,
        journal: Journal,
        transcript: Transcript,
        prompt: Prompt,
        shelf: Shelf,
    ) -> None:
        self._host, self._journal = host, journal
        self._transcript, self._prompt, self._shelf = transcript, prompt, shelf
        self._editing: Editing | None = None
        self.last = LastAsked()
        self._is_moved = False  # to another branch, conversation or system prompt

    # One more answer

    async def regenerate(self) -> None:
        """One more answer to the last question; the one that there is stays beside it."""
        chat = self._host.chat
        places = chat.questions
        if not places:
            self._host.notify(wording.NOTHING_ASKED)
        elif self._host.assistant is None:
            self._host.want_model()
        else:
            fork = Fork(places[-1], is_again=True)
            question = chat.path[fork.kept].message
            words = wording.forecast_words(await self.forecast(chat, question, fork))
            if not self._host.is_waiting and self._host.chat is chat and chat.questions == places:
                self._host.notify(wording.another_answer(words))
                self._host.begin(question, fork)

    # Editing

    @property
    def editing(self) -> str:
        """What is edited and what that costs, in words; "" if nothing is."""
        return self._editing.words if self._editing else ""

    async def edit(self, place: int) -> None:
        """Bring the question at `place` of the path back into the prompt: sent, it is a branch
        beside what it was."""
        self.leave_edit()
        chat, fork = self._host.chat, Fork(place)
        number, count = chat.questions.index(place) + 1, len(chat.questions)
        question = self._shelf.joined(chat.path[place].message)
        words = wording.editing(number, count, "")
        self._editing = editing = Editing(fork, question, self._prompt.text, words)
        self._prompt.put(question)
        self._prompt.focus()
        self._host.show_state()
        cost = await self.forecast(chat, SOME_QUESTION, fork)
        editing.words = wording.editing(number, count, wording.forecast_words(cost))
        self._host.show_state()

    def draft(self) -> str:
        """What was typed and not sent: also what stood in the prompt before an edit."""
        editing, text = self._editing, self._prompt.text
        if editing is None:
            return text
        typed = "" if text == editing.question else text
        return "\n".join(filter(str.strip, (typed, editing.draft)))

    def leave_edit(self) -> bool:
        """Leave what is edited as it was; the draft that stood in the prompt comes back. Whether
        anything was edited."""
        editing = self.taken_edit()
        if editing is not None:
            self._prompt.put(editing.draft)
            self._host.show_state()
        return editing is not None

    def taken_edit(self) -> Editing | None:
        """What is edited, which is done with now."""
        editing, self._editing = self._editing, None
        return editing

    # Other branches and conversations

    async def fork(self, place: int) -> None:
        """A new conversation of what stands before the question at `place`, which comes into its
        prompt. Raises StoreError."""
        chat = self._host.chat
        chat_id, question, before = chat.id, chat.path[place].message, chat.path[:place]
        assert chat_id is not None
        cost = await self.forecast(chat, SOME_QUESTION, Fork(place))
        new = await self._journal.ask(lambda store: copied(store, chat_id, before))
        self.leave_edit()
        await self._host.open_conversation(new)
        self._is_moved = True
        self._prompt.put(self._shelf.joined(question))
        self._host.notify(wording.forked(wording.forecast_words(cost)))

    async def tree(self) -> Tree | None:
        """The branches of the conversation; None if there is none yet. Raises StoreError."""
        chat_id = self._host.chat.id
        if chat_id is None:
            return None
        return await self._journal.ask(lambda store: tree(store, chat_id))

    async def show_branch(self, leaf_id: int) -> None:
        """Go to the branch that ends at `leaf_id`. Raises StoreError, and ConversationWentOn."""
        chat = self._host.chat
        chat_id, expected = chat.id, chat.stored_leaf_id
        assert chat_id is not None
        if not await self._journal.ask(lambda s: s.replace_leaf(chat_id, expected, leaf_id)):
            raise ConversationWentOn
        await self._host.open_conversation(chat_id)
        self._is_moved = True
        cost = await self.forecast(self._host.chat)
        self._host.notify(wording.branch_shown(wording.forecast_words(cost)))

    async def set_system(self, text: str) -> Forecast | None:
        """Give the conversation another system prompt; what that costs, if anything is lost by
        it. Raises StoreError."""
        chat = self._host.chat
        is_free = text == chat.system or not chat.path
        cost = None if is_free else await self.forecast(replace(chat, system=text))
        chat.system = text
        self._is_moved = self._is_moved or not is_free
        chat_id = chat.id
        if chat_id is not None:
            await self._journal.ask(lambda store: store.set_system(chat_id, text))
        return cost

    # What is told

    def was_moved(self) -> bool:
        """Whether something was done since the last question that the next one pays for: it says
        then what was kept and dropped."""
        was_moved, self._is_moved = self._is_moved, False
        return was_moved

    async def forecast(
        self, chat: OpenChat, question: Message = SOME_QUESTION, fork: Fork | None = None
    ) -> Forecast | None:
        """What asking `question` would keep and drop; None if that cannot be told."""
        assistant = self._host.assistant
        if assistant is None:
            return None
        wanted = chat.messages(question, assistant.info, fork)
        cost = await forecast(assistant, self.last, wanted, chat.thinking)
        if cost is None or cost.is_resident:
            return cost
        try:
            told = await self.foreseen(chat, question, fork)
        except Ds4Error as exc:  # the question will meet it, and tell
            log.info("what is held of a conversation cannot be told: %s", exc)
            return cost
        return replace(cost, held=told.in_memory + told.on_disk) if told else cost

    async def foreseen(
        self, chat: OpenChat, question: Message = SOME_QUESTION, fork: Fork | None = None
    ) -> Foreseen | None:
        """What the next question in `chat` would cost, from wherever its tokens are held; None if
        no model is open. Raises what asking it would."""
        assistant = self._host.assistant
        if assistant is None:
            return None
        wanted = chat.messages(question, assistant.info, fork)
        return await in_thread(
            "ds4tui-foresee", lambda: assistant.foreseen(wanted, chat.tools, chat.thinking)
        )

    async def show_marks(self) -> None:
        """Show beside each message which it is of several at its place."""
        chat = self._host.chat
        try:
            found = await self.tree()
        except StoreError as exc:
            log.warning("the branches could not be read: %s", exc)
            return
        is_open = bool(self._transcript.app.screen_stack)  # not closed meanwhile
        if found is not None and is_open and self._host.chat is chat:
            self._transcript.mark([wording.mark(*found.place(m.id)) for m in chat.path])
