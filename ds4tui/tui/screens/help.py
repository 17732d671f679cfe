"""The help screen, read off the command table."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from ds4tui.tui.commands import COMMANDS, OTHER_KEYS
from ds4tui.tui.shortcuts import OTHER_ACTIONS, Shortcuts, shortcuts_of, spelled_all
from ds4tui.tui.words import HEADING, QUIET, hanging

_GAP = 2


class HelpScreen(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [("escape,f1,q,enter", "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog wide") as dialog:
            dialog.border_title = "Help"
            dialog.border_subtitle = "Esc closes"
            dialog.styles.scrollbar_gutter = "stable"  # or the text is cut to two widths
            yield Static()

    def on_resize(self) -> None:
        # The text has its width only after the layout.
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        width = self.query_one(VerticalScroll).scrollable_content_region.width
        self.query_one(Static).update(help_content(shortcuts_of(self.app), width))


def help_content(shortcuts: Shortcuts, width: int) -> Content:
    """The commands with their keys, then the other keys, for `width` cells."""
    rows = [(c.usage, spelled_all(shortcuts.of(c.name)), c.help) for c in COMMANDS]
    others = [
        (spelled_all(shortcuts.of(name)), words) for name, (_, words) in OTHER_ACTIONS.items()
    ]
    usage_cells = min(22, max(len(usage) for usage, _, _ in rows)) + _GAP
    keys_cells = max(len(keys) for _, keys, _ in rows) + _GAP
    lines = [Content.styled("Commands", HEADING)]
    for usage, keys, words in rows:
        head = [(usage.ljust(usage_cells), "bold"), (keys.ljust(keys_cells), QUIET)]
        lines.append(hanging(head, Content(words), usage_cells + keys_cells, width))
    other_cells = 24 + _GAP
    lines += [Content(""), Content.styled("Keys", HEADING)]
    for keys, words in [*OTHER_KEYS, *others]:
        lines.append(
            hanging([(keys.ljust(other_cells), "bold")], Content(words), other_cells, width)
        )
    return Content("\n").join(lines)
