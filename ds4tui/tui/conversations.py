"""The commands about stored conversations: list them, write one to a file, take one in.

Raises StoreError and UsageError, which the app tells.
"""

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from textual.screen import Screen

from ds4tui.chat.finding import delete, find, restore
from ds4tui.chat.store import Conversation, ConversationSummary
from ds4tui.chat.transfer import added, as_markdown, as_openai, from_openai
from ds4tui.errors import ContextOverflow, Ds4Error, UsageError
from ds4tui.files import write_atomically
from ds4tui.tui import wording
from ds4tui.tui.background import in_thread
from ds4tui.tui.chat_view import ChatView
from ds4tui.tui.journal import Journal
from ds4tui.tui.open_chat import OpenChat
from ds4tui.tui.screens.resume import ResumeScreen
from ds4tui.tui.terminal_text import one_line

log = logging.getLogger(__name__)

T = TypeVar("T")

LISTED_CONVERSATIONS = 1000
NAME_CHARS = 60


class ConversationsHost(Protocol):
    """What is needed of the app."""

    @property
    def chat_view(self) -> ChatView: ...
    async def push_screen_wait(self, screen: Screen[Any]) -> Any: ...
    def notify(self, message: str) -> Any: ...


class Conversations:
    """Belongs to the UI loop. With `hides_agents` the list begins with persons' ones only."""

    def __init__(
        self, host: ConversationsHost, journal: Journal, hides_agents: bool = False
    ) -> None:
        self._host, self._journal = host, journal
        self._hides_agents = hides_agents

    async def choose(self) -> None:
        found = await self.listed(with_agents=not self._hides_agents)
        if not found and not (self._hides_agents and await self.listed(with_agents=True)):
            self._host.notify("There are no conversations yet.")
            return
        chosen = await self._host.push_screen_wait(ResumeScreen(found, self, self._hides_agents))
        if chosen is None:
            return
        view = self._host.chat_view
        await view.open_conversation(chosen)
        if view.chat.path:
            self._host.notify(wording.resumed(await self._cost(view.chat)))

    # What the list of them asks

    async def listed(self, with_agents: bool) -> tuple[ConversationSummary, ...]:
        by_persons = not with_agents
        return await self._journal.ask(
            lambda store: store.list(LISTED_CONVERSATIONS, by_persons=by_persons)
        )

    async def find(self, words: str) -> dict[int, str]:
        return await self._journal.ask(lambda store: find(store, words))

    async def drafts(self) -> dict[int, str]:
        found = await self._host.chat_view.drafts()
        return {id_: draft.words for id_, draft in found.items()}

    async def cost(self, conversation_id: int) -> str:
        chat = self._host.chat_view.chat
        if chat.id != conversation_id:
            stored = await self._journal.ask(lambda store: store.load(conversation_id))
            chat, _ = OpenChat.of(stored)
            chat.thinking = self._host.chat_view.chat.thinking
        return await self._cost(chat)

    async def _cost(self, chat: OpenChat) -> str:
        """What the next question in it would cost, in words; "" where that cannot be told."""
        try:
            return wording.foreseen(await self._host.chat_view.branches.foreseen(chat))
        except ContextOverflow as exc:
            return wording.does_not_fit(exc)
        except Ds4Error as exc:  # the next question will meet it, and tell
            log.info("what a conversation costs cannot be told: %s", exc)
            return ""

    async def rename(self, conversation_id: int, title: str) -> None:
        view = self._host.chat_view
        await self._journal.ask(lambda store: store.rename(conversation_id, title))
        if view.chat.id == conversation_id:
            view.chat.title = title
            view.post_message(ChatView.TurnsChanged())

    async def delete(self, conversation_id: int) -> None:
        await self._journal.ask(lambda store: delete(store, conversation_id))

    async def restore(self, conversation_id: int) -> None:
        await self._journal.ask(lambda store: restore(store, conversation_id))

    # Files

    async def export(self, name: str) -> None:
        """Write what is shown to a file that does not exist yet: Markdown with its pictures beside
        it, or JSON where `name` ends so; without a name, Markdown named by the title."""
        chat_id = self._host.chat_view.chat.id
        if chat_id is None:
            self._host.notify(wording.NOTHING_ASKED)
            return
        chat = await self._journal.ask(lambda store: store.load(chat_id))
        path = await in_thread("ds4tui-export", lambda: _blocking(lambda: exported(chat, name)))
        self._host.notify(wording.exported(path, len(chat.path)))

    async def take_in(self, name: str) -> None:
        """Read a file of OpenAI's messages as a new conversation, and show it."""
        if not name:
            raise UsageError("/import needs the path of a file.", "/import PATH.json takes it in.")
        text = await in_thread("ds4tui-import", lambda: _blocking(lambda: _read(name)))
        chat = await in_thread("ds4tui-import", lambda: from_openai(text))
        new = await self._journal.ask(lambda store: added(store, chat))
        await self._host.chat_view.open_conversation(new)
        self._host.notify(wording.taken_in(len(chat.messages)))


def exported(chat: Conversation, name: str) -> Path:
    """The file that `chat` was written to. Raises UsageError where one of that name is there, and
    OSError."""
    path = Path(name).expanduser() if name else _free(Path.cwd() / f"{file_stem(chat.title)}.md")
    path = path.absolute()
    if path.exists():
        raise UsageError(f"{path} is there already.", "/export OTHER.md or .json writes another.")
    if path.suffix.lower() == ".json":
        write_atomically(path, as_openai(chat).encode("utf-8", "replace"))
        return path
    folder = path.with_name(f"{path.stem}-images")
    files = as_markdown(chat, folder.name.replace(" ", "%20"))
    for image, data in files.images.items():
        write_atomically(folder / image, data)
    write_atomically(path, files.text.encode("utf-8", "replace"))
    return path


def file_stem(title: str) -> str:
    """A file's name made of a title: letters, digits and hyphens."""
    words = re.sub(r"[^\w]+", "-", one_line(title)).strip("-_")[:NAME_CHARS].strip("-_")
    return words or "conversation"


def _free(path: Path) -> Path:
    names = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in range(2, 10_000))
    return path if not path.exists() else next(each for each in names if not each.exists())


def _read(name: str) -> str:
    return Path(name.strip("'\"")).expanduser().read_text(encoding="utf-8", errors="replace")


def _blocking(call: Callable[[], T]) -> T:
    """What the file system objects to, as words. Raises UsageError."""
    try:
        return call()
    except OSError as exc:
        raise UsageError(f"{exc.filename}: {exc.strerror}.", "Choose another path.") from exc
