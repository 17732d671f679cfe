"""Markdown of answers: Textual's widget with what untrusted text needs.

Raw HTML and link definitions are shown as they stand (Textual would drop them unseen), links
are never opened, and a table cell is no tooltip: Textual reads a cell's tooltip as markup, and
one with an unpaired closing tag ended the app.
"""

import logging

from markdown_it import MarkdownIt
from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Markdown
from textual.widgets._markdown import MarkdownBlock, MarkdownTable, MarkdownTableContent

from ds4tui.tui.terminal_text import harmless

log = logging.getLogger(__name__)


def parser() -> MarkdownIt:
    return MarkdownIt("gfm-like", {"html": False}).disable("reference")


class _TableContent(MarkdownTableContent):
    def compose(self) -> ComposeResult:
        for cell in super().compose():
            cell.tooltip = None
            yield cell

    async def _update_rows(self, updated_rows: list[list[Content]]) -> None:
        if updated_rows:  # Textual's loop needs one
            await super()._update_rows(updated_rows)


class _Table(MarkdownTable):
    def compose(self) -> ComposeResult:
        self._headers, self._rows = self._get_headers_and_rows()
        yield _TableContent(self._headers, self._rows)


class AnswerMarkdown(Markdown):
    """The rendered text of one answer. `add` while it is written, `settle` when it is whole."""

    def __init__(self, text: str = "") -> None:
        super().__init__(harmless(text), parser_factory=parser, open_links=False)

    def get_block_class(self, block_name: str) -> type[MarkdownBlock]:
        return _Table if block_name == "table_open" else super().get_block_class(block_name)

    async def add(self, text: str) -> None:
        await self.append(harmless(text))

    async def settle(self) -> None:
        """Render the whole text anew if adding piece by piece led to other blocks than that."""
        blocks = [t for t in parser().parse(self.source) if t.level == 0 and t.nesting >= 0]
        if len(blocks) != len(self.children):
            log.debug("an answer is rendered anew: %d blocks", len(blocks))
            await self.update(self.source)
