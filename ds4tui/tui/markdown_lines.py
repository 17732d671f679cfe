"""Markdown as styled lines of one width: a pure function of text, width and colours.

Textual's own Markdown makes a widget of each paragraph, item and cell, and a layout pays for each:
two dozen for a small answer. Lines cost what is parsed and wrapped, and only what changes of them.

Raw HTML and link definitions are shown as they stand, and nothing is read as Textual's markup.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markdown_it.tree import SyntaxTreeNode
from textual.content import Content
from textual.highlight import HighlightTheme, highlight
from textual.style import Style

from ds4tui.tui.words import QUIET

BULLETS = ("• ", "▪ ", "‣ ", "◦ ")
MIN_WIDTH = 8  # of what stands in lists and quotes, however deep
CODE_INDENT = 2
CODE_BACKGROUND = "on $boost"

Colours = type[HighlightTheme]


def parser() -> MarkdownIt:
    return MarkdownIt("gfm-like", {"html": False}).disable("reference")


def markdown_lines(text: str, width: int, colours: Colours = HighlightTheme) -> list[Content]:
    """`text`, which is harmless, as lines of at most `width` cells."""
    return _separated(_blocks(_parsed(text), width, colours))


class GrowingLines:
    """The same of a text that grows at its end, for what its last block costs.

    What is added can change how the last block reads, hardly ever what stands before it: only
    `whole` is sure to be what `markdown_lines` says.
    """

    def __init__(self, width: int, colours: Colours = HighlightTheme) -> None:
        self.lines: list[Content] = []
        self._width, self._colours = width, colours
        self._rest = ""  # of the text: what may read otherwise when more comes
        self._done = 0  # lines of what stands before it

    def add(self, text: str) -> int:
        """The first line that is another one now."""
        self._rest += text
        tokens = _parser().parse(self._rest)
        blocks = _of_tokens(tokens)
        open_blocks = blocks[_first_open(blocks, self._rest.count("\n")) :]
        done = blocks[: len(blocks) - len(open_blocks)]
        first = self._done
        del self.lines[first:]
        self._append(done)
        if done:
            self._done = len(self.lines)
            begin = _line_of(open_blocks[0])
            self._rest = "".join(self._rest.splitlines(keepends=True)[begin:])
        self._append(open_blocks)
        return first

    def _append(self, blocks: Sequence[SyntaxTreeNode]) -> None:
        added = _separated(_blocks(blocks, self._width, self._colours))
        if added and self.lines:
            self.lines.append(Content(""))
        self.lines += added


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    return parser()


def _parsed(text: str) -> list[SyntaxTreeNode]:
    return _of_tokens(_parser().parse(text))


def _of_tokens(tokens: Sequence[Token]) -> list[SyntaxTreeNode]:
    return list(SyntaxTreeNode(tokens).children)


def _line_of(block: SyntaxTreeNode) -> int:
    return block.map[0] if block.map else 0


def _first_open(blocks: Sequence[SyntaxTreeNode], last_line: int) -> int:
    """The place of the first block that more text may change: the last one, and, if that begins
    on a line that is not whole, what stands before it: `2` may be a list's next item."""
    last = len(blocks) - 1
    if last > 0 and _line_of(blocks[last]) >= last_line:
        return last - 1
    return max(0, last)


# Blocks


def _separated(blocks: Iterable[list[Content]]) -> list[Content]:
    lines: list[Content] = []
    for block in blocks:
        if lines and block:
            lines.append(Content(""))
        lines += block
    return lines


def _blocks(
    nodes: Iterable[SyntaxTreeNode], width: int, colours: Colours, depth: int = 0
) -> Iterator[list[Content]]:
    for node in nodes:
        yield _block(node, max(MIN_WIDTH, width), colours, depth)


def _block(node: SyntaxTreeNode, width: int, colours: Colours, depth: int) -> list[Content]:
    match node.type:
        case "heading":
            style = f"bold $markdown-{node.tag}-color" + " underline" * (node.tag in ("h1", "h2"))
            return _wrapped(_inline(node).stylize(style), width)
        case "bullet_list" | "ordered_list":
            return _list(node, width, colours, depth)
        case "blockquote":
            inner = _separated(_blocks(node.children, width - 2, colours, depth))
            return _prefixed(inner, Content.styled("▌ ", "$text-secondary"))
        case "fence" | "code_block":
            return _code(node.content, node.info, width, colours)
        case "table":
            return _table(node, width)
        case "hr":
            return [Content.styled("─" * width, QUIET)]
    return _wrapped(_inline(node), width)


def _wrapped(content: Content, width: int) -> list[Content]:
    return content.wrap(width) if content else []


def _prefixed(
    lines: Iterable[Content], first: Content, rest: Content | None = None
) -> list[Content]:
    rest = first if rest is None else rest
    return [(rest if at else first) + line for at, line in enumerate(lines)]


def _list(node: SyntaxTreeNode, width: int, colours: Colours, depth: int) -> list[Content]:
    bullets = _bullets(node, depth)
    lines: list[Content] = []
    for item, bullet in zip(node.children, bullets, strict=True):
        indent = len(bullet)
        inner = _item(item, width - indent, colours, depth + 1) or [Content("")]
        first = Content.styled(bullet, "$text-primary")
        lines += _prefixed(inner, first, Content(" " * indent))
    return lines


def _bullets(node: SyntaxTreeNode, depth: int) -> list[str]:
    count = len(node.children)
    if node.type == "bullet_list":
        return [BULLETS[depth % len(BULLETS)]] * count
    start = int(node.attrs.get("start", 1))
    numbers = [f"{number}. " for number in range(start, start + count)]
    cells = max(map(len, numbers), default=0)
    return [number.rjust(cells) for number in numbers]


def _item(node: SyntaxTreeNode, width: int, colours: Colours, depth: int) -> list[Content]:
    """What stands in an item: its paragraphs are parted, nothing else is."""
    lines: list[Content] = []
    before = ""
    for child in node.children:
        if lines and child.type == before == "paragraph":
            lines.append(Content(""))
        lines += _block(child, max(MIN_WIDTH, width), colours, depth)
        before = child.type
    return lines


def _code(code: str, info: str, width: int, colours: Colours) -> list[Content]:
    language = info.split()[0] if info.strip() else ""
    # mypy takes the hash of a class for that of its instances.
    shown = _highlighted(code.rstrip("\n"), language, colours)  # type: ignore[arg-type]
    shown = shown.expand_tabs(4)
    room = width - 2 * CODE_INDENT
    lines = [part for line in shown.split(allow_blank=True) for part in _folded(line, room)]
    return [
        line.pad(CODE_INDENT, CODE_INDENT + room - line.cell_length).stylize_before(CODE_BACKGROUND)
        for line in lines
    ]


def _folded(line: Content, width: int) -> list[Content]:
    return line.fold(width) if line.cell_length > width else [line]


@lru_cache(maxsize=64)
def _highlighted(code: str, language: str, colours: Colours) -> Content:
    return highlight(code, language=language or "text", theme=colours)


# Tables

GAP = " │ "


def _table(node: SyntaxTreeNode, width: int) -> list[Content]:
    rows = [
        [_inline(cell) for cell in row.children] for part in node.children for row in part.children
    ]
    columns = max(map(len, rows))
    if not columns:
        return []
    widths = _column_widths(rows, columns, width - (columns - 1) * len(GAP))
    lines: list[Content] = []
    for at, row in enumerate(rows):
        lines += _row([cell.stylize("bold") for cell in row] if at == 0 else row, widths)
        if at == 0:
            lines.append(Content.styled("─┼─".join("─" * cells for cells in widths), QUIET))
    return [part for line in lines for part in _folded(line, width)]


def _column_widths(rows: Sequence[Sequence[Content]], columns: int, room: int) -> list[int]:
    """As wide as the cells are; the widest are narrowed until all fit."""
    natural = [
        max((row[at].cell_length for row in rows if at < len(row)), default=1) or 1
        for at in range(columns)
    ]
    while sum(natural) > max(room, columns) and (widest := max(natural)) > 1:
        excess = sum(natural) - max(room, columns)
        at = natural.index(widest)
        others = max((w for place, w in enumerate(natural) if place != at), default=1)
        natural[at] = max(1, widest - max(1, min(excess, widest - others)))
    return natural


def _row(cells: Sequence[Content], widths: Sequence[int]) -> list[Content]:
    wrapped = [cell.wrap(width) if cell else [] for cell, width in zip(cells, widths, strict=False)]
    height = max(map(len, wrapped), default=0)
    gap = Content.styled(GAP, QUIET)
    lines = []
    for y in range(height):
        parts = [column[y] if y < len(column) else Content("") for column in wrapped]
        padded = [
            part.pad_right(width - part.cell_length)
            for part, width in zip(parts, widths, strict=False)
        ]
        lines.append(gap.join(padded))
    return lines


# Words on a line

_STYLES = {"em": "italic", "strong": "bold", "s": "strike"}


def _inline(node: SyntaxTreeNode) -> Content:
    """The words of a block, or of a part of them, with their styles."""
    if not node.children or node.type == "image":
        return _leaf(node)
    words = Content("").join(_inline(child) for child in node.children)
    if node.type == "link":
        return words.stylize(_link(str(node.attrs.get("href", ""))))
    return words.stylize(_STYLES[node.type]) if node.type in _STYLES else words


def _leaf(node: SyntaxTreeNode) -> Content:
    match node.type:
        case "softbreak":
            return Content(" ")
        case "hardbreak":
            return Content("\n")
        case "code_inline":
            return Content.styled(node.content, "$text-warning")
        case "image":
            return Content.styled(f"🖼 {node.content}", _link(str(node.attrs.get("src", ""))))
        case "paragraph" | "heading" | "inline" | "th" | "td" | "em" | "strong" | "s" | "link":
            return Content("")  # with nothing in it
    return Content(node.content)


def _link(address: str) -> Style:
    return Style.from_meta({"@click": f"link({address!r})"}) + Style(underline=True)
