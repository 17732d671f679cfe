"""The app in a headless terminal, driven by keys; predicates are polled, nothing sleeps."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from textual.app import ScreenStackError
from textual.pilot import Pilot
from textual.widgets import Static

from ds4tui.agents import Agents
from ds4tui.app import Ds4App
from ds4tui.assistant import Assistant
from ds4tui.chat.store import ConversationStore
from ds4tui.config import load_settings
from ds4tui.tui.chat_view import ChatView
from ds4tui.tui.graphics import Way
from ds4tui.tui.messages import Answer, Notice, Question
from ds4tui.tui.prompt import Prompt
from ds4tui.tui.shortcuts import Shortcuts
from ds4tui.tui.transcript import Transcript
from tests.fakes import FakeAssistant

TIMEOUT_S = 20.0


class FakeServer:
    url = "http://127.0.0.1:8484"

    def __init__(self, warning: str = "") -> None:
        self.warning = warning
        self.is_stopped = False

    def stop(self, timeout_s: float = 5.0) -> None:
        self.is_stopped = True


class Driver:
    """What a person sees and does."""

    def __init__(self, app: Ds4App, pilot: Pilot[None]) -> None:
        self.app = app
        self.pilot = pilot

    async def until(self, holds: Callable[[], Any], what: str = "") -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not holds():
            if time.monotonic() > deadline:
                raise AssertionError(f"it never came to: {what or holds}\n{self.screen_text()}")
            with suppress(ScreenStackError):  # the app has ended: perhaps what we wait for
                await self.pilot.pause()
            await asyncio.sleep(0.005)

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def type(self, text: str) -> None:
        await self.pilot.press(*text)

    async def ask(self, text: str) -> None:
        """Put a question and wait until it is at work."""
        count = len(self.questions)
        self.prompt.put(text)
        await self.pilot.pause()
        await self.pilot.press("enter")
        await self.until(lambda: len(self.questions) == count + 1, f"{text!r} is asked")

    async def answered(self) -> None:
        await self.until(lambda: not self.chat.is_busy, "the answer is done")
        await self.pilot.pause()

    @property
    def chat(self) -> ChatView:
        return self.app.chat_view

    @property
    def prompt(self) -> Prompt:
        return self.chat.query_one(Prompt)

    @property
    def transcript(self) -> Transcript:
        return self.chat.query_one(Transcript)

    @property
    def questions(self) -> list[str]:
        return [str(q.content) for q in self.chat.query(Question)]

    @property
    def answers(self) -> list[str]:
        return [a.text for a in self.chat.query(Answer)]

    @property
    def footers(self) -> list[str]:
        return [str(f.content) for f in self.chat.query(".footer").results(Static)]

    @property
    def notices(self) -> list[str]:
        return [str(n.content) for n in self.chat.query(Notice)]

    @property
    def toasts(self) -> list[str]:
        return [n.message for n in self.app._notifications]

    def screen_text(self) -> str:
        """What is on the screen, as text."""
        size = self.app.size
        lines = self.app.screen._compositor.render_strips(size)
        return "\n".join(strip.text.rstrip() for strip in lines)


def refuse(*arguments: Any) -> Any:
    raise AssertionError(f"not to be called, but was with {arguments}")


@asynccontextmanager
async def running(
    assistant: Assistant | None = None,
    *,
    store: ConversationStore | None = None,
    size: tuple[int, int] = (100, 30),
    open_model: Callable[..., Assistant] | None = None,
    start_server: Callable[..., Any] = refuse,
    pull_model: Callable[..., Path] = refuse,
    model_name: str | None = None,
    continue_last: bool = False,
    check_model: Callable[[str], object] = lambda name: None,
    is_open: bool = True,
    way: Way = Way.TEXT,
    agents: Agents | None = None,
    shortcuts: Shortcuts | None = None,
    **flags: Any,
) -> AsyncIterator[Driver]:
    """The app with `assistant` as the model that every name opens; `flags` are settings."""
    assistant = assistant or FakeAssistant()
    store = store or ConversationStore.in_memory()
    app = Ds4App(
        load_settings(flags),
        store,
        open_model or (lambda name, progress: assistant),
        start_server,
        pull_model,
        model_name=model_name,
        continue_last=continue_last,
        check_model=check_model,
        way=way,
        agents=agents,
        shortcuts=shortcuts,
    )
    try:
        async with app.run_test(size=size, tooltips=True, notifications=True) as pilot:
            driver = Driver(app, pilot)
            if is_open:
                await driver.until(lambda: app._slot.assistant is not None, "a model is open")
                await pilot.pause()
            yield driver
    finally:
        assistant.close()
        store.close()
