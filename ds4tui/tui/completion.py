"""The list over the prompt while a command's name or an @path is typed."""

from dataclasses import dataclass

from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from ds4tui.pictures.paths import quoted
from ds4tui.tui.commands import Command, Completion, offered
from ds4tui.tui.shortcuts import shortcuts_of, spelled_all
from ds4tui.tui.terminal_text import one_line
from ds4tui.tui.words import QUIET


@dataclass(frozen=True, slots=True)
class Choice:
    """A line of the list: a command with its `keys` in words, or the path of a picture or of a
    folder ("/" at its end)."""

    completion: Completion | None = None
    keys: str = ""
    path: str = ""

    @property
    def command(self) -> Command | None:
        return self.completion.command if self.completion else None

    @property
    def is_folder(self) -> bool:
        return self.path.endswith("/")

    @property
    def mention(self) -> str:
        """The path as it is written in the prompt; that of a folder goes on."""
        written = f"@{quoted(self.path)}"
        return written.removesuffix('"') if self.is_folder else written

    def line(self) -> Content:
        if self.completion is None:
            return Content(one_line(self.path))
        told = self.completion
        usage = self._usage(told).ljust(16)
        keys = "" if told.argument else self.keys
        return Content.assemble((usage, "bold"), (f" {keys.ljust(8)} ", QUIET), told.help)

    @staticmethod
    def _usage(told: Completion) -> str:
        if told.is_choice:
            return told.text
        return f"{told.text} …" if told.command.choices else told.command.usage


class CompletionList(OptionList, can_focus=False):
    """Shown while there is something to complete; the prompt keeps the focus."""

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._choices: tuple[Choice, ...] = ()
        self.display = False

    def offer_commands(self, text: str) -> bool:
        """Show what completes `text`; whether there is anything."""
        return self._offer(self._commands(text))

    def offer_paths(self, paths: tuple[str, ...]) -> bool:
        return self._offer(tuple(Choice(path=path) for path in paths))

    def move(self, step: int) -> None:
        if self._choices:
            self.highlighted = ((self.highlighted or 0) + step) % len(self._choices)

    @property
    def is_of_paths(self) -> bool:
        return bool(self._choices) and self._choices[0].command is None

    @property
    def chosen(self) -> Choice | None:
        if not self._choices or self.highlighted is None:
            return None
        return self._choices[self.highlighted]

    def completion_for(self, text: str) -> Completion | None:
        """What is chosen for `text`, which may be newer or older than what is listed."""
        found = self._commands(text)
        if self.chosen is not None and found == self._choices:
            return self.chosen.completion
        return found[0].completion if found else None

    def _commands(self, text: str) -> tuple[Choice, ...]:
        shortcuts = shortcuts_of(self.app)
        return tuple(
            Choice(each, spelled_all(shortcuts.of(each.command.name))) for each in offered(text)
        )

    def _offer(self, found: tuple[Choice, ...]) -> bool:
        if found != self._choices:
            self._choices = found
            self.clear_options()
            self.add_options(Option(choice.line()) for choice in found)
            self.highlighted = 0 if found else None
        self.display = bool(found)
        return self.display
