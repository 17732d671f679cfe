"""The decisions panel: the newest decisions as a list, the chosen one in full beside or below it.

It is told views like the meters and draws only while it is shown. While the newest decision is
chosen, the choice follows what comes; any other stays chosen as long as it is kept.
"""

from collections.abc import Sequence
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from ds4tui.events import Decision
from ds4tui.tui.decisions import decision_detail, decision_line, list_head
from ds4tui.tui.panels import PanelView
from ds4tui.tui.shortcuts import shortcuts_of
from ds4tui.tui.words import QUIET

NOTHING_YET = "No decision yet: each question, and each request over HTTP, brings one."


class DecisionsView(Container):
    """Belongs to the UI loop."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "Close", show=False),
        Binding("shift+up", "scroll_detail(-3)", "Up", show=False),
        Binding("shift+down", "scroll_detail(3)", "Down", show=False),
    ]

    class Closed(Message):
        """It is to be hidden."""

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._shown: tuple[Decision, ...] = ()  # newest first
        self._view = PanelView()
        self._explained: Decision | None = None
        self._has_sessions = False
        self._head = Static("", id="decision-head", markup=False)
        self._list = OptionList(id="decision-list", markup=False)
        self._scroll = VerticalScroll(id="decision-scroll")
        self._detail = Static("", id="decision-detail", markup=False)

    def compose(self) -> ComposeResult:
        with Vertical(id="decision-history"):
            yield self._head
            yield self._list
        with self._scroll:
            yield self._detail

    def on_mount(self) -> None:
        self.border_title = "Decisions"
        key = shortcuts_of(self.app).hint("decisions")
        self.border_subtitle = f"↑↓ choose · Shift+↑↓ scroll · {key} closes"
        self._explain()

    def focus_list(self) -> None:
        self._list.focus()

    def show(self, view: PanelView) -> None:
        """Told as often as one likes; only new decisions are drawn."""
        self._view = view
        if self.display:
            self._refresh()

    @property
    def chosen(self) -> Decision | None:
        at = self._list.highlighted
        return self._shown[at] if at is not None and at < len(self._shown) else None

    def action_close(self) -> None:
        self.post_message(self.Closed())

    def action_scroll_detail(self, lines: int) -> None:
        self._scroll.scroll_relative(y=lines, animate=False)

    @on(OptionList.OptionHighlighted)
    def _choose(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        self._explain()

    def on_resize(self, event: events.Resize) -> None:
        # The list has its new width only after the layout.
        self.call_after_refresh(self._draw_list)

    def _refresh(self) -> None:
        stats = self._view.stats
        decisions: Sequence[Decision] = stats.decisions if stats is not None else ()
        self._has_sessions = stats is not None and len(stats.sessions) > 1
        newest_first = tuple(reversed(decisions))
        if newest_first != self._shown:
            self._shown, before = newest_first, self.chosen
            follows = before is None or self._list.highlighted == 0
            self._draw_list(None if follows else before)

    def _draw_list(self, chosen: Decision | None = None) -> None:
        """Draw all lines; `chosen` stays chosen, or the newest one is."""
        if chosen is None and self._list.highlighted:
            chosen = self.chosen
        width = self._list.scrollable_content_region.width
        self._head.update(list_head(width))
        at = self._shown.index(chosen) if chosen in self._shown and chosen is not None else 0
        with self._list.prevent(OptionList.OptionHighlighted):
            self._list.clear_options()
            self._list.add_options(Option(decision_line(d, width)) for d in self._shown)
            self._list.highlighted = at if self._shown else None
        self._explain()

    def _explain(self) -> None:
        decision = self.chosen
        if decision is None:
            self._detail.update(Content.styled(NOTHING_YET, QUIET))
            return
        width = self._scroll.scrollable_content_region.width
        content = decision_detail(decision, width, has_sessions=self._has_sessions)
        self._detail.update(content)
        if decision is not self._explained:
            self._explained = decision
            self._scroll.scroll_home(animate=False)
