"""The disk panel in the app: text that scrolls, drawn only while it is shown."""

from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from ds4tui.tui.disk import disk_panel
from ds4tui.tui.panels import PanelView
from ds4tui.tui.shortcuts import shortcuts_of


class DiskView(VerticalScroll):
    """Belongs to the UI loop."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "Close", show=False),
    ]

    class Closed(Message):
        """It is to be hidden."""

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._view = PanelView()
        self._drawn: Content | None = None
        self._text = Static("", id="disk-text", markup=False)

    def compose(self) -> ComposeResult:
        yield self._text

    def on_mount(self) -> None:
        self.border_title = "Disk"
        key = shortcuts_of(self.app).hint("disk")
        self.border_subtitle = f"↑↓ scroll · {key} or Esc closes"

    def focus_list(self) -> None:
        self.focus()

    def show(self, view: PanelView) -> None:
        """Told as often as one likes; only what differs is drawn."""
        self._view = view
        if self.display:
            self._draw()

    def action_close(self) -> None:
        self.post_message(self.Closed())

    def on_resize(self, event: events.Resize) -> None:
        # The text has its new width only after the layout.
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        content = disk_panel(self._view.stats, self.scrollable_content_region.width)
        if self._drawn is None or not content.is_same(self._drawn):
            self._drawn = content
            self._text.update(content)
