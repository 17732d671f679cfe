"""The commands about what is cached: tell of it, clear what is on disk, pin this conversation."""

import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from ds4tui.assistant import Assistant
from ds4tui.cache.kvstore import DiskTier
from ds4tui.errors import StoreError, UsageError
from ds4tui.tui import wording
from ds4tui.tui.background import in_thread
from ds4tui.tui.cached_words import cache_words, why_no_disk
from ds4tui.tui.chat_view import ChatView
from ds4tui.tui.disk import storing_problem
from ds4tui.tui.forecast import SOME_QUESTION
from ds4tui.tui.open_chat import OpenChat
from ds4tui.tui.words import counted, size_words

T = TypeVar("T")

ASKED_AGAIN_S = 30.0  # within which the same command is an answer to what it asked


class CachedHost(Protocol):
    """What is needed of the app."""

    @property
    def chat_view(self) -> ChatView: ...
    def notify(self, message: str) -> Any: ...
    def switch_disk(self) -> Any: ...
    def switch_decisions(self) -> Any: ...
    def keep_polling(self) -> None: ...


class Cached:
    """Belongs to the UI loop."""

    def __init__(self, host: CachedHost) -> None:
        self._host = host
        self._asked_to_clear_s = -ASKED_AGAIN_S

    async def tell(self, word: str) -> None:
        """What is held and what was decided last; `disk` and `decisions` show those panels, `clear`
        removes what is on disk. Raises StoreError and UsageError."""
        match word.lower():
            case "":
                await self._host.chat_view.say(*cache_words(self._assistant.stats))
            case "disk":
                self._host.switch_disk()
            case "decisions":
                self._host.switch_decisions()
            case "clear":
                await self._clear()
            case _:
                raise UsageError(
                    f"/cache does not know {word[:40]!r}.", "It takes disk, decisions or clear."
                )

    async def pin(self, word: str) -> None:
        """Keep what is on disk of this conversation whatever room is needed, or (`off`) no more.
        Raises StoreError and UsageError."""
        if word.lower() not in ("", "off"):
            raise UsageError(f"/pin takes off or nothing, not {word[:40]!r}.")
        chat, assistant, disk = self._host.chat_view.chat, self._assistant, self._disk
        if not chat.path:
            self._host.notify(wording.NOTHING_ASKED)
            return
        found = await in_thread("ds4tui-pin", lambda: stored_end(assistant, disk, chat))
        if found is None:
            raise UsageError(
                "Nothing of this conversation is on disk.", _why_not_stored(disk, assistant)
            )
        holder_id, tokens, length = found
        change = disk.unpin if word else disk.pin
        await in_thread("ds4tui-pin", lambda: _told(lambda: change(holder_id)))
        self._host.keep_polling()
        await self._host.chat_view.say(*(_unpinned() if word else _pinned(tokens, length)))

    async def _clear(self) -> None:
        disk = self._disk
        before_s, self._asked_to_clear_s = self._asked_to_clear_s, time.monotonic()
        if self._asked_to_clear_s - before_s > ASKED_AGAIN_S:
            used = size_words(disk.stats.used_bytes)
            self._host.notify(
                f"/cache clear again removes what is on disk of all models ({used}), but for what "
                "is pinned. Conversations stay; their KV states are computed anew."
            )
            return
        self._asked_to_clear_s = -ASKED_AGAIN_S
        freed = await in_thread("ds4tui-clear", lambda: _told(disk.clear))
        self._host.keep_polling()
        self._host.notify(f"{size_words(freed)} were removed from the disk.")

    @property
    def _assistant(self) -> Assistant:
        assistant = self._host.chat_view.assistant
        if assistant is None:
            raise UsageError("No model is open, so nothing is cached.", "/model NAME opens one.")
        return assistant

    @property
    def _disk(self) -> DiskTier:
        disk = self._assistant.disk
        if disk is None:
            raise UsageError(*why_no_disk(self._assistant.stats))
        return disk


def stored_end(assistant: Assistant, disk: DiskTier, chat: OpenChat) -> tuple[int, int, int] | None:
    """(holder, tokens, length): the last page that `disk` has of a conversation, how many tokens
    of it are stored up to there, and how many it has in all. None if nothing is stored but what
    others may share: its system prompt and tools. Blocks."""
    asked = chat.messages(SOME_QUESTION, assistant.info)
    head = [message for message in asked[:1] if message.role == "system"]
    wanted = assistant.render(asked, chat.tools)
    shared = assistant.render([*head, SOME_QUESTION], chat.tools).common_prefix(wanted)
    if not disk.stats.pages:
        return None
    pages, _ = disk.offers(wanted)
    ends = [(min(page.end, page.common), page.holder_id) for page in pages]
    tokens, holder_id = max(ends, default=(0, 0))
    return (holder_id, tokens, len(wanted)) if tokens > shared else None


def _why_not_stored(disk: DiskTier, assistant: Assistant) -> str:
    if problem := storing_problem(disk.stats):
        return f"{problem[:1].upper()}{problem[1:]}."
    if assistant.stats.is_storing or disk.stats.queued_bytes:
        return "It is being stored: ask again in a moment."
    return "Turns of some length are stored when the engine rests."


def _told(call: Callable[[], T]) -> T:
    """What the disk objects to, as words. Raises StoreError and UsageError."""
    try:
        return call()
    except KeyError as exc:
        raise UsageError("It was evicted meanwhile.", "Ask the conversation something.") from exc
    except OSError as exc:
        raise StoreError(f"The disk refused it: {exc.strerror or exc}.") from exc


def _pinned(tokens: int, length: int) -> wording.Words:
    return (
        f"This conversation is pinned: {tokens:,} of its {counted(length, 'token')} are on disk "
        "and stay there whatever room is needed.",
        "What comes is pinned with it. /pin off takes it back, /disk lists what is stored.",
    )


def _unpinned() -> wording.Words:
    return (
        "This conversation is not pinned: it goes when room is needed and others are worth more.",
        "",
    )
