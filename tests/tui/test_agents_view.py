"""The agents panel in the app: shown, chosen from, followed, stopped."""

import asyncio

import openai
import pytest
from textual.widgets import OptionList, Static

from ds4tui.tui.agents import NO_REQUEST, NO_SERVER
from ds4tui.tui.agents_view import AgentsView
from ds4tui.tui.decisions_view import DecisionsView
from tests.fakes import FakeAssistant
from tests.test_same_session import numbered, shared
from tests.tui.harness import Driver, running

SIZES = pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])


def view(on: Driver) -> AgentsView:
    return on.app.screen_stack[0].query_one(AgentsView)


async def test_without_a_server_it_says_how_to_have_one() -> None:
    async with running() as on:
        await on.press("f6")
        await on.until(lambda: NO_SERVER.format(server="F4") in on.screen_text())
        await on.press("f3")
        await on.until(lambda: not view(on).display, "the decisions take its place")
        assert on.app.screen_stack[0].query_one(DecisionsView).display
        await on.press("f6")
        await on.until(lambda: view(on).display)
        assert not on.app.screen_stack[0].query_one(DecisionsView).display
        await on.press("escape")
        await on.until(lambda: on.prompt.has_focus and not view(on).display)


@SIZES
async def test_requests_are_listed_with_what_became_of_them(size: tuple[int, int]) -> None:
    async with shared(FakeAssistant(numbered()), size=size) as on:
        await on.press("f6")
        await on.until(lambda: NO_REQUEST.format(server="F4") in on.screen_text())
        await on.say("one")
        await on.until(lambda: "opencode" in on.screen_text(), "it is listed")
        await on.until(lambda: " done " in on.screen_text(), "it is done")
        assert "/v1/chat/completions" in on.screen_text() and "cold 6" in on.screen_text()
        await on.say("one", "r1", "two")
        await on.until(lambda: "extend" in on.screen_text(), "the second one, too")
        assert view(on).chosen is on.app._agents.requests[0] or (
            view(on).chosen is not None and view(on).chosen.number == 2
        )
        assert "Enter sends" in on.screen_text(), "the prompt is seen"


async def test_a_request_is_followed_live_from_the_list() -> None:
    async with shared(FakeAssistant(numbered())) as on:
        engine = on.assistant.engine
        engine.hold()
        asking = asyncio.create_task(on.say("one"))
        await on.press("f6")
        await on.until(lambda: view(on).chosen and view(on).chosen.conversation_id, "it is listed")
        await on.press("enter")
        await on.until(lambda: on.questions == ["opencode\none"], "its conversation is open")
        assert not view(on).display
        engine.release()
        assert await asking == "r1"
        await on.until(lambda: on.answers == ["r1"], "its reply was read")


async def test_a_request_is_stopped_by_a_key() -> None:
    async with shared(FakeAssistant(numbered())) as on:
        engine = on.assistant.engine
        engine.hold()
        asking = asyncio.create_task(on.say("one"))
        await on.press("f6")
        await on.until(lambda: view(on).chosen, "it is listed")
        await on.press("delete")
        with pytest.raises(openai.APIStatusError):
            await asking
        await on.until(lambda: " stopped " in on.screen_text(), "it says so")
        await on.until(lambda: any("is stopped" in t for t in on.toasts), "a notice, too")
        await on.press("delete")  # nothing is at work
        engine.release()


async def test_a_branch_that_is_not_shown_is_opened_from_the_list() -> None:
    async with shared(FakeAssistant(numbered())) as on:
        await on.say("agent")
        await on.chat.open_conversation(1)
        await on.person("mine")
        await on.say("agent", "r1", "its own")
        await on.press("f6")
        await on.until(lambda: view(on).chosen and view(on).chosen.number == 2, "it is listed")
        await on.press("enter")
        await on.until(lambda: on.answers == ["r1", "r3"], "its branch is shown")
        assert on.shown(1) == ["agent", "r1", "its own", "r3"]


async def test_an_old_request_stays_chosen_while_others_come_and_nothing_is_drawn_twice() -> None:
    async with shared(FakeAssistant(numbered())) as on:
        await on.say("one")
        await on.say("two")
        await on.press("f6")
        options = view(on).query_one(OptionList)
        await on.until(lambda: options.option_count == 2)
        await on.press("down")
        await on.until(lambda: view(on).chosen and view(on).chosen.number == 1)
        await on.say("three")
        await on.until(lambda: options.option_count == 3)
        assert view(on).chosen is not None and view(on).chosen.number == 1
        drawn: list[object] = []
        detail = view(on).query_one("#agents-detail", Static)
        on.app._show_meters()
        detail.update = drawn.append  # type: ignore[assignment,method-assign]
        options.replace_option_prompt_at_index = (  # type: ignore[method-assign]
            lambda *args: drawn.append(args) or options
        )
        on.app._show_meters()
        assert drawn == []
