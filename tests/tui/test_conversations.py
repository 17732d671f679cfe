"""Stored conversations by keys: written to files, taken in."""

import json
import re
from pathlib import Path

import pytest
from textual.widgets import Static

from ds4tui.chat.ledger import Asked, ConversationLedger, ReplySoFar
from ds4tui.chat.messages import Image, Message
from ds4tui.chat.store import ConversationStore
from ds4tui.tui.conversations import file_stem
from tests.fakes import FakeAssistant
from tests.pictures.samples import png
from tests.tui.harness import Driver, running


async def command(on: Driver, text: str) -> None:
    on.prompt.put(text)
    await on.pilot.pause()
    await on.press("enter")


def seen() -> ConversationStore:
    """With a conversation about a picture."""
    store = ConversationStore.in_memory()
    chat = store.create("What is it?", "fake").id
    look = Message("user", "What is it?", images=(Image(png((8, 8)), 11, "a b.png"),))
    asked = store.add_message(chat, None, look)
    store.set_leaf(chat, store.add_message(chat, asked, Message("assistant", "A cat.")))
    return store


async def test_a_conversation_is_written_as_markdown_with_its_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with running(store=seen(), continue_last=True) as on:
        await on.until(lambda: on.answers == ["A cat."])
        await command(on, "/export")
        await on.press("enter")  # the first one chose it in the list of commands
        await on.until(lambda: any("What-is-it.md" in toast for toast in on.toasts))
        text = (tmp_path / "What-is-it.md").read_text()
        assert "## You\n\nWhat is it?" in text and "## Answer\n\nA cat.\n" in text
        assert "![a b.png](What-is-it-images/1-a-b.png)" in text
        assert (tmp_path / "What-is-it-images" / "1-a-b.png").read_bytes() == png((8, 8))
        await command(on, "/export")
        await on.press("enter")  # the first one chose it in the list of commands
        await on.until(lambda: (tmp_path / "What-is-it-2.md").exists())


async def test_json_goes_out_and_comes_back_as_a_conversation_that_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    assistant = FakeAssistant("Yes.")
    store = ConversationStore.in_memory()
    async with running(assistant, store=store) as on:
        await on.ask("Really?")
        await on.answered()
        await command(on, f"/export {path}")
        await on.until(path.exists)
        assert json.loads(path.read_text())["messages"][1]["content"] == "Yes."
        await on.press("ctrl+n")
        await on.until(lambda: on.answers == [])
        await command(on, f"/import {path}")
        await on.until(lambda: on.questions == ["Really?"] and on.answers == ["Yes."])
        await on.ask("Sure?")
        await on.answered()
        assert len(store.list()) == 2
        assert assistant.stats.usage.cached_tokens > 0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/import /nowhere/at/all.json", "No such file"),
        ("/import {here}/bad.json", "no JSON"),
        ("/export {here}/bad.json", "is there already"),
        ("/export {here}/bad.json/x.md", "Not a directory"),
    ],
)
async def test_files_that_cannot_be_used_are_told(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "bad.json").write_text("{")
    async with running(store=seen(), continue_last=True) as on:
        await on.until(lambda: on.answers == ["A cat."])
        await command(on, line.format(here=tmp_path))
        await on.until(lambda: any(words in notice for notice in on.notices))
        assert on.answers == ["A cat."] and (tmp_path / "bad.json").read_text() == "{"


def test_names_of_files_are_made_of_titles() -> None:
    assert file_stem("What's up? /etc/../x") == "What-s-up-etc-x"
    assert file_stem("…") == "conversation" and len(file_stem("word " * 100)) <= 60


def listed() -> ConversationStore:
    store = ConversationStore.in_memory()
    for title, said in (("alpha", "about zebras"), ("beta", "about lions")):
        chat = store.create(title).id
        asked = store.add_message(chat, None, Message("user", title))
        store.set_leaf(chat, store.add_message(chat, asked, Message("assistant", said)))
    return store


def titles(on: Driver) -> list[str]:
    lines = on.screen_text().splitlines()
    names = ("alpha", "beta", "gamma", "delta")
    return [name for name in names if any(f" {name} " in line for line in lines)]


async def test_a_conversation_is_found_by_what_was_said_in_it_and_its_cost_is_told() -> None:
    async with running(store=listed()) as on:
        await on.press("ctrl+r")
        await on.until(lambda: titles(on) == ["alpha", "beta"])
        await on.type("ZEBRAS")
        await on.until(lambda: titles(on) == ["alpha"] and "about zebras" in on.screen_text())
        await on.press("enter")
        await on.until(lambda: on.answers == ["about zebras"])
        await on.until(lambda: any("Resumed. The next question" in toast for toast in on.toasts))


def with_agents(store: ConversationStore) -> ConversationStore:
    """With gamma, which is an agent's alone; in delta a person went on."""
    ledger = ConversationLedger(store)
    for title in ("gamma", "delta"):
        joined = ledger.join(Asked((Message("user", title),), "codex", "fake"))
        ledger.note(joined, ReplySoFar("done", status="complete"))
    ledger.close()
    store.add_message(joined.conversation_id, joined.reply_id, Message("user", "And now?"))
    return store


async def test_agents_conversations_are_kept_out_of_the_list_if_wished_and_yet_reached() -> None:
    async with running(store=with_agents(listed()), agents_in_list="off") as on:
        await on.press("ctrl+r")
        await on.until(lambda: titles(on) == ["alpha", "beta", "delta"])
        assert "F3 shows agents'" in on.screen_text()
        await on.press("f3")
        await on.until(lambda: titles(on) == ["alpha", "beta", "gamma", "delta"])
        await on.press("f3")
        await on.until(lambda: titles(on) == ["alpha", "beta", "delta"])
        await on.press("f3")
        await on.until(lambda: titles(on) == ["alpha", "beta", "gamma", "delta"])
        await on.type("gam")
        await on.until(lambda: titles(on) == ["gamma"])
        await on.press("enter")
        await on.until(lambda: on.answers == ["done"])


async def test_without_that_wish_they_stand_in_the_list_and_there_is_no_such_key() -> None:
    async with running(store=with_agents(listed())) as on:
        await on.press("ctrl+r")
        await on.until(lambda: titles(on) == ["alpha", "beta", "gamma", "delta"])
        assert "F3" not in on.screen_text().split("4 conversations")[1]
        await on.press("f3", "escape")
        await on.until(lambda: len(on.app.screen_stack) == 1)


async def test_a_list_of_agents_conversations_alone_can_be_reached_too() -> None:
    store = ConversationStore.in_memory()
    ledger = ConversationLedger(store)
    ledger.join(Asked((Message("user", "gamma"),), "codex", "fake"))
    ledger.close()
    async with running(store=store, agents_in_list="off") as on:
        await on.press("ctrl+r")
        await on.until(lambda: "0 conversations" in on.screen_text())
        await on.press("f3")
        await on.until(lambda: titles(on) == ["gamma"])


async def test_a_conversation_is_renamed_in_the_list() -> None:
    store = listed()
    async with running(store=store, continue_last=True) as on:
        await on.until(lambda: on.answers == ["about lions"])
        await on.press("ctrl+r")
        await on.until(lambda: titles(on) == ["alpha", "beta"])
        await on.press("f2", "end", "ctrl+u")
        await on.type("gamma")
        await on.press("enter")
        await on.until(lambda: titles(on) == ["alpha", "gamma"])
        await on.press("f2", "escape")
        await on.until(lambda: len(on.app.screen_stack) == 2)
        await on.press("escape")
        await on.until(lambda: len(on.app.screen_stack) == 1)
        assert {c.title for c in store.list()} == {"alpha", "gamma"}
        await on.until(lambda: "gamma" in on.screen_text())


async def test_a_deleted_conversation_comes_back_by_undo() -> None:
    store = listed()
    async with running(store=store) as on:
        await on.press("ctrl+r")
        await on.until(lambda: titles(on) == ["alpha", "beta"])
        await on.press("down", "ctrl+d")
        await on.until(lambda: titles(on) == ["beta"])
        assert [c.title for c in store.list()] == ["beta"]
        await on.press("ctrl+d")
        await on.until(lambda: titles(on) == [])
        await on.press("ctrl+z", "ctrl+z")
        await on.until(lambda: titles(on) == ["alpha", "beta"])
        assert [c.title for c in store.list()] == ["beta", "alpha"]


async def test_the_list_says_what_going_on_takes_and_that_is_what_it_then_takes() -> None:
    assistant = FakeAssistant("An answer of some length.")
    async with running(assistant) as on:
        await on.ask("About zebras, at some length?")
        await on.answered()
        await on.press("ctrl+n")
        await on.until(lambda: on.answers == [])
        await on.press("ctrl+r")
        await on.until(lambda: "The next question takes" in on.screen_text())
        told = str(on.app.screen.query_one("#cost", Static).content)
        assert re.search(r"takes [\d,]+ tokens: [\d,]+ from memory, [\d,]+ to compute, about", told)
        await on.press("enter")
        await on.until(lambda: on.answers == ["An answer of some length."])
        await on.until(lambda: any(told.rstrip(".") in toast for toast in on.toasts))
        await on.ask("?")
        await on.answered()
        decision = assistant.stats.decision
        assert decision is not None
        kept, evaluated = f"{decision.kept:,} from memory", f"{decision.evaluated:,} to compute"
        assert kept in told and evaluated in told


async def test_the_cost_follows_what_is_highlighted_and_what_does_not_fit_is_told() -> None:
    store = listed()
    chat = store.create("gamma").id
    store.set_leaf(chat, store.add_message(chat, None, Message("user", "word " * 2000)))
    async with running(store=store) as on:
        await on.press("ctrl+r")
        await on.until(lambda: "does not fit" in on.screen_text())
        await on.press("down")
        await on.until(lambda: "to compute" in on.screen_text())
        await on.press("up")
        await on.until(lambda: "does not fit" in on.screen_text())
