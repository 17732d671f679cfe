"""A list to choose from, narrowed by typing. Dismissed with the number of what was chosen."""

from collections.abc import Sequence
from dataclasses import dataclass

from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from ds4tui.tui.screens.narrowed import NarrowedScreen
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


class ChoiceScreen(NarrowedScreen[int | None]):
    # A choice is one line, whatever it is of: the columns before its words stay columns.
    DEFAULT_CSS = """
    ChoiceScreen OptionList {
        text-wrap: nowrap;
        text-overflow: ellipsis;
    }
    """

    def __init__(self, title: str, verb: str, choices: Sequence[Choice], at: int = 0) -> None:
        """`verb` says what Enter does; the choice number `at` is highlighted first."""
        super().__init__(Content(title), f"Enter {verb}, Esc closes", "Type to find words")
        self._choices = choices
        self._at = at

    def chosen(self, number: int) -> int:
        return number

    def list_options(self, options: OptionList, wanted: str) -> None:
        for number, each in enumerate(self._choices):
            if wanted.lower() in f"{each.about} {each.text}".lower():
                options.add_option(Option(each.content, id=str(number)))
        is_there = bool(options.option_count)
        options.highlighted = (self._at if not wanted else 0) if is_there else None
