"""A widget of styled lines, of which only those are drawn anew that are other ones."""

from collections.abc import Sequence

from textual.content import Content
from textual.geometry import Region
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style
from textual.visual import Visual
from textual.widget import Widget


class Lines(Widget):
    """`lines`, no wider than the widget. Who changes them says so with `lines_changed`.

    A layout of the screen costs milliseconds: one is asked for only when their number is another.
    """

    DEFAULT_CSS = """
    Lines {
        width: 1fr;
        height: auto;
        text-wrap: nowrap;
        text-overflow: clip;
    }
    """

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._strips: dict[int, Strip] = {}

    @property
    def lines(self) -> Sequence[Content]:
        raise NotImplementedError

    def lines_changed(self, first: int, end: int, *, is_layout: bool) -> None:
        """Lines from `first` up to `end` are other ones; `is_layout`: there are more, or fewer."""
        for y in [y for y in self._strips if first <= y < end]:
            del self._strips[y]
        region = Region(0, first, self.outer_size.width, max(1, end - first))
        self.refresh(region, layout=is_layout)

    def render(self) -> Content:
        return Content("\n").join(self.lines)

    def render_line(self, y: int) -> Strip:
        if y >= len(self.lines):
            return Strip.blank(self.content_size.width, self.visual_style.rich_style)
        if self.text_selection is not None:
            return self._strip(y, self._selected(self.lines[y], y, self.text_selection))
        if y not in self._strips:
            self._strips[y] = self._strip(y, self.lines[y])
        return self._strips[y]

    def _strip(self, y: int, line: Content) -> Strip:
        width, style = self.content_size.width, self.visual_style
        strips = Visual.to_strips(self, line, width, 1, style, apply_selection=False, pad=True)
        blank = Strip.blank(width, style.rich_style)
        return (strips[0] if strips else blank).apply_offsets(0, y)

    def _selected(self, line: Content, y: int, selection: Selection) -> Content:
        span = selection.get_span(y)
        if span is None:
            return line
        start, end = span
        style = Style.from_styles(self.screen.get_component_styles("screen--selection"))
        return line.stylize(style, start, len(line.plain) if end == -1 else end)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        chosen = selection.extract("\n".join(line.plain for line in self.lines))
        return "\n".join(line.rstrip() for line in chosen.split("\n")), "\n"

    def notify_style_update(self) -> None:
        self._strips.clear()
        super().notify_style_update()
