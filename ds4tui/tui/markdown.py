"""The text of one answer as Markdown, in one widget; what its lines are is markdown_lines' part.

Untrusted: links are never opened, and no text is read as markup. Streamed: a layout of the screen
costs milliseconds, so one is asked for only when there are more lines; else only lines that are
other ones now are drawn. The engine may want the core that drawing takes.
"""

import logging
from urllib.parse import unquote

from textual.content import Content
from textual.geometry import Size
from textual.highlight import (
    ANSIDarkHighlightTheme,
    ANSILightHighlightTheme,
    HighlightTheme,
)
from textual.message import Message
from textual.strip import Strip

from ds4tui.tui.lines import Lines
from ds4tui.tui.markdown_lines import Colours, GrowingLines, markdown_lines
from ds4tui.tui.markdown_lines import parser as parser  # for who copies code
from ds4tui.tui.terminal_text import harmless

log = logging.getLogger(__name__)


class LinkChosen(Message):
    """A link in an answer was clicked. Nothing is opened: its target is shown and copied."""

    def __init__(self, href: str) -> None:
        super().__init__()
        self.href = href


class AnswerMarkdown(Lines):
    """The rendered text of one answer. `add` while it is written, `settle` when it is whole."""

    DEFAULT_CSS = """
    AnswerMarkdown {
        padding: 0 2;
        color: $foreground;
    }
    """

    def __init__(self, text: str = "") -> None:
        super().__init__()
        self._source = harmless(text)
        self._made_for: tuple[int, Colours] | None = None
        self._growing = GrowingLines(1)

    @property
    def lines(self) -> list[Content]:
        """As they are drawn; none before the widget has a size."""
        return self._growing.lines

    def add(self, text: str) -> None:
        """More text at the end."""
        more = harmless(text)
        self._source += more
        if self._made_for is not None:  # else all of it is laid out at once
            before = len(self.lines)
            self._changed(self._growing.add(more), before)

    def settle(self) -> None:
        """Render the whole text anew if adding piece by piece led to anything else than that."""
        if self._made_for is None:
            return
        whole = markdown_lines(self._source, *self._made_for)
        if len(whole) != len(self.lines) or not all(map(Content.is_same, whole, self.lines)):
            log.debug("an answer is rendered anew")
            before = len(self.lines)
            self._growing.lines[:] = whole
            self._changed(0, before)

    def _changed(self, first: int, lines_before: int) -> None:
        """Lines from `first` on are other ones."""
        end = max(len(self.lines), lines_before)
        self.lines_changed(first, end, is_layout=len(self.lines) != lines_before)

    def _lay_out(self, width: int) -> None:
        made_for = (width, self._colours)
        if width > 0 and made_for != self._made_for:
            self._made_for = made_for
            self._growing = GrowingLines(*made_for)
            self._growing.add(self._source)
            self._strips.clear()

    @property
    def _colours(self) -> Colours:
        if not self.app.native_ansi_color:
            return HighlightTheme
        return ANSIDarkHighlightTheme if self.app.current_theme.dark else ANSILightHighlightTheme

    # What Textual asks

    def get_content_width(self, container: Size, viewport: Size) -> int:
        return container.width

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        self._lay_out(width)
        return len(self.lines) + 1 if self.lines else 0  # an empty one before the footer

    def render_line(self, y: int) -> Strip:
        self._lay_out(self.content_size.width)
        return super().render_line(y)

    def action_link(self, href: str) -> None:
        """A link was clicked."""
        self.post_message(LinkChosen(harmless(unquote(href))))
