"""A list in a dialog, narrowed by what is typed above it; the arrows move in it meanwhile."""

from abc import abstractmethod
from typing import ClassVar, Generic, TypeVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList

Chosen = TypeVar("Chosen")


class ArrowsScreen(ModalScreen[Chosen], Generic[Chosen]):
    """Up and down move in the list while the input has the focus."""

    def on_mount(self) -> None:
        self.query_one(Input).cursor_blink = False  # nothing moves while idle

    def on_key(self, event: events.Key) -> None:
        options = self.query_one(OptionList)
        if event.key in ("up", "down") and not options.has_focus:
            event.stop()
            options.action_cursor_up() if event.key == "up" else options.action_cursor_down()


class NarrowedScreen(ArrowsScreen[Chosen], Generic[Chosen]):
    """Options have numbers as ids; dismissed with what `chosen` says of one."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss(None)", "Close")]

    def __init__(self, title: Content, keys: str, placeholder: str) -> None:
        super().__init__()
        self._dialog_words = title, Content(keys)
        self._placeholder = placeholder

    @abstractmethod
    def chosen(self, number: int) -> Chosen: ...
    @abstractmethod
    def list_options(self, options: OptionList, wanted: str) -> None:
        """Put those that have `wanted` in them into the empty list."""

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog wide") as dialog:
            dialog.border_title, dialog.border_subtitle = self._dialog_words
            yield Input(placeholder=self._placeholder)
            yield OptionList()

    def on_mount(self) -> None:
        self._list("")

    @on(Input.Changed)
    def narrow(self, event: Input.Changed) -> None:
        self._list(event.value)

    @on(Input.Submitted)
    def take_highlighted(self) -> None:
        self.query_one(OptionList).action_select()

    @on(OptionList.OptionSelected)
    def take_chosen(self, event: OptionList.OptionSelected) -> None:
        if event.option.id is not None:
            self.dismiss(self.chosen(int(event.option.id)))

    def _list(self, wanted: str) -> None:
        options = self.query_one(OptionList)
        options.clear_options()
        self.list_options(options, wanted)
