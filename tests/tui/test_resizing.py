"""Terminals of every size, changed while an answer is written: nothing fails, nothing is lost."""

import random

import pytest

from ds4tui.chat.messages import Message
from ds4tui.chat.store import ConversationStore
from tests.fakes import FakeAssistant
from tests.scale import scaled
from tests.tui.harness import Driver, running

SMALLEST, LARGEST = (20, 5), (250, 80)
REPLY = (
    "# Title\n\nSome *words* of a reply.\n\n- one\n- two\n\n```python\nprint('hello')\n```\n\n" * 6
)
# What may be on the screen: keys that open it, whether it is closed by escape.
VIEWS: dict[str, tuple[str, bool]] = {
    "chat": ("", False),
    "panel": ("f2", False),
    "decisions": ("f3", False),
    "disk": ("f5", False),
    "agents": ("f6", False),
    "help": ("f1", True),
    "palette": ("ctrl+p", True),
}


def sizes(count: int, seed: str) -> list[tuple[int, int]]:
    """Random ones, the smallest and the largest among them."""
    choose = random.Random(seed)
    some = [
        (choose.randint(SMALLEST[0], LARGEST[0]), choose.randint(SMALLEST[1], LARGEST[1]))
        for _ in range(count - 2)
    ]
    found = [*some, SMALLEST, LARGEST]
    choose.shuffle(found)
    return found


async def resized(on: Driver, to: tuple[int, int]) -> None:
    await on.pilot.resize_terminal(*to)
    await on.until(lambda: on.app.size == to, f"it is {to}")


@pytest.mark.parametrize("view", VIEWS)
async def test_a_storm_of_sizes_while_an_answer_is_written(view: str) -> None:
    key, is_screen = VIEWS[view]
    assistant = FakeAssistant(REPLY)
    assistant.engine.hold()
    async with running(assistant, size=(80, 24)) as on:
        await on.ask("a question")
        await on.until(lambda: assistant.engine.jobs)
        assistant.engine.release(4)
        await on.until(lambda: on.answers and on.answers[0])
        on.prompt.put("my draft")
        if key:
            await on.press(key)
        if is_screen:
            await on.until(lambda: len(on.app.screen_stack) == 2, "the screen is open")
        for size in sizes(scaled(4), view):
            assistant.engine.release(10)
            await resized(on, size)
        if is_screen:
            await on.press("escape")
            await on.until(lambda: len(on.app.screen_stack) == 1, "the screen is closed")
        assistant.engine.release()
        await on.answered()
        await resized(on, (100, 30))
        assert on.answers == [REPLY] and on.prompt.text == "my draft"
        assert on.questions == ["a question"] and on.app.crash is None


async def test_the_smallest_terminal_is_a_chat_still() -> None:
    assistant = FakeAssistant("fine")
    async with running(assistant, size=SMALLEST) as on:
        await on.type("hi there")
        await on.until(lambda: "hi there" in on.screen_text(), "what is typed is seen")
        await on.press("enter")
        await on.until(lambda: on.questions == ["hi there"])
        await on.answered()
        await on.type("again")
        await on.until(lambda: "again" in on.screen_text())
        on.prompt.put("")
        await on.type("/res")
        await on.until(lambda: "/res" in on.screen_text(), "also below a list of commands")
        await on.press("tab")
        await on.until(lambda: on.prompt.text.startswith("/resume"))
        await resized(on, (80, 24))
        assert on.answers == ["fine"] and "fine" in on.screen_text()


async def test_a_stored_conversation_opens_in_the_smallest_terminal() -> None:
    store = ConversationStore.in_memory()
    chat = store.create("Title", "fake")
    parent = None
    for number in range(6):
        role = "assistant" if number % 2 else "user"
        parent = store.add_message(chat.id, parent, Message(role, REPLY), "complete")
        store.set_leaf(chat.id, parent)
    async with running(store=store, size=SMALLEST, continue_last=True) as on:
        await on.until(lambda: len(on.answers) == 3)
        await on.press("ctrl+r")
        await on.until(lambda: len(on.app.screen_stack) == 2)
        await resized(on, LARGEST)
        await resized(on, SMALLEST)
        await on.press("escape")
        await on.until(lambda: len(on.app.screen_stack) == 1)
        assert on.answers == [REPLY] * 3 and on.app.crash is None
