"""What others write in the conversation on the screen: an agent over HTTP, or another app.

The store has it; this keeps path and transcript as the store has them. Told at once of what
agents of this process do, and looking now and then whether another process changed the file. A
reply at work is shown as it is written: by its events in this process, else by what is stored.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from ds4tui.agents import Agents, Watched
from ds4tui.chat.store import StoredMessage
from ds4tui.errors import StoreError
from ds4tui.events import Decision, Event, Failed, Finished, PrefillProgress, Queued
from ds4tui.tui.background import in_thread
from ds4tui.tui.inbox import Inbox
from ds4tui.tui.journal import Journal
from ds4tui.tui.messages import Answer
from ds4tui.tui.open_chat import OpenChat
from ds4tui.tui.panels import decision_words, prefill_words, stored_usage_words
from ds4tui.tui.transcript import Transcript

log = logging.getLogger(__name__)

# Looking costs microseconds; what is new is read only if the file was changed.
LOOK_EVERY_S = 1.0
# Where files cannot be locked: what another process has not changed for so long is not written any
# more.
STALE_S = 60.0


class Following:
    """Belongs to the UI loop. `reopen` shows a conversation anew whose shown branch is another
    one by now; `changed` is called when something was added or a reply has ended."""

    def __init__(
        self,
        transcript: Transcript,
        journal: Journal,
        agents: Agents,
        reopen: Callable[[int], Awaitable[None]],
        changed: Callable[[], None],
    ) -> None:
        self._transcript = transcript
        self._journal = journal
        self._agents = agents
        self._reopen = reopen
        self._changed = changed
        self._chat = OpenChat()
        self._version = -1
        self._task: asyncio.Task[None] | None = None
        self._reading = asyncio.Lock()

    @property
    def is_at_work(self) -> bool:
        """Whether somebody else's reply is being written at the end of what is shown."""
        return self._chat.at_work is not None

    def show(self, chat: OpenChat) -> None:
        """Another conversation is on the screen, as it was stored."""
        self.stop()
        self._chat = chat
        if chat.at_work is not None:
            self._task = asyncio.create_task(self._follow(chat, chat.at_work))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def look(self) -> None:
        """Take in what another process has written, if it has."""
        if self._chat.id is None:
            return
        try:
            version = await self._journal.ask(lambda store: store.version)
        except StoreError as exc:  # what is written next meets it, and tells it
            log.debug("the store could not be looked at: %s", exc)
            return
        if version != self._version:
            is_first, self._version = self._version == -1, version
            if not is_first:
                await self.take_in()

    async def take_in(self) -> None:
        """Bring path and transcript to where the store is. Nothing is asked of it while a reply
        is being written here: its end asks."""
        try:
            async with self._reading:
                await self._take_in()
        except StoreError as exc:
            log.warning("what others wrote could not be read: %s", exc)

    async def _take_in(self) -> None:
        chat = self._chat
        if chat.id is None or self.is_at_work:
            return
        chat_id, leaf_id = chat.id, chat.leaf_id
        end = await self._journal.ask(lambda store: store.after(chat_id, leaf_id))
        partial = [m for m in end.messages[-1:] if m.status == "partial"]
        is_at_work = bool(partial) and await self._is_written(chat, partial[0].id)
        if self._chat is not chat or chat.leaf_id != leaf_id:
            return  # another one is shown by now, or a turn began
        if end.leaf_id == chat.stored_leaf_id:
            return
        if not end.is_known:
            await self._reopen(chat_id)
            return
        chat.stored_leaf_id = end.leaf_id
        added = list(end.messages)
        if is_at_work:
            chat.at_work = added.pop()
        chat.path += added
        await self._transcript.add_stored(added)
        if chat.at_work is not None:
            self._task = asyncio.create_task(self._follow(chat, chat.at_work))
        self._changed()

    async def _follow(self, chat: OpenChat, reply: StoredMessage) -> None:
        """Show a reply until it is whole, then whatever came after it."""
        try:
            answer = await self._transcript.add_answer()
            whole = await self._until_whole(chat, reply, answer)
            await self._end(chat, whole, answer)
            self._task = None
            await self.take_in()
        except Exception:  # the task's root: the conversation can be opened again
            log.exception("a reply of others could not be shown")
            chat.at_work = None
        self._changed()

    async def _until_whole(
        self, chat: OpenChat, reply: StoredMessage, answer: Answer
    ) -> StoredMessage:
        try:
            watched = self._agents.of_reply(reply.id)
            if watched is not None:
                await self._hear(watched, answer)
            return await self._written(chat, reply, answer)
        except StoreError as exc:
            log.warning("a reply could not be read any more: %s", exc)
            return reply

    async def _hear(self, watched: Watched, answer: Answer) -> None:
        """The events of a reply of this process, until its last word is in the store."""
        inbox = Inbox()
        watched.follow(inbox.push)
        try:
            is_over = watched.is_over  # asked after following: what comes then is heard
            while not is_over:
                events = await inbox.batch()
                is_over = any(isinstance(event, Finished | Failed) for event in events)
                for event in events:
                    answer.hear(event)
                await _show(answer, watched.text, _progress(events))
                if not is_over:
                    await inbox.rest()
        finally:
            watched.unfollow(inbox.push)
        await in_thread("ds4tui-written", self._agents.wait_written)

    async def _written(self, chat: OpenChat, reply: StoredMessage, answer: Answer) -> StoredMessage:
        """The reply of the store when it is whole, or nobody writes it any more."""
        while True:
            now = await self._journal.ask(lambda store: store.message(reply.id))
            await _show(answer, now.message.text)
            if now.status != "partial" or not await self._is_written(chat, reply.id):
                return now
            await asyncio.sleep(LOOK_EVERY_S)

    async def _is_written(self, chat: OpenChat, reply_id: int) -> bool:
        """Whether some process is at work on a reply that is not whole."""
        chat_id = chat.id
        assert chat_id is not None
        is_held = await self._journal.ask(lambda store: store.writing.is_held(reply_id))
        if is_held is not None:
            return is_held
        end = await self._journal.ask(lambda store: store.after(chat_id, chat.stored_leaf_id))
        return time.time() - end.used_s < STALE_S

    async def _end(self, chat: OpenChat, whole: StoredMessage, answer: Answer) -> None:
        footer = stored_usage_words(whole.stats, whole.status)
        await self._transcript.end_stored(answer, whole, footer)
        chat.path.append(replace(whole, parent_id=chat.leaf_id))
        chat.at_work = None


async def _show(answer: Answer, text: str, progress: str = "") -> None:
    if not text and progress:
        answer.show_progress(progress)
    if len(text) > len(answer.text) and text.startswith(answer.text):
        answer.show_progress("writing")
        await answer.add_text(text[len(answer.text) :])


def _progress(events: list[Event]) -> str:
    words = ""
    for event in events:
        match event:
            case Decision():
                words = f"{decision_words(event)}: {event.reason}"
            case PrefillProgress():
                words = prefill_words(event)
            case Queued(ahead=ahead) if ahead:
                words = f"waiting: {ahead} before this one"
    return words
