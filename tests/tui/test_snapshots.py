"""The main screens at two sizes, cell by cell: see snapshots.py for how to read and renew them."""

import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from ds4tui.errors import ModelNotFound
from ds4tui.tui.messages import Answer
from ds4tui.tui.screens.models import ModelsScreen
from tests.fakes import FakeAssistant
from tests.tui.harness import Driver, running
from tests.tui.scenes import LAST_ANSWER, MODELS, NOW_S, STATS, FixedAgents, conversations
from tests.tui.snapshots import VARIABLE, compare, is_stored, rendered

SIZES = pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=["80x24", "120x40"])
STILL = 20  # looks at a screen that shows the same: then it is drawn whole
IS_UPDATE = os.environ.get(VARIABLE) == "update"
# Which keys show a screen, and what is to be seen of it then.
SCREENS: dict[str, tuple[tuple[str, ...], str]] = {
    "chat": ((), "And at sunset?"),
    "decisions": (("f3",), "F3 closes"),
    "disk": (("f5",), "F5 or Esc closes"),
    "agents": (("f6",), "F6 closes"),
    "tree": (("ctrl+t",), "2 branches of this conversation"),
    "help": (("f1",), "Esc closes"),
    "resume": (("ctrl+r",), "Der Himmel"),
    "completion": (("/", "c"), "/copy"),
}


@pytest.fixture(autouse=True)
def _fixed_world(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW_S)
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("NO_COLOR", raising=False)
    time.tzset()


@asynccontextmanager
async def shown(size: tuple[int, int]) -> AsyncIterator[Driver]:
    """The app with the last conversation on the screen and an engine that stands still."""
    assistant = FakeAssistant()
    store, agents = conversations(), FixedAgents()
    async with running(assistant, store=store, size=size, continue_last=True, agents=agents) as on:
        assistant.engine._stats = STATS
        await on.until(lambda: on.answers and on.answers[-1] == LAST_ANSWER, "it is loaded")
        await on.until(lambda: all(a.is_rich for a in on.chat.query(Answer)), "Markdown is made")
        await on.until(lambda: "‹2/2›" in on.screen_text() or size == (80, 24), "branches, marked")
        on.app._show_meters()
        yield on


def screen(on: Driver) -> str:
    strips = on.app.screen._compositor.render_strips(on.app.size)
    return rendered(strips)


async def looked_at(on: Driver, name: str, seen: str) -> None:
    """Wait for a screen to be what is stored; else compare what it is once it shows `seen` and
    stands still."""
    found, same = "", 0

    def is_right() -> bool:
        nonlocal found, same
        before, found = found, screen(on)
        same = same + 1 if found == before else 0
        return is_stored(name, found) or (IS_UPDATE and same >= STILL and seen in found)

    with suppress(AssertionError):
        await on.until(is_right)
    compare(name, found)


@SIZES
@pytest.mark.parametrize("name", SCREENS)
async def test_a_screen_looks_as_it_did(name: str, size: tuple[int, int]) -> None:
    keys, seen = SCREENS[name]
    async with shown(size) as on:
        await on.press(*keys)
        await looked_at(on, f"{name}-{size[0]}x{size[1]}", seen)


@SIZES
async def test_the_model_picker_looks_as_it_did(size: tuple[int, int]) -> None:
    async with shown(size) as on:
        info = on.app._slot.assistant.info  # type: ignore[union-attr]
        on.app.push_screen(ModelsScreen(MODELS, info, 1_992))
        await looked_at(on, f"models-{size[0]}x{size[1]}", "Type to find names")


@SIZES
async def test_the_first_start_looks_as_it_did(size: tuple[int, int]) -> None:
    def nothing_here(name: str, progress: Callable[[str], None]) -> Any:
        raise ModelNotFound(f"The model {name} is not on this machine yet.")

    async with running(open_model=nothing_here, size=size, is_open=False) as on:
        await looked_at(on, f"pull-{size[0]}x{size[1]}", "Download")


def test_a_difference_is_told_by_line_and_by_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SNAPSHOTS", raising=False)
    with pytest.raises(AssertionError) as raised:
        compare("pull-80x24", "another screen\n")
    assert "+another screen" in str(raised.value) and "SNAPSHOTS=update" in str(raised.value)
