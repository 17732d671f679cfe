"""Long pastes by keys: folded to a label that goes as one, unfolds by a key and is sent whole."""

from pathlib import Path

from textual import events

from ds4tui.chat.store import ConversationStore
from ds4tui.tui.shelf import FOLD_CHARS, FOLD_LINES, Shelf
from tests.fakes import FakeAssistant
from tests.tui.harness import Driver, running

LONG = "\n".join(f"line {number}" for number in range(312))
LABEL = "[pasted 312 lines]"


async def paste(on: Driver, text: str, shown: str) -> None:
    on.prompt.post_message(events.Paste(text))
    await on.until(lambda: on.prompt.text.endswith(shown), shown)


async def test_a_long_paste_is_a_label_and_is_sent_whole_and_stays_folded_in_history() -> None:
    assistant = FakeAssistant("Read.")
    async with running(assistant) as on:
        await on.type("see: ")
        await paste(on, LONG, LABEL)
        await on.type(" and say")
        await on.until(lambda: on.prompt.text == f"see: {LABEL} and say")
        await on.press("enter")
        await on.until(lambda: on.answers == ["Read."])
        await on.answered()
        assert on.chat.chat.path[0].message.text == f"see: {LONG} and say"
        assert "click to show" in on.questions[0]
        await on.press("up")
        await on.until(lambda: on.prompt.text == f"see: {LABEL} and say")
        await on.press("ctrl+a", "f7", "enter")
        await on.until(lambda: "editing" in str(on.prompt.border_title))
        await on.until(lambda: on.prompt.text == f"see: {LABEL} and say")


async def test_a_folded_paste_is_deleted_as_one_and_comes_back_by_undo() -> None:
    async with running() as on:
        await on.type("a ")
        await paste(on, LONG, LABEL)
        await on.press("backspace")
        await on.until(lambda: on.prompt.text == "a ")
        await on.press("ctrl+z")
        await on.until(lambda: on.prompt.text == f"a {LABEL}")
        await on.until(lambda: on.chat.draft.text == f"a {LONG}")


async def test_a_key_unfolds_it_and_what_is_sent_is_the_same() -> None:
    async with running() as on:
        await on.type("a ")
        await paste(on, LONG, LABEL)
        await on.press("ctrl+o")
        await on.until(lambda: on.prompt.text == f"a {LONG}")
        await on.press("!", "ctrl+o")
        await on.until(lambda: on.chat.draft.text == f"a {LONG}!")


async def test_a_draft_keeps_it_folded_over_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    async with running(store=ConversationStore(path)) as on:
        await on.type("a ")
        await paste(on, LONG, LABEL)
        await on.type(" z")
        await on.press("ctrl+q")
        await on.until(lambda: not on.app.is_running)
    async with running(store=ConversationStore(path)) as on:
        await on.until(lambda: on.prompt.text == f"a {LABEL} z")
        await on.until(lambda: on.chat.draft.text == f"a {LONG} z")


async def test_a_long_paste_that_begins_like_a_path_is_folded_too() -> None:
    log = "\n".join(f"/usr/lib/no/such/{number}.py: error" for number in range(50))
    async with running() as on:
        await paste(on, log, "[pasted 50 lines]")
        await on.until(lambda: on.chat.draft.text == log)


async def test_a_command_gets_all_of_a_paste() -> None:
    async with running() as on:
        await on.type("/system ")
        await paste(on, LONG, LABEL)
        await on.press("enter")
        await on.until(lambda: on.chat.chat.system == LONG)


def test_what_is_short_stays_and_equal_labels_have_numbers() -> None:
    shelf = Shelf()
    short = "\n".join("x" * (FOLD_LINES - 1))
    assert shelf.folded(short) == short and shelf.folded("y" * FOLD_CHARS) == "y" * FOLD_CHARS
    assert shelf.folded("y" * (FOLD_CHARS + 1)) == f"[pasted {FOLD_CHARS + 1:,} characters]"
    first, second = "\n" * FOLD_LINES, "\n" * (FOLD_LINES - 1) + "z\n"
    labels = [shelf.folded(first), shelf.folded(second), shelf.folded(first)]
    assert labels == ["[pasted 17 lines]", "[pasted 17 lines (2)]", "[pasted 17 lines]"]
    assert shelf.parted(f"a{labels[1]}b").text == f"a{second}b"
    shelf.keep_only([labels[0]])
    assert shelf.parted(labels[1]).text == labels[1] and shelf.parted(labels[0]).text == first
