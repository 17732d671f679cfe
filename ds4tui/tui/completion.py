"""The list over the prompt while a command's name or an @path is typed."""

from dataclasses import dataclass

from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from ds4tui.pictures.paths import quoted
from ds4tui.tui.commands import Command, completions
from ds4tui.tui.terminal_text import one_line
from ds4tui.tui.words import QUIET


@dataclass(frozen=True, slots=True)
class Choice:
    """A line of the list: a command, or the path of a picture or of a folder ("/" at its end)."""

    command: Command | None = None
    path: str = ""

    @property
    def is_folder(self) -> bool:
        return self.path.endswith("/")

    @property
    def mention(self) -> str:
        """The path as it is written in the prompt; that of a folder goes on."""
        written = f"@{quoted(self.path)}"
        return written.removesuffix('"') if self.is_folder else written

    def line(self) -> Content:
        if self.command is None:
            return Content(one_line(self.path))
        keys = f"  {', '.join(self.command.keys)}" if self.command.keys else ""
        usage = self.command.usage.ljust(16)
        return Content.assemble((usage, "bold"), self.command.help, (keys, QUIET))


class CompletionList(OptionList, can_focus=False):
    """Shown while there is something to complete; the prompt keeps the focus."""

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._choices: tuple[Choice, ...] = ()
        self.display = False

    def offer_commands(self, text: str) -> bool:
        """Show what completes `text`; whether there is anything."""
        return self._offer(tuple(map(Choice, completions(text))))

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

    def command_for(self, text: str) -> Command | None:
        """What is chosen for `text`, which may be newer or older than what is listed."""
        found = completions(text)
        if self.chosen is not None and tuple(map(Choice, found)) == self._choices:
            return self.chosen.command
        return found[0] if found else None

    def _offer(self, found: tuple[Choice, ...]) -> bool:
        if found != self._choices:
            self._choices = found
            self.clear_options()
            self.add_options(Option(choice.line()) for choice in found)
            self.highlighted = 0 if found else None
        self.display = bool(found)
        return self.display
