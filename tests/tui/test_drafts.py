"""Drafts by keys: each conversation has its own, and no end of the app loses one."""

import sqlite3
from pathlib import Path

from textual.widgets import OptionList

from ds4tui.chat.drafts import RunningApp, keep, take
from ds4tui.chat.messages import Message
from ds4tui.chat.store import ConversationStore
from tests.fakes import FakeAssistant
from tests.tui.harness import Driver, running


def two(store: ConversationStore) -> ConversationStore:
    for title in ("alpha", "beta"):
        chat = store.create(title).id
        asked = store.add_message(chat, None, Message("user", title))
        store.set_leaf(chat, store.add_message(chat, asked, Message("assistant", f"of {title}")))
    return store


async def chosen(on: Driver, title: str) -> None:
    await on.press("ctrl+r")
    await on.until(lambda: f" {title} " in on.screen_text() and "Esc closes" in on.screen_text())
    await on.type(title)
    await on.until(lambda: on.app.screen.query_one(OptionList).option_count == 1)
    await on.press("enter")


async def resume(on: Driver, title: str) -> None:
    await chosen(on, title)
    await on.until(lambda: on.answers == [f"of {title}"] and len(on.app.screen_stack) == 1)


def texts(path: Path) -> list[str]:
    """What is kept in the file by now."""
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return [row[0] for row in db.execute("SELECT text FROM drafts ORDER BY text")]
    finally:
        db.close()


async def test_another_conversation_brings_its_own_draft_and_leaves_this_one() -> None:
    async with running(store=two(ConversationStore.in_memory())) as on:
        await on.type("of a new chat")
        await chosen(on, "alpha")
        await on.until(lambda: any("stays with the chat" in toast for toast in on.toasts))
        await on.until(lambda: on.answers == ["of alpha"] and len(on.app.screen_stack) == 1)
        await on.until(lambda: on.prompt.text == "")
        await on.type("of alpha")
        await resume(on, "beta")
        await on.until(lambda: on.prompt.text == "")
        await resume(on, "alpha")
        await on.until(lambda: on.prompt.text == "of alpha")
        await on.press("ctrl+n")
        await on.until(lambda: on.prompt.text == "of a new chat" and on.answers == [])
        await on.press("ctrl+n")  # it is a new chat already
        await on.type("!")
        await on.until(lambda: on.prompt.text == "of a new chat!")


async def test_what_is_typed_is_kept_while_it_is_typed_and_goes_when_it_is_sent(
    tmp_path: Path,
) -> None:
    path = tmp_path / "c.db"
    async with running(store=ConversationStore(path)) as on:
        await on.type("half a thou")
        await on.until(lambda: texts(path) == ["half a thou"])
        await on.type("ght")
        await on.until(lambda: texts(path) == ["half a thought"])
        await on.press("enter")
        await on.until(lambda: on.answers == ["Hello from the fake model."])
        await on.answered()
        await on.until(lambda: texts(path) == [])
        await on.type("next")
        await on.until(lambda: texts(path) == ["next"])
        chat = on.chat.chat.id
    store = ConversationStore(path)
    app = RunningApp(store.path)
    assert take(store, app, None).text == "" and take(store, app, chat).text == "next"
    app.end()
    store.close()


async def test_after_a_restart_each_conversation_has_its_draft(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    async with running(store=two(ConversationStore(path))) as on:
        await resume(on, "alpha")
        await on.type("of alpha")
        await on.press("ctrl+q")
        await on.until(lambda: not on.app.is_running)
    async with running(store=ConversationStore(path)) as on:
        await on.until(lambda: any("A draft waits in “alpha”" in toast for toast in on.toasts))
        assert on.prompt.text == ""
        await on.press("ctrl+r")
        await on.until(lambda: "draft: of alpha" in on.screen_text())
        await on.press("escape")
        await on.until(lambda: len(on.app.screen_stack) == 1)
        await resume(on, "alpha")
        await on.until(lambda: on.prompt.text == "of alpha")


async def test_two_apps_on_one_database_keep_a_draft_each(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    two(ConversationStore(path)).close()
    async with running(store=ConversationStore(path)) as first:
        await resume(first, "alpha")
        await first.type("of the first")
        await first.until(lambda: texts(path) == ["of the first"])
        async with running(store=ConversationStore(path)) as second:
            await resume(second, "alpha")
            await second.until(lambda: second.prompt.text == "")
            await second.type("of the second")
            await second.until(lambda: texts(path) == ["of the first", "of the second"])
        await resume(first, "beta")
        await resume(first, "alpha")
        await first.until(lambda: first.prompt.text == "of the first")
        await first.until(lambda: texts(path) == ["of the first", "of the second"])


async def test_an_edit_that_was_begun_loses_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    async with running(store=two(ConversationStore(path))) as on:
        await resume(on, "alpha")
        await on.type("draft")
        await on.press("f7", "enter")
        await on.until(lambda: on.prompt.text == "alpha")
        await on.type("!")
        await on.until(lambda: texts(path) == ["alpha!\ndraft"])
        await on.press("escape")
        await on.until(lambda: on.prompt.text == "draft")
        await on.until(lambda: texts(path) == ["draft"])


async def test_a_question_without_an_answer_comes_before_the_draft() -> None:
    store = ConversationStore.in_memory()
    chat = store.create("alpha").id
    store.begin_turn(chat, None, Message("user", "unanswered"))
    async with running(FakeAssistant(), store=store) as on:
        keep(store, on.chat._drafts._app, chat, Message("user", "typed meanwhile"))
        await on.press("ctrl+r")
        await on.until(lambda: "alpha" in on.screen_text())
        await on.press("enter")
        await on.until(lambda: on.prompt.text == "unanswered\ntyped meanwhile")


async def test_what_a_conversation_says_once_the_app_is_closed_is_no_crash() -> None:
    async with running() as on:
        on.app.quit_app()
        await on.until(lambda: not on.app.is_running)
    on.app._turns_changed()  # an opening that was on its way
    assert on.app.crash is None
