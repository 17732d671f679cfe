"""The decisions panel in the app: shown, chosen from, followed, hidden."""

import time
from dataclasses import replace

import pytest
from textual.widgets import OptionList

from ds4tui.engine.stats import EngineStats
from ds4tui.events import Decision
from ds4tui.tui.decisions_view import NOTHING_YET, DecisionsView
from ds4tui.tui.messages import Warned
from tests.fakes import FakeAssistant
from tests.tui.harness import Driver, running
from tests.tui.test_decisions import FORK, NEW


def view(on: Driver) -> DecisionsView:
    return on.app.screen_stack[0].query_one(DecisionsView)


def options(on: Driver) -> OptionList:
    return view(on).query_one(OptionList)


def decided(count: int) -> tuple[Decision, ...]:
    """`count` decisions, oldest first."""
    return tuple(
        replace(FORK if n % 2 else NEW, job_id=f"j{n}", evaluated=n + 1) for n in range(count)
    )


def tell(on: Driver, assistant: FakeAssistant, **changes: object) -> None:
    stats: EngineStats = assistant.engine._stats
    assistant.engine._stats = replace(stats, **changes)  # type: ignore[arg-type]
    on.app._show_meters()


SIZES = pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])


@SIZES
async def test_it_is_shown_walked_and_hidden_by_keys(size: tuple[int, int]) -> None:
    assistant = FakeAssistant()
    async with running(assistant, size=size) as on:
        assert not view(on).display
        tell(on, assistant, decisions=decided(5))
        await on.press("f3")
        await on.until(lambda: options(on).has_focus and options(on).option_count == 5)
        assert view(on).chosen == decided(5)[-1]
        await on.press("down")
        await on.until(lambda: "evaluated 4" in on.screen_text())
        assert view(on).chosen == decided(5)[3]
        assert "Where they part" in on.screen_text() and "┃is blue" in on.screen_text()
        await on.press("f3")
        await on.until(lambda: on.prompt.has_focus and not view(on).display)


async def test_escape_hides_it_and_the_prompt_has_the_focus() -> None:
    async with running() as on:
        await on.press("f3")
        await on.until(lambda: NOTHING_YET in on.screen_text())
        await on.press("escape")
        await on.until(lambda: on.prompt.has_focus and not view(on).display)


@pytest.mark.parametrize("panel", ["f2", "f3"])
async def test_the_prompt_is_seen_and_takes_what_is_typed_with_any_panel_open(panel: str) -> None:
    assistant = FakeAssistant("Yes.")
    async with running(assistant, size=(80, 24)) as on:
        tell(on, assistant, decisions=decided(3))
        await on.press(panel)
        await on.pilot.pause()
        await on.type("why")
        await on.until(lambda: on.prompt.text == "why" and on.prompt.has_focus)
        assert "│ why" in on.screen_text()
        await on.press("enter")
        await on.until(lambda: on.questions == ["why"])


async def test_the_mouse_chooses() -> None:
    assistant = FakeAssistant()
    async with running(assistant, size=(120, 40)) as on:
        tell(on, assistant, decisions=decided(6))
        await on.press("f3")
        await on.until(lambda: options(on).option_count == 6)
        await on.pilot.click("#decision-list", offset=(5, 3))
        await on.until(lambda: view(on).chosen == decided(6)[2])


async def test_the_newest_is_followed_and_any_other_stays_chosen() -> None:
    assistant = FakeAssistant()
    async with running(assistant, size=(120, 40)) as on:
        tell(on, assistant, decisions=decided(3))
        await on.press("f3")
        await on.until(lambda: options(on).option_count == 3)
        tell(on, assistant, decisions=decided(4))
        await on.until(lambda: view(on).chosen == decided(4)[-1])
        await on.press("down", "down")
        await on.until(lambda: view(on).chosen == decided(4)[1])
        tell(on, assistant, decisions=decided(6))
        await on.pilot.pause()
        assert view(on).chosen == decided(6)[1] and options(on).highlighted == 4
        tell(on, assistant, decisions=decided(6)[2:])  # the chosen one is forgotten
        await on.until(lambda: view(on).chosen == decided(6)[-1])


async def test_a_question_brings_its_decision_and_another_size_redraws() -> None:
    assistant = FakeAssistant("Yes.")
    async with running(assistant, size=(120, 40)) as on:
        tell(on, assistant, decisions=decided(2))
        await on.press("f3")
        await on.pilot.resize_terminal(80, 24)
        await on.until(lambda: view(on).outer_size.height == 17, "all room but the prompt's")
        await on.until(lambda: options(on).outer_size.width >= 70)
        assert FORK.cause is not None and FORK.cause in on.screen_text()
        await on.pilot.resize_terminal(200, 60)
        await on.until(lambda: on.chat.outer_size.height > 25 and view(on).outer_size.height > 20)


async def test_nothing_is_drawn_while_nothing_happens() -> None:
    assistant = FakeAssistant()
    async with running(assistant, size=(120, 40)) as on:
        tell(on, assistant, decisions=decided(3))
        await on.press("f3")
        await on.until(lambda: options(on).option_count == 3)
        drawn: list[float] = []
        view(on)._draw_list = lambda *_: drawn.append(time.monotonic())  # type: ignore[method-assign]
        for _ in range(5):
            on.app._show_meters()
        await on.pilot.pause()
        assert drawn == [] and on.app._poll is not None and not on.app._poll._active.is_set()


async def test_the_tripwire_is_told_once_a_cause_and_can_be_put_away() -> None:
    assistant = FakeAssistant()
    async with running(assistant, size=(120, 40)) as on:
        wired = {"tripwire": "4 of the last 4 long prompts", "tripwire_cause": "tools changed"}
        tell(on, assistant, **wired)
        await on.until(lambda: on.notices)
        tell(on, assistant, tripwire="5 of the last 5 long prompts")
        await on.pilot.pause()
        (notice,) = on.notices
        assert "warning  4 of the last 4 long prompts." in notice and "same order" in notice
        assert "5 of the last 5" in on.screen_text()  # in the panel
        await on.press("shift+tab")
        await on.until(lambda: on.app.query_one(Warned).has_focus, "the notice has the focus")
        await on.press("enter")
        await on.until(lambda: not on.app.query_one(Warned).display)
        tell(on, assistant, tripwire="4 of the last 6", tripwire_cause="system text changed")
        await on.until(lambda: len(on.notices) == 2)


async def test_a_click_puts_the_tripwire_away() -> None:
    assistant = FakeAssistant()
    async with running(assistant, size=(100, 30)) as on:
        tell(on, assistant, tripwire="4 of the last 4", tripwire_cause="[bold]odd")
        await on.until(lambda: on.notices)
        await on.pilot.pause()
        await on.pilot.click(Warned, offset=(5, 1))
        await on.until(lambda: not on.app.query_one(Warned).display)
