"""Markdown of answers: Textual's widget with what untrusted and streamed text needs.

Untrusted: raw HTML and link definitions are shown as they stand (Textual would drop them
unseen), links are never opened, and a table cell has no tooltip: Textual reads it as markup, and
a cell with an unpaired closing tag ended the app.

Streamed: a layout of the screen costs about ten milliseconds, so a paragraph asks for one only
when it gets another line, and a list grows by its last item where Textual makes it anew.
"""

import logging
from collections.abc import Iterable

from markdown_it import MarkdownIt
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Label, Markdown
from textual.widgets._markdown import (
    MarkdownBlock,
    MarkdownBulletList,
    MarkdownFence,
    MarkdownOrderedList,
    MarkdownParagraph,
    MarkdownTable,
    MarkdownTableContent,
)

from ds4tui.tui.terminal_text import harmless

log = logging.getLogger(__name__)


def parser() -> MarkdownIt:
    return MarkdownIt("gfm-like", {"html": False}).disable("reference")


class AnswerMarkdown(Markdown):
    """The rendered text of one answer. `add` while it is written, `settle` when it is whole."""

    def __init__(self, text: str = "") -> None:
        super().__init__(harmless(text), parser_factory=parser, open_links=False)

    def get_block_class(self, block_name: str) -> type[MarkdownBlock]:
        return _BLOCKS.get(block_name) or super().get_block_class(block_name)

    async def add(self, text: str) -> None:
        await self.append(harmless(text))

    async def settle(self) -> None:
        """Render the whole text anew if adding piece by piece led to anything else than that."""
        whole = self._build_from_source(self.source)
        mounted = [child for child in self.children if isinstance(child, MarkdownBlock)]
        if list(_texts(whole)) != list(_texts(mounted)):
            log.debug("an answer is rendered anew")
            await self.update(self.source)


def _texts(blocks: Iterable[MarkdownBlock]) -> Iterable[tuple[str, str]]:
    """(kind, text) of blocks and what they hold, whether mounted or not, in order."""
    for block in blocks:
        text = block.code if isinstance(block, MarkdownFence) else block._content.plain
        yield type(block).__name__, text
        if isinstance(block, MarkdownTable):
            headers, rows = (
                (block._headers, block._rows)
                if block.is_attached
                else block._get_headers_and_rows()
            )
            yield "cells", repr([cell.plain for row in (headers, *rows) for cell in row])
        else:
            yield from _texts(_inner(block))


def _inner(block: MarkdownBlock) -> Iterable[MarkdownBlock]:
    for inner in block._blocks or block.children:
        if isinstance(inner, MarkdownBlock):
            yield from _inner(inner) if _is_item(inner) else (inner,)
        elif isinstance(inner, Horizontal):  # an item of a mounted list: bullet and blocks
            for part in inner.query_children(Vertical):
                yield from (b for b in part.children if isinstance(b, MarkdownBlock))


def _is_item(block: MarkdownBlock) -> bool:
    return block._token.type == "list_item_open"


class _Paragraph(MarkdownParagraph):
    def set_content(self, content: Content) -> None:
        width = self.content_size.width
        grows = not width or len(content.wrap(width)) != len(self._content.wrap(width))
        self._content = content
        self.update(content, layout=grows)


class _Fence(MarkdownFence):
    def set_content(self, content: Content) -> None:
        before, lines = self._content.plain.count("\n") + 1, content.plain.split("\n")
        self._content = content
        for label in self.query(Label):  # none before it is mounted
            fits = max(map(len, lines)) <= label.content_size.width
            label.update(content, layout=not fits or len(lines) != before)


async def _grow_list(shown: MarkdownBlock, block: MarkdownBlock) -> bool:
    """Make the mounted list `shown` the list `block` if only its end differs: whether it did.

    What is streamed only grows, so all items but the last one shown are done. The last one is
    brought up to date if it is a paragraph in both, and the others of `block` are added.
    """
    items = [item for item in shown.children if isinstance(item, Horizontal)]
    old, new = items[-1].query_children(Vertical).first(), block._blocks[len(items) - 1]
    paragraphs = [*old.children, *new._blocks]
    if len(paragraphs) != 2 or not all(isinstance(p, _Paragraph) for p in paragraphs):
        return False
    await paragraphs[0]._update_from_block(paragraphs[1])  # type: ignore[attr-defined]
    shown._copy_context(block)
    rest = list(block.compose())[len(items) :]
    if rest:
        await shown.mount_all(rest)
    return True


class _BulletList(MarkdownBulletList):
    async def _update_from_block(self, block: MarkdownBlock) -> None:
        grows = isinstance(block, _BulletList) and len(block._blocks) >= len(self.children) > 0
        if not (grows and await _grow_list(self, block)):
            await super()._update_from_block(block)


class _OrderedList(MarkdownOrderedList):
    async def _update_from_block(self, block: MarkdownBlock) -> None:
        shown = len(self.children)
        grows = isinstance(block, _OrderedList) and len(block._blocks) >= shown > 0
        # From the number 10 on all numbers are a cell wider; a list may begin with any number.
        same_width = grows and _digits(block, shown) == _digits(block, len(block._blocks))
        if not (same_width and await _grow_list(self, block)):
            await super()._update_from_block(block)


def _digits(block: MarkdownBlock, items: int) -> int:
    """Digits of the last of `items` numbers of a list that is not mounted yet."""
    first = getattr(block._blocks[0], "bullet", "")
    return len(str((int(first) if first.isdecimal() else 1) + items - 1))


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


_BLOCKS: dict[str, type[MarkdownBlock]] = {
    "paragraph_open": _Paragraph,
    "bullet_list_open": _BulletList,
    "ordered_list_open": _OrderedList,
    "fence": _Fence,
    "code_block": _Fence,
    "table_open": _Table,
}
