"""The disk panel in the app: shown, scrolled, hidden, told of what is written while idle."""

from dataclasses import replace
from typing import Any

import pytest

from ds4tui.engine.stats import EngineStats
from ds4tui.tui.decisions_view import DecisionsView
from ds4tui.tui.disk_view import DiskView
from tests.fakes import FakeAssistant
from tests.tui.harness import Driver, running
from tests.tui.test_disk import DISK, STATS, conversation


def view(on: Driver) -> DiskView:
    return on.app.screen_stack[0].query_one(DiskView)


def tell(on: Driver, assistant: FakeAssistant, **changes: Any) -> None:
    stats: EngineStats = assistant.engine._stats
    told = {"disk": DISK, "conversations": STATS.conversations, "notes": STATS.notes}
    assistant.engine._stats = replace(stats, **told | changes)
    on.app._show_meters()


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_it_is_shown_scrolled_and_hidden_by_keys(size: tuple[int, int]) -> None:
    assistant = FakeAssistant()
    async with running(assistant, size=size) as on:
        tell(on, assistant)
        assert not view(on).display
        await on.press("f5")
        await on.until(lambda: view(on).has_focus and "3.2 GB of 20.0 GB" in on.screen_text())
        assert "you: Why is the sky blue?" in on.screen_text()
        await on.press("end")
        await on.until(lambda: "a turn has ended" in on.screen_text())
        await on.press("f5")
        await on.until(lambda: on.prompt.has_focus and not view(on).display)
        await on.type("/disk")
        await on.press("enter")
        await on.until(lambda: view(on).display)
        await on.press("escape")
        await on.until(lambda: on.prompt.has_focus and not view(on).display)


async def test_it_and_the_decisions_take_turns() -> None:
    async with running() as on:
        decisions = on.app.screen_stack[0].query_one(DecisionsView)
        await on.press("f3")
        await on.until(lambda: decisions.display)
        await on.press("f5")
        await on.until(lambda: view(on).display and not decisions.display)
        assert "kv_disk is off" in on.screen_text()
        await on.press("f3")
        await on.until(lambda: decisions.display and not view(on).display)


async def test_what_is_written_while_idle_is_followed_and_then_nothing_ticks() -> None:
    assistant = FakeAssistant()
    async with running(assistant, size=(120, 40)) as on:
        await on.press("f5")
        poll = on.app._poll
        assert poll is not None and not poll._active.is_set()
        tell(on, assistant, is_storing=True, disk=replace(DISK, queued_bytes=24_000_000))
        on.app.keep_polling()
        await on.until(lambda: "24.0 MB wait to be written" in on.screen_text())
        assert poll._active.is_set()
        stats = assistant.engine._stats
        assistant.engine._stats = replace(stats, is_storing=False, disk=DISK)
        await on.until(lambda: "nothing waits" in on.screen_text())
        await on.until(lambda: not poll._active.is_set())


async def test_another_width_is_drawn_anew() -> None:
    assistant = FakeAssistant()
    async with running(assistant, size=(200, 60)) as on:
        tell(on, assistant, conversations=(conversation(7),))
        await on.press("f5")
        await on.until(lambda: "ab12cd07" in on.screen_text())
        await on.pilot.resize_terminal(80, 24)
        await on.until(lambda: "ab12cd07" not in on.screen_text())
        assert "you: Why is the sky blue?" in on.screen_text()
