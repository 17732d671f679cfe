"""An engine that stops by a fault: the reason, the model offered again, the question kept."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from textual.widgets import OptionList

from ds4tui.chat.store import ConversationStore
from ds4tui.errors import EngineClosed, StoreError
from ds4tui.tui.journal import write_nothing
from ds4tui.tui.screens.choice import ChoiceScreen
from tests.fakes import FakeAssistant
from tests.tui.harness import Driver, FakeServer, running

STOPPED = EngineClosed("The engine stopped: RuntimeError: boom.", "A report says where.")


class Opened:
    """Opens a new assistant each time, and keeps them."""

    def __init__(self) -> None:
        self.all: list[FakeAssistant] = []
        self.names: list[str] = []

    def __call__(self, name: str, progress: object) -> FakeAssistant:
        self.names.append(name)
        self.all.append(FakeAssistant())
        return self.all[-1]

    def close(self) -> None:
        for each in self.all:
            each.close()


async def ask_of_a_dead_engine(on: Driver, opened: Opened) -> None:
    opened.all[-1].engine.die(STOPPED)
    on.prompt.put("hello")
    await on.press("enter")
    await offered(on)


async def offered(on: Driver) -> None:
    await on.until(lambda: isinstance(on.app.screen, ChoiceScreen), "the model is offered")
    await on.until(lambda: [o.highlighted for o in on.app.screen.query(OptionList)] == [0])
    await on.until(lambda: "Open fake again" in on.screen_text())


async def test_a_model_whose_engine_stopped_is_offered_and_opened_again() -> None:
    opened = Opened()
    async with running(open_model=opened) as on:
        await ask_of_a_dead_engine(on, opened)
        assert any("RuntimeError: boom" in n and "report" in n for n in on.notices)
        assert on.prompt.text == "hello"
        await on.press("enter")
        await on.until(lambda: len(opened.all) == 2 and on.app._slot.assistant is opened.all[1])
        await on.until(lambda: on.chat.assistant is opened.all[1])
        assert opened.names == ["smollm2", "fake.gguf"]
        await on.press("enter")
        await on.until(lambda: on.answers[-1:] == ["Hello from the fake model."])
        await on.answered()
        assert not isinstance(on.app.screen, ChoiceScreen)
    opened.close()


async def test_who_does_not_want_it_now_is_asked_with_the_next_question() -> None:
    opened = Opened()
    async with running(open_model=opened) as on:
        await ask_of_a_dead_engine(on, opened)
        await on.press("escape")
        await on.until(lambda: any("not open any more" in n for n in on.notices))
        assert len(opened.all) == 1 and on.prompt.text == "hello"
        await on.press("enter")
        await offered(on)
        await on.press("escape")
    opened.close()


async def test_a_server_goes_on_with_the_model_that_was_opened_again() -> None:
    opened, servers = Opened(), [FakeServer(), FakeServer()]
    started = iter(servers)
    async with running(open_model=opened, start_server=lambda assistant: next(started)) as on:
        await on.app.switch_server()
        await ask_of_a_dead_engine(on, opened)
        await on.press("enter")
        await on.until(lambda: servers[0].is_stopped and on.app._server.url == servers[1].url)
    opened.close()


class SlowStore(ConversationStore):
    """Reads when it is told to."""

    may_read: threading.Event | None = None

    @contextmanager
    def transaction(self, kind: str = "IMMEDIATE") -> Iterator[sqlite3.Connection]:
        assert self.may_read is None or self.may_read.wait(20)
        with super().transaction(kind) as db:
            yield db


async def test_quitting_before_the_draft_is_read_is_no_error() -> None:
    store = SlowStore.in_memory()
    store.may_read = threading.Event()
    async with running(store=store, is_open=False) as on:
        await on.until(lambda: on.app.is_running)
        await on.press("ctrl+q")
        await on.until(lambda: on.app._journal._thread._work_queue.qsize() > 0, "it is closing")
        store.may_read.set()
        await on.until(lambda: not on.app.is_running, "the app has ended")
    assert on.app.crash is None


async def test_what_is_asked_of_a_journal_that_is_closed_is_no_crash() -> None:
    async with running() as on:
        await on.app._close(write_nothing)
        await on.app._recall()
        with pytest.raises(StoreError, match="ds4tui ends"):
            await on.app._journal.ask(lambda store: store.latest())
    assert on.app.crash is None
