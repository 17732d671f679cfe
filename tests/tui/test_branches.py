"""Acts on a conversation by keys: more answers, edits, forks, branches; what they keep and drop."""

import re
from pathlib import Path

import pytest

from ds4tui.chat.messages import Image, Message
from ds4tui.chat.store import ConversationStore
from ds4tui.engine.requests import GenerateRequest
from ds4tui.errors import EngineError
from tests.fakes import FakeAssistant
from tests.pictures.samples import png
from tests.tui.harness import Driver, running


def numbered() -> FakeAssistant:
    """Its answers are `answer 1`, `answer 2`, and so on."""
    count = iter(range(1, 100))

    def reply(request: GenerateRequest) -> str:
        return f"answer {next(count)}"

    return FakeAssistant(reply)


async def ask(on: Driver, *questions: str) -> None:
    for question in questions:
        await on.ask(question)
        await on.answered()


async def told(on: Driver, words: str) -> str:
    await on.until(lambda: any(words in toast for toast in on.toasts), f"toast {words!r}")
    return next(toast for toast in on.toasts if words in toast)


async def test_another_answer_stands_beside_the_old_one_and_says_what_it_keeps() -> None:
    assistant = numbered()
    store = ConversationStore.in_memory()
    async with running(assistant, store=store) as on:
        await ask(on, "one", "two")
        resident = assistant.stats.resident_tokens
        await on.press("f8")
        words = await told(on, "One more answer")
        await on.until(lambda: on.answers == ["answer 1", "answer 3"])
        await on.answered()
        assert on.questions == ["one", "two"]
        # Of the old answer the text goes, and what stands before it stays.
        gone = len("answer 2") - 1  # its last token was never fed
        assert f"keeps about {resident - gone} of {resident} resident tokens" in words
        assert f"drops {gone}" in words
        decision = assistant.stats.decision
        assert decision is not None and decision.evaluated == 1
        assert f"kept {decision.kept:,}, dropped {decision.dropped}" in on.footers[-1]
        await on.until(lambda: on.footers[-1].startswith("‹2/2› "))
        (listed,) = store.list()
        assert [m.message.text for m in store.load(listed.id).path][-1] == "answer 3"
        await on.ask("three")
        await on.answered()
        text = assistant.format.tokenizer.decode(
            assistant.engine.requests[-1].timeline.ids.tolist()
        )
        assert "answer 3" in text and "answer 2" not in text


async def test_another_answer_that_fails_leaves_the_old_one() -> None:
    assistant = numbered()
    async with running(assistant) as on:
        await ask(on, "one")
        assistant.engine.error = EngineError("The engine broke.", "Try again.")
        await on.press("f8")
        await on.until(lambda: any("The engine broke." in n for n in on.notices))
        await on.answered()
        assert on.answers == ["answer 1"] and on.questions == ["one"] and on.prompt.text == ""
        await on.press("ctrl+t")
        await told(on, "one branch")


async def test_there_is_nothing_to_answer_again_in_an_empty_chat() -> None:
    async with running() as on:
        for count, key in enumerate(("f8", "f7"), 1):
            await on.press(key)
            await on.until(lambda count=count: len(on.toasts) == count)
            assert "Nothing of yours" in on.toasts[-1]


async def test_an_edited_question_is_a_branch_and_the_draft_comes_back() -> None:
    assistant = numbered()
    async with running(assistant) as on:
        await ask(on, "one", "two", "three")
        await on.type("draft")
        await on.press("f7", "down", "enter")
        await on.until(lambda: on.prompt.text == "two")
        await on.until(lambda: "resident tokens" in str(on.prompt.border_title))
        assert "editing question 2 of 3 · keeps about" in str(on.prompt.border_title)
        await on.type("!")
        await on.press("enter")
        await on.until(lambda: on.questions[:1] == ["one"] and len(on.answers) == 2)
        await on.answered()
        assert on.answers == ["answer 1", "answer 4"] and on.prompt.text == "draft"
        await on.until(lambda: on.questions == ["one", "two!\n‹2/2›"])
        decision = assistant.stats.decision
        assert decision is not None and decision.kept > 0 and decision.dropped > 0
        assert f"kept {decision.kept:,}, dropped" in on.footers[-1]


async def test_escape_leaves_an_edit_and_brings_the_draft_back() -> None:
    async with running(numbered()) as on:
        await ask(on, "one")
        await on.type("draft")
        await on.press("f7", "enter")
        await on.until(lambda: on.prompt.text == "one")
        await on.press("escape")
        assert on.prompt.text == "draft" and "editing" not in str(on.prompt.border_title)
        await on.press("enter")
        await on.until(lambda: on.questions == ["one", "draft"])
        await on.answered()


async def test_escape_twice_in_an_empty_prompt_chooses_a_question_to_edit() -> None:
    async with running(numbered()) as on:
        await ask(on, "one")
        await on.press("escape", "escape")
        await on.until(lambda: len(on.app.screen_stack) == 2)
        await on.press("enter")
        await on.until(lambda: on.prompt.text == "one")


async def test_the_first_question_is_edited_and_every_branch_can_be_gone_to() -> None:
    assistant = numbered()
    async with running(assistant) as on:
        await ask(on, "one", "two")
        await on.press("f7", "down", "enter")
        await on.until(lambda: on.prompt.text == "one")
        on.prompt.put("other")
        await on.press("enter")
        await on.until(lambda: on.answers == ["answer 3"])
        await on.answered()
        await on.press("f10")
        await on.until(lambda: on.answers == ["answer 1", "answer 2"])
        assert "keeps about" in await told(on, "Another branch is shown")
        await on.until(lambda: on.questions == ["one\n‹1/2›", "two"])
        await on.press("ctrl+t")
        await on.until(lambda: len(on.app.screen_stack) == 2)
        await on.type("other")
        await on.press("enter")
        await on.until(lambda: on.answers == ["answer 3"])
        await on.until(lambda: on.questions == ["other\n‹2/2›"])
        await ask(on, "more")
        assert "· kept " in on.footers[-1] and "dropped" in on.footers[-1]
        await ask(on, "and more")
        assert "· kept " not in on.footers[-1]


async def test_a_fork_is_a_new_conversation_of_what_stood_before_the_question() -> None:
    assistant = numbered()
    store = ConversationStore.in_memory()
    async with running(assistant, store=store) as on:
        await ask(on, "one", "two")
        on.prompt.put("/fork")
        await on.press("enter")
        await on.until(lambda: len(on.app.screen_stack) == 2)
        await on.press("enter")
        await on.until(lambda: on.prompt.text == "two")
        assert on.answers == ["answer 1"]
        await told(on, "A new conversation, with your question")
        await on.press("enter")
        await on.until(lambda: on.answers == ["answer 1", "answer 3"])
        await on.answered()
        assert assistant.stats.usage.cached_tokens > 0
        decision = assistant.stats.decision
        assert decision is not None
        assert f"kept {decision.kept:,}" in on.footers[-1] and "dropped" in on.footers[-1]
        chats = [store.load(c.id) for c in store.list()]
        texts = {tuple(m.message.text for m in chat.path) for chat in chats}
        assert texts == {
            ("one", "answer 1", "two", "answer 2"),
            ("one", "answer 1", "two", "answer 3"),
        }


async def test_branches_outlive_the_app(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    async with running(numbered(), store=ConversationStore(path)) as on:
        await ask(on, "one")
        await on.press("f8")
        await on.until(lambda: on.answers == ["answer 2"])
        await on.answered()
    store = ConversationStore(path)
    async with running(numbered(), store=store, continue_last=True) as on:
        await on.until(lambda: on.footers and on.footers[-1].startswith("‹2/2› "))
        await on.press("f10")
        await on.until(lambda: on.answers == ["answer 1"])
        assert re.search(
            r"takes \d+ tokens: 0 are held, \d+ are", await told(on, "Another branch is shown")
        )


@pytest.mark.parametrize(
    ("down", "copied"),
    [(0, "See:\n\n```py\nx = 1\n\n  y\n```\n"), (1, "x = 1\n\n  y\n"), (2, "how?")],
)
async def test_messages_and_blocks_of_code_are_copied_as_they_were_written(
    down: int, copied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ds4tui.tui.clipboard.clipboard_commands", lambda *_: ())
    async with running(FakeAssistant("See:\n\n```py\nx = 1\n\n  y\n```\n")) as on:
        await ask(on, "how?")
        await on.press("f9", *["down"] * down, "enter")
        await told(on, "was sent to the terminal")
        assert on.app.clipboard == copied


async def test_an_edited_question_keeps_its_pictures() -> None:
    store = ConversationStore.in_memory()
    chat = store.create("t").id
    image = Image(png((8, 8)), 5, "a.png")
    asked = store.add_message(chat, None, Message("user", "look ", images=(image,)))
    store.set_leaf(chat, store.add_message(chat, asked, Message("assistant", "seen")))
    async with running(numbered(), store=store, continue_last=True) as on:
        await on.until(lambda: on.answers == ["seen"])
        await on.press("f7", "enter")
        await on.until(lambda: "[a.png 8x8" in on.prompt.text)
        question = on.chat.draft
        assert [i.digest for i in question.images] == [image.digest]
