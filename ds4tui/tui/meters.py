"""The widgets that show panels' content; each redraws only what has changed."""

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget
from textual.widgets import Static

from ds4tui.assistant import ModelInfo
from ds4tui.tui.lines import Lines
from ds4tui.tui.panels import PanelView, header_content, kv_panel, status_strip

PANEL_TEXT_CELLS = 32  # the stylesheet's panel width less its border and padding


class Meter(Static):
    """A Static that is told a view as often as one likes and redraws when its text changes."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__("", id=id, markup=False)
        self._view = PanelView()
        self._shown: Content | None = None

    def content_of(self, view: PanelView) -> Content:
        raise NotImplementedError

    def show(self, view: PanelView) -> None:
        self._view = view
        if is_shown(self):
            self._draw()

    def on_show(self) -> None:
        self._draw()

    def _draw(self) -> None:
        content = self.content_of(self._view)
        if self._shown is None or not content.is_same(self._shown):
            # A layout touches every widget on the screen: only another height asks for one.
            moves = self._shown is None or self.lines_of(content) != self.lines_of(self._shown)
            self._shown = content
            self.update(content, layout=moves)

    def lines_of(self, content: Content) -> int:
        """The height of `content` in this widget."""
        return content.plain.count("\n") + 1


class StatusStrip(Meter):
    def content_of(self, view: PanelView) -> Content:
        return status_strip(view, self.content_size.width)

    def on_resize(self) -> None:
        self._draw()


class _PanelText(Lines):
    """The panel's lines; only those are drawn anew that say something else."""

    def __init__(self) -> None:
        super().__init__()
        self._view = PanelView()
        self._content = Content("")
        self._lines: list[Content] = []

    @property
    def lines(self) -> list[Content]:
        return self._lines

    def show(self, view: PanelView) -> None:
        self._view = view
        if is_shown(self):
            self._draw()

    def on_show(self) -> None:
        self._draw()

    def _draw(self) -> None:
        content = kv_panel(self._view, PANEL_TEXT_CELLS)
        if not content.is_same(self._content):
            before, self._content = self._lines, content
            self._lines = content.wrap(PANEL_TEXT_CELLS)
            for first, end in changed_runs(before, self._lines):
                self.lines_changed(first, end, is_layout=len(before) != len(self._lines))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._lines)


def is_shown(widget: Widget) -> bool:
    """Whether neither it nor what holds it is hidden."""
    return all(node.display for node in widget.ancestors_with_self if isinstance(node, Widget))


def changed_runs(before: Sequence[Content], after: Sequence[Content]) -> list[tuple[int, int]]:
    """(first, end) of the runs of lines that are not the same."""
    runs: list[tuple[int, int]] = []
    for y in range(max(len(before), len(after))):
        if y < min(len(before), len(after)) and after[y].is_same(before[y]):
            continue
        if runs and runs[-1][1] == y:
            runs[-1] = (runs[-1][0], y + 1)
        else:
            runs.append((y, y + 1))
    return runs


class KVPanel(VerticalScroll, can_focus=False):
    """What the KV cache holds and does, beside the conversation."""

    def compose(self) -> ComposeResult:
        yield _PanelText()

    def show(self, view: PanelView) -> None:
        for text in self.query_children(_PanelText):
            text.show(view)


class Header(Static):
    """The top line: program, model, title."""

    def __init__(self, id: str) -> None:
        super().__init__("", id=id, markup=False)
        self._facts: tuple[ModelInfo | None, str, str] = (None, "", "")

    def show(self, info: ModelInfo | None, opening: str, title: str) -> None:
        self._facts = (info, opening, title)
        self._draw()

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        self.update(header_content(*self._facts, self.size.width), layout=False)
