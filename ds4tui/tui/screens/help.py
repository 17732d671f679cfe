"""Commands and keys, read off the command table."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from ds4tui.tui.commands import help_content


class HelpScreen(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [("escape,f1,q,enter", "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog wide") as dialog:
            dialog.border_title = "Help"
            dialog.border_subtitle = "Esc closes"
            yield Static(help_content())
