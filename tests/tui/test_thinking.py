"""What a model thinks: folded to a line, unfolded, switched."""

from types import SimpleNamespace

import pytest

from ds4tui.chat.store import ConversationStore
from ds4tui.tui.thought import Thought, thought_content
from tests.fakes import FakeAssistant
from tests.tui.harness import Driver, running

THOUGHT = "First I look at it.\nThen I know."


def thinker() -> FakeAssistant:
    assistant = FakeAssistant(f"<think>{THOUGHT}</think>Yes.")
    assistant.format.template = "fake <think>"
    return assistant


def thoughts(on: Driver) -> list[Thought]:
    return list(on.chat.query(Thought))


async def entered(on: Driver, command: str, told: str) -> None:
    await on.until(lambda: not on.prompt.text)
    await on.type(command)
    await on.press("enter")
    await on.until(lambda: told in " ".join([*on.notices, *on.toasts]), f"{command}: {told}")


def test_a_thought_is_a_line_with_its_length() -> None:
    assert thought_content("a\nb", 1200, is_open=False).plain == "▸ thought: 1,200 tokens"
    assert thought_content("a\nb", 0, is_open=False).plain == "▸ thought: 3 characters"
    assert thought_content("\na\x1b[2J\n", 1, is_open=True).plain.startswith(
        "▾ thought: 1 token\na"
    )


async def test_what_is_thought_is_folded_and_a_click_unfolds_it() -> None:
    async with running(thinker()) as on:
        await on.ask("why")
        await on.answered()
        (thought,) = thoughts(on)
        assert thought.text == THOUGHT and 20 <= thought.tokens <= len(f"<think>{THOUGHT}</think>")
        assert "▸ thought: " in on.screen_text() and "Then I know." not in on.screen_text()
        assert on.answers == ["Yes."]
        await on.pilot.click(Thought)
        await on.until(lambda: "Then I know." in on.screen_text())
        await on.pilot.click(Thought)
        await on.until(lambda: "Then I know." not in on.screen_text())


async def test_it_is_shown_while_it_comes_and_folded_again() -> None:
    assistant = thinker()
    assistant.engine.hold()
    async with running(assistant) as on:
        await entered(on, "/think show", "is shown from now on")
        await on.ask("why")
        await on.until(lambda: assistant.engine.jobs)
        assistant.engine.release(2 + len("<think>First I look"))
        await on.until(lambda: "First I" in on.screen_text(), "what is thought so far")
        assistant.engine.release()
        await on.answered()
        await on.until(lambda: "Then I know." in on.screen_text())
        await entered(on, "/think hide", "is folded to a line from now on")
        await on.until(lambda: "Then I know." not in on.screen_text())
        assert "▸ thought: " in on.screen_text()


async def test_a_stored_conversation_brings_its_thoughts_with_their_length() -> None:
    store = ConversationStore.in_memory()
    async with running(thinker(), store=store) as on:
        await on.ask("why")
        await on.answered()
        (before,) = thoughts(on)
        chat_id = on.chat.chat.id
        assert chat_id is not None
        await on.chat.start_new()
        assert thoughts(on) == []
        await on.chat.open_conversation(chat_id)
        await on.until(lambda: thoughts(on))
        (after,) = thoughts(on)
        assert (after.text, after.tokens) == (before.text, before.tokens) == (THOUGHT, after.tokens)


@pytest.mark.parametrize(("word", "wanted"), [("on", True), ("off", False), ("auto", None)])
async def test_thinking_is_switched_from_the_next_question_on(
    word: str, wanted: bool | None
) -> None:
    assistant = FakeAssistant()
    asked: list[bool | None] = []
    real = assistant.format.laid_out

    def laid_out(messages, tools=(), thinking=None, picture_of=None):  # type: ignore[no-untyped-def]
        asked.append(thinking)
        return real(messages, tools, thinking, picture_of)

    assistant.format.laid_out = laid_out  # type: ignore[method-assign]
    async with running(assistant) as on:
        await entered(on, f"/think {word}", "The model ")
        await on.ask("one")
        await on.answered()
        assert asked[-1] is wanted
        await on.press("ctrl+n")  # it holds for the next chat, too
        await on.until(lambda: not on.questions)
        await on.ask("two")
        await on.answered()
        assert asked[-1] is wanted


async def test_switching_tells_what_the_next_question_keeps() -> None:
    async with running(FakeAssistant()) as on:
        await on.ask("one")
        await on.answered()
        await entered(on, "/think off", "not to think. The next question keeps about")
        await entered(on, "/think", "The model is asked not to think.")
        assert on.chat.chat.thinking is False


async def test_a_template_without_a_switch_says_so() -> None:
    assistant = FakeAssistant()
    assistant.format.abilities = SimpleNamespace(thinking_switch=False)
    async with running(assistant) as on:
        await entered(on, "/think on", "has no switch for thinking")
        assert on.chat.chat.thinking is None
        await entered(on, "/think maybe", "/think does not know 'maybe'.")
