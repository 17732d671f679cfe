"""Another model, and the server on and off, while something else is going on."""

import threading
from pathlib import Path
from typing import Any

import pytest

from ds4tui.chat.messages import Message
from ds4tui.config import load_settings
from ds4tui.engine.requests import SamplingParams
from ds4tui.errors import GGUFError, ModelNotFound
from ds4tui.terminal import check_model
from tests.fakes import EventLog, FakeAssistant
from tests.tui.harness import Driver, FakeServer, running


async def enter(on: Driver, text: str) -> None:
    on.prompt.put(text)
    await on.pilot.pause()
    await on.press("enter")


def unknown(name: str) -> None:
    raise ModelNotFound(f"There is no model {name!r}.", "Run: ds4tui models")


class Models:
    """Opens a new fake model for each name and remembers them."""

    def __init__(self) -> None:
        self.opened: dict[str, FakeAssistant] = {}

    def open(self, name: str, progress: Any) -> FakeAssistant:
        self.opened[name] = FakeAssistant(f"I am {name}.")
        return self.opened[name]


class HeldServer(FakeServer):
    """Stops when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked = False
        self.may_stop = threading.Event()

    def stop(self, timeout_s: float = 5.0) -> None:
        self.is_asked = True
        assert self.may_stop.wait(20)
        super().stop(timeout_s)


async def test_a_mistyped_name_leaves_model_and_server_alone() -> None:
    models, server = Models(), FakeServer()
    async with running(
        open_model=models.open,
        start_server=lambda assistant: server,
        check_model=unknown,
        model_name="old",
    ) as on:
        await on.press("f4")
        await on.until(lambda: on.app._server.url)
        await enter(on, "/model nosuch")
        await on.until(lambda: on.notices)
        assert "There is no model 'nosuch'." in on.notices[0]
        assert list(models.opened) == ["old"] and not server.is_stopped
        assert on.app._slot.assistant is models.opened["old"]
        await on.ask("hello")
        await on.answered()
        assert on.answers == ["I am old."]


async def test_a_known_model_that_is_missing_is_offered_while_the_old_one_stays() -> None:
    models = Models()
    async with running(open_model=models.open, check_model=unknown, model_name="old") as on:
        await enter(on, "/model smollm2")
        await on.until(lambda: "Not on this machine" in on.screen_text())
        await on.press("escape")
        await on.until(lambda: not on.app._slot.opening)
        assert on.app._slot.assistant is models.opened["old"]
        await on.ask("hello")
        await on.answered()
        assert on.answers == ["I am old."]


async def test_an_agents_request_is_only_stopped_when_asked_twice() -> None:
    models, heard = Models(), EventLog()
    async with running(open_model=models.open, model_name="old") as on:
        old = models.opened["old"]
        old.engine.hold()
        job = old.chat([Message("user", "q")], SamplingParams(), heard, "agent")
        old.engine.release(2)
        await on.until(lambda: old.stats.origin == "agent")
        await enter(on, "/model new")
        await on.until(lambda: any("An agent's request is at work" in t for t in on.toasts))
        await on.until(lambda: not on.app._slot.opening)
        assert on.app._slot.assistant is old and not job.wait(0)
        await enter(on, "/model new")
        await on.until(lambda: on.app._slot.assistant is models.opened.get("new"))
        assert job.wait(20)


async def test_a_second_press_while_the_server_starts_starts_no_second_one() -> None:
    go, started = threading.Event(), []

    def start(assistant: Any) -> FakeServer:
        started.append(FakeServer())
        assert go.wait(20)
        return started[-1]

    async with running(start_server=start) as on:
        await on.press("f4", "f4")
        await on.until(lambda: "The server is starting." in on.toasts)
        go.set()
        await on.until(lambda: on.app._server.url)
        await on.press("f4")
        await on.until(lambda: not on.app._server.url)
        assert [s.is_stopped for s in started] == [True]


async def test_a_question_after_the_command_goes_to_the_new_model() -> None:
    models, server = Models(), HeldServer()
    async with running(
        open_model=models.open, start_server=lambda assistant: server, model_name="old"
    ) as on:
        await on.press("f4")
        await on.until(lambda: on.app._server.url)
        await enter(on, "/model new")
        await on.until(lambda: server.is_asked)
        await enter(on, "who are you?")
        assert "queued" in str(on.prompt.border_title)
        server.may_stop.set()
        await on.until(lambda: on.questions == ["who are you?"])
        await on.answered()
        assert on.answers == ["I am new."]


def test_what_is_checked_before_a_model_is_closed(tmp_path: Path) -> None:
    settings = load_settings({"data_dir": tmp_path})
    with pytest.raises(ModelNotFound):
        check_model("nosuch", settings)
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"no model")
    with pytest.raises(GGUFError):
        check_model(str(bad), settings)
