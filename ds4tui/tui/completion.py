"""The list of commands over the prompt while a command's name is typed."""

from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from ds4tui.tui.commands import Command, completions
from ds4tui.tui.words import QUIET


class CompletionList(OptionList, can_focus=False):
    """Shown while there is something to complete; the prompt keeps the focus."""

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._commands: tuple[Command, ...] = ()
        self.display = False

    def offer(self, text: str) -> bool:
        """Show what completes `text`; whether there is anything."""
        found = completions(text)
        if found != self._commands:
            self._commands = found
            self.clear_options()
            self.add_options(Option(_line(command)) for command in found)
            self.highlighted = 0 if found else None
        self.display = bool(found)
        return self.display

    def move(self, step: int) -> None:
        if self._commands:
            self.highlighted = ((self.highlighted or 0) + step) % len(self._commands)

    @property
    def chosen(self) -> Command | None:
        if not self._commands or self.highlighted is None:
            return None
        return self._commands[self.highlighted]

    def chosen_for(self, text: str) -> Command | None:
        """What is chosen for `text`, which may be newer or older than what is listed."""
        found = completions(text)
        return self.chosen if found == self._commands else found[0] if found else None


def _line(command: Command) -> Content:
    keys = f"  {', '.join(command.keys)}" if command.keys else ""
    return Content.assemble((command.usage.ljust(14), "bold"), command.help, (keys, QUIET))
