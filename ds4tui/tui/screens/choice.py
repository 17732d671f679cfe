"""A list to choose from, narrowed by typing. Dismissed with the number of what was chosen."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from ds4tui.tui.terminal_text import one_line
from ds4tui.tui.words import QUIET, cut

LINE_CHARS = 120


@dataclass(frozen=True, slots=True)
class Choice:
    """`about` stands before its first `words`, quietly; typing is looked for in `text`."""

    about: str
    text: str

    @property
    def content(self) -> Content:
        first = cut(one_line(self.text.strip()), LINE_CHARS)
        return Content.assemble((f"{self.about}  ", QUIET), first)


class ChoiceScreen(ModalScreen[int | None]):
    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss(None)", "Close")]

    def __init__(self, title: str, verb: str, choices: Sequence[Choice], at: int = 0) -> None:
        """`verb` says what Enter does; the choice number `at` is highlighted first."""
        super().__init__()
        self._choices = choices
        self._at = at
        self._words = (title, f"Enter {verb}, Esc closes")

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog wide") as dialog:
            dialog.border_title, dialog.border_subtitle = map(Content, self._words)
            yield Input(placeholder="Type to find words")
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
            self.dismiss(int(event.option.id))

    def on_key(self, event: events.Key) -> None:
        options = self.query_one(OptionList)
        if event.key in ("up", "down") and not options.has_focus:
            event.stop()
            options.action_cursor_up() if event.key == "up" else options.action_cursor_down()

    def _list(self, wanted: str) -> None:
        options = self.query_one(OptionList)
        options.clear_options()
        for number, each in enumerate(self._choices):
            if wanted.lower() in f"{each.about} {each.text}".lower():
                options.add_option(Option(each.content, id=str(number)))
        is_there = bool(options.option_count)
        options.highlighted = (self._at if not wanted else 0) if is_there else None
