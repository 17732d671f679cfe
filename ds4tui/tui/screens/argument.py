"""What follows a command that was chosen in the palette. Dismissed with the text, or None."""

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from ds4tui.tui.commands import Command


class ArgumentScreen(ModalScreen[str | None]):
    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss(None)", "Close")]

    def __init__(self, command: Command) -> None:
        super().__init__()
        self._command = command

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = f"/{self._command.name}"
            dialog.border_subtitle = "Enter runs it, Esc closes"
            yield Static(self._command.help, markup=False)
            yield Input(placeholder=self._command.argument)

    def on_mount(self) -> None:
        self.query_one(Input).cursor_blink = False  # nothing moves while idle

    @on(Input.Submitted)
    def take(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip())
