"""The conversation on the screen: its path from the first message to the last, as values.

It says what a next question is asked on top of. Turns that never got an answer are not part of
it: they stay in the store as branches that no leaf points at.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ds4tui.assistant import ModelInfo
from ds4tui.chat.messages import Message, Tool
from ds4tui.chat.store import Conversation, ConversationStore, StoredMessage, title_of


@dataclass(frozen=True, slots=True)
class Fork:
    """Where a question goes that does not go on at the end of a path: behind its first `kept`
    messages. `is_again`: it stands there already and gets one more answer."""

    kept: int
    is_again: bool = False


@dataclass
class OpenChat:
    """Belongs to the UI loop. `id` is None until the first question is asked."""

    title: str = ""
    model: str = ""
    system: str = ""
    id: int | None = None
    path: list[StoredMessage] = field(default_factory=list)
    tools: tuple[Tool, ...] = ()  # what an agent offered to the model in it
    stored_leaf_id: int | None = None  # where the store's path ended when it was last looked at
    at_work: StoredMessage | None = None  # an agent's reply behind the path, not whole yet
    sampling: Mapping[str, float] = field(default_factory=dict)  # what a person set for it
    thinking: bool | None = None  # whether the model is to think; None: as its template has it
    is_told_of_branch: bool = False  # that an agent goes on beside the path

    @classmethod
    def of(cls, stored: Conversation) -> tuple["OpenChat", Message | None]:
        """A loaded conversation, and the question at its end that got no answer (None if none).

        Such a question is taken off the path: the app puts it back into the prompt.
        """
        path = list(stored.path)
        unanswered = at_work = None
        if path and path[-1].status == "partial" and path[-1].client:
            at_work = path.pop()
        elif path and path[-1].status == "partial" and not path[-1].message.text:
            path.pop()
            unanswered = path.pop().message if path else None
        chat = cls(stored.title, stored.model, stored.system, stored.id, path, stored.tools)
        chat.stored_leaf_id, chat.at_work = stored.leaf_id, at_work
        chat.sampling = stored.sampling
        return chat, unanswered

    @property
    def leaf_id(self) -> int | None:
        return self.path[-1].id if self.path else None

    def end_of(self, fork: Fork | None) -> int | None:
        """The message behind which a question is put."""
        before = self.path[: fork.kept] if fork else self.path
        return before[-1].id if before else None

    def name_after(self, question: Message) -> None:
        names = (image.name for image in question.images)
        self.title = title_of(question.text) or title_of(next(names, ""))

    @property
    def questions(self) -> list[int]:
        """The places of a person's questions in the path."""
        return [
            at
            for at, stored in enumerate(self.path)
            if stored.message.role == "user" and not stored.client
        ]

    def messages(
        self, question: Message, info: ModelInfo, fork: Fork | None = None
    ) -> list[Message]:
        """What the model is asked: system prompt, path, question. Sampled ids are handed on
        only to the model whose ids they are."""
        asked = [Message("system", self.system)] if self.system else []
        before = self.path[: fork.kept] if fork else self.path
        asked += [_for_model(stored, info.ids_key) for stored in answered(before)]
        return [*asked, question]

    def add(self, store: ConversationStore, stored: StoredMessage) -> None:
        """Add a message to `store` and to the end of the path."""
        assert self.id is not None
        new_id = store.add_message(
            self.id, self.leaf_id, stored.message, stored.status, stored.stats
        )
        store.set_leaf(self.id, new_id)
        self.stored_leaf_id = new_id
        self.path.append(replace(stored, id=new_id, parent_id=self.leaf_id))


def answered(path: Sequence[StoredMessage]) -> list[StoredMessage]:
    """The path without replies that say nothing, and without the questions that got them."""
    said: list[StoredMessage] = []
    for stored in path:
        message = stored.message
        if message.role != "assistant" or message.text or message.tool_calls:
            said.append(stored)
        elif stored.status == "complete":
            said.append(stored)
        elif said and said[-1].message.role == "user":
            said.pop()
    return said


def _for_model(stored: StoredMessage, key: str) -> Message:
    stats: dict[str, Any] = stored.stats or {}
    if stored.message.sampled_ids is None or stats.get("ids_of") == key:
        return stored.message
    return replace(stored.message, sampled_ids=None)
