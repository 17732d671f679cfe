from pathlib import Path
from typing import Any

from textual.widgets import Input, OptionList

from ds4tui.tui.commands import COMMANDS
from ds4tui.tui.screens.argument import ArgumentScreen
from tests.tui.harness import Driver, FakeServer, running


async def chosen(on: Driver, words: str) -> None:
    """Choose the first entry of the palette that `words` find."""
    await on.press("ctrl+p")
    await on.until(lambda: "Search for commands" in on.screen_text(), "the palette is open")
    await on.type(words)
    listed = on.app.screen.query_one(OptionList)

    def is_first() -> bool:
        """The search is at work meanwhile: what stands there may be of fewer words."""
        return bool(listed.option_count) and words in str(listed.get_option_at_index(0).prompt)

    await on.until(is_first, f"{words} is found")
    await on.press("enter")


async def test_every_command_is_in_it() -> None:
    async with running() as on:
        titles = [entry.title for entry in on.app.get_system_commands(on.app.screen)]
        for command in COMMANDS:
            if command.is_enabled(on.app):
                wanted = command.usage if command.argument else f"/{command.name}"
                assert wanted in titles
        assert "/server off" in titles and "/stop" not in titles  # nothing is at work


async def test_a_command_with_an_argument_asks_for_it(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_text('[{"role": "user", "content": "from a file"}]')
    async with running() as on:
        await chosen(on, "/import")
        await on.until(lambda: isinstance(on.app.screen, ArgumentScreen), "the path is asked for")
        assert "take in a conversation" in on.screen_text()
        dialog = on.app.screen.query_one(".dialog").region
        assert abs(dialog.x - (on.app.size.width - dialog.right)) <= 1, "in the middle"
        on.app.screen.query_one(Input).value = str(path)
        await on.press("enter")
        await on.until(lambda: on.questions == ["from a file"])


async def test_an_argument_that_is_not_given_runs_nothing() -> None:
    async with running() as on:
        await chosen(on, "/system")
        await on.until(lambda: isinstance(on.app.screen, ArgumentScreen), "the text is asked for")
        await on.press("escape")
        await on.until(lambda: len(on.app.screen_stack) == 1)
        assert on.notices == []
        await chosen(on, "/system")
        await on.until(lambda: isinstance(on.app.screen, ArgumentScreen))
        await on.press("enter")  # nothing: it shows what is set
        await on.until(lambda: on.notices)
        assert "no system prompt of its own" in on.notices[0]


async def test_each_choice_of_a_command_stands_for_itself() -> None:
    servers: list[Any] = []

    def start(assistant: Any) -> FakeServer:
        servers.append(FakeServer())
        return servers[-1]

    async with running(start_server=start) as on:
        await chosen(on, "/server on")
        await on.until(lambda: on.app._server.url)
        await chosen(on, "/server off")
        await on.until(lambda: servers[0].is_stopped)
        await chosen(on, "/server off")  # it is off already
        await on.until(lambda: on.toasts.count("The server is off.") == 2)


async def test_a_word_that_a_command_does_not_know_is_told_and_comes_back() -> None:
    async with running() as on:
        await on.type("/server maybe")
        await on.press("enter")
        await on.until(lambda: on.notices)
        assert "/server takes on or off, not 'maybe'." in on.notices[0]
        await on.until(lambda: on.prompt.text == "/server maybe")


async def test_what_a_command_may_be_told_is_listed_behind_its_name() -> None:
    async with running() as on:
        await on.type("/serv")
        await on.press("tab")
        await on.until(lambda: on.prompt.text == "/server ")
        await on.until(lambda: "stop the HTTP server" in on.screen_text(), "its choices")
        await on.press("down", "down", "tab")
        await on.until(lambda: on.prompt.text == "/server off ")
