"""The conversation store as the UI loop uses it: every call on one thread, in order, awaited.

If the file fails at work (a full disk, a lock that stays), the open conversation moves to a
store in memory and the app goes on; `problem` then says that nothing is kept.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ds4tui.chat.branching import begin_again
from ds4tui.chat.messages import Message
from ds4tui.chat.store import ConversationStore, MessageStatus
from ds4tui.errors import StoreError
from ds4tui.tui.open_chat import Fork, OpenChat

log = logging.getLogger(__name__)

T = TypeVar("T")

Writing = Callable[[ConversationStore], None]


def write_nothing(store: ConversationStore) -> None:
    """Writes nothing."""


class Journal:
    """Belongs to the UI loop. `on_problem` is called there when the store stops keeping."""

    def __init__(self, store: ConversationStore, on_problem: Callable[[StoreError], None]) -> None:
        self.store = store
        self._on_problem = on_problem
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ds4tui-journal")
        self._behind: asyncio.Future[None] | None = None
        self._is_closed = False

    async def ask(self, call: Callable[[ConversationStore], T]) -> T:
        """The result of `call(store)`. Raises StoreError, also once the journal is closed."""
        if self._is_closed:
            raise StoreError("The conversations are closed: ds4tui ends.")
        return await self._run(call)

    async def _run(self, call: Callable[[ConversationStore], T]) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: call(self.store))

    async def begin_turn(
        self, chat: OpenChat, question: Message, fork: Fork | None = None
    ) -> tuple[int, int]:
        """Keep `question` (and the conversation, if it is new) before work on it starts, at the
        end of the path or where the `fork` is.

        Returns the ids of the question and of its answer. Raises ConversationWentOn if somebody
        else went on with the conversation; else it never fails: see the module's text.
        """
        try:
            return await self.ask(lambda store: _begin_turn(store, chat, question, fork))
        except StoreError as exc:
            self._move_to_memory(chat, exc)
            return await self.ask(lambda store: _begin_turn(store, chat, question, fork))

    async def end_turn(
        self,
        answer_id: int,
        text: str,
        sampled_ids: Sequence[int] | None,
        status: MessageStatus,
        stats: dict[str, Any],
        reasoning: str = "",
    ) -> None:
        """Write an answer's last word."""
        ids = None if sampled_ids is None else tuple(sampled_ids)
        try:
            await self.ask(
                lambda s: s.update_message(answer_id, text, ids, status, stats, reasoning)
            )
        except StoreError as exc:
            self._on_problem(exc)

    def note_progress(
        self, answer_id: int, text: str, sampled_ids: tuple[int, ...], stats: dict[str, Any]
    ) -> None:
        """Write what there is of an answer by now, without waiting for it; skipped while the
        one before is still being written."""
        if self._is_closed or (self._behind is not None and not self._behind.done()):
            return
        store = self.store
        # Handed in at once, not from a task: what ends the turn must come after it.
        self._behind = asyncio.get_running_loop().run_in_executor(
            self._thread,
            lambda: store.update_message(answer_id, text, sampled_ids, "partial", stats),
        )
        self._behind.add_done_callback(_log_failure)

    async def set_leaf(self, chat: OpenChat) -> None:
        """Keep that the conversation now ends where `chat` ends, unless others went on with it."""
        chat_id, before, leaf_id = chat.id, chat.stored_leaf_id, chat.leaf_id
        if chat_id is not None:
            try:
                if await self.ask(lambda store: store.replace_leaf(chat_id, before, leaf_id)):
                    chat.stored_leaf_id = leaf_id
            except StoreError as exc:
                self._on_problem(exc)

    def hand_in(self, writing: Writing) -> None:
        """Have something written in its turn, without waiting for it; a failure is logged."""
        if not self._is_closed:
            written = asyncio.get_running_loop().run_in_executor(
                self._thread, lambda: writing(self.store)
            )
            written.add_done_callback(_log_failure)

    async def close(self, last: Writing = write_nothing) -> None:
        """Wait for what was handed in, write what is `last`, close the store."""
        try:
            await self.ask(last)
        except StoreError:
            log.warning("the draft could not be kept", exc_info=True)
        self._is_closed = True  # before it is waited for: who asks meanwhile comes too late
        await self._run(lambda store: store.close())
        self._thread.shutdown(wait=False)

    def _move_to_memory(self, chat: OpenChat, problem: StoreError) -> None:
        log.error("the conversation goes on in memory only: %s", problem)
        self._thread.submit(self.store.close)
        self.store = ConversationStore.in_memory(problem)
        path, chat.path, chat.id, chat.stored_leaf_id = chat.path, [], None, None
        if path:
            chat.id = self.store.create(chat.title, chat.model, chat.system, chat.tools).id
            self.store.set_sampling(chat.id, chat.sampling)
        for stored in path:
            chat.add(self.store, stored)
        self._on_problem(problem)


def _log_failure(written: asyncio.Future[None]) -> None:
    # No more than logged: it is written again, at the latest at the end, and told about then.
    if not written.cancelled() and written.exception() is not None:
        log.warning("what was written could not be kept", exc_info=written.exception())


def _begin_turn(
    store: ConversationStore, chat: OpenChat, question: Message, fork: Fork | None
) -> tuple[int, int]:
    if chat.id is None:
        chat.name_after(question)
        chat.id = store.create(chat.title, chat.model, chat.system).id
        store.set_sampling(chat.id, chat.sampling)
    if fork is not None and fork.is_again:
        asked = chat.path[fork.kept].id
        answered = begin_again(store, chat.id, asked, chat.stored_leaf_id)
    else:
        parent = chat.end_of(fork)
        asked, answered = store.begin_turn(chat.id, parent, question, chat.stored_leaf_id)
    chat.stored_leaf_id = answered
    return asked, answered
