"""The widgets that show panels' content; each redraws only what has changed."""

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from ds4tui.assistant import ModelInfo
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
        content = self.content_of(view)
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
        self.show(self._view)


class _PanelText(Meter):
    def content_of(self, view: PanelView) -> Content:
        return kv_panel(view, PANEL_TEXT_CELLS)

    def lines_of(self, content: Content) -> int:
        return len(content.wrap(PANEL_TEXT_CELLS))


class KVPanel(VerticalScroll, can_focus=False):
    """What the KV cache holds and does, beside the conversation."""

    def compose(self) -> ComposeResult:
        yield _PanelText()


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
