"""The command palette's entries, read off the command table.

A command with an argument asks for it; one with choices stands there once for each.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from textual.app import SystemCommand
from textual.screen import Screen

from ds4tui.tui.commands import Command, CommandHost, entries
from ds4tui.tui.screens.argument import ArgumentScreen
from ds4tui.tui.shortcuts import Shortcuts, spelled_all

Run = Callable[[Command, str], object]


class PaletteHost(CommandHost, Protocol):
    """What is needed of the app."""

    @property
    def shortcuts(self) -> Shortcuts: ...
    def run_command(self, command: Command, argument: str) -> bool: ...
    def push_screen(self, screen: Screen[Any], callback: Callable[[Any], None]) -> Any: ...


def palette(host: PaletteHost) -> Iterable[SystemCommand]:
    """What can be done now."""
    for entry in entries():
        command = entry.command
        if not command.is_enabled(host):
            continue
        keys = "" if entry.argument else spelled_all(host.shortcuts.of(command.name))
        help_ = f"{entry.help}  ({keys})" if keys else entry.help
        if command.argument:
            yield SystemCommand(command.usage, help_, partial(_ask, host, command))
        else:
            run = partial(host.run_command, command, entry.argument)
            yield SystemCommand(entry.text, help_, run)


def _ask(host: PaletteHost, command: Command) -> None:
    def answer(text: str | None) -> None:
        if text is not None:
            host.run_command(command, text)

    host.push_screen(ArgumentScreen(command), answer)
