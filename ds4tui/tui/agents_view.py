"""The agents panel: requests of other programs as a list, the chosen one in full below it.

It is told views like the meters and draws only while it is shown, and only what differs. While
the newest request is chosen, the choice follows what comes.
"""

from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from ds4tui.agents import AgentRequest
from ds4tui.tui.agents import (
    NO_REQUEST,
    NO_SERVER,
    agents_head,
    agents_title,
    request_detail,
    request_line,
)
from ds4tui.tui.panels import PanelView
from ds4tui.tui.shortcuts import shortcuts_of
from ds4tui.tui.words import QUIET


class AgentsView(Container):
    """Belongs to the UI loop."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "Close", show=False),
        Binding("delete", "stop", "Stop", show=False),
    ]

    class Closed(Message):
        """It is to be hidden."""

    class Opened(Message):
        """The conversation of a request is to be shown."""

        def __init__(self, request: AgentRequest) -> None:
            super().__init__()
            self.request = request

    class Stopped(Message):
        """A request is to be cancelled."""

        def __init__(self, request: AgentRequest) -> None:
            super().__init__()
            self.request = request

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._view = PanelView()
        self._requests: tuple[AgentRequest, ...] = ()  # newest first
        self._lines: list[Content] = []
        self._drawn_numbers: list[int] = []
        self._explained: Content | None = None
        self._head = Static("", id="agents-head", markup=False)
        self._list = OptionList(id="agents-list", markup=False)
        self._scroll = VerticalScroll(id="agents-scroll", can_focus=False)
        self._detail = Static("", id="agents-detail", markup=False)

    def compose(self) -> ComposeResult:
        yield self._head
        yield self._list
        with self._scroll:
            yield self._detail

    def on_mount(self) -> None:
        self.border_title = agents_title(())
        key = shortcuts_of(self.app).hint("agents")
        self.border_subtitle = f"↑↓ choose · Enter opens · Del stops · {key} closes"

    def focus_list(self) -> None:
        self._list.focus()

    def show(self, view: PanelView) -> None:
        """Told as often as one likes; only what differs is drawn."""
        self._view = view
        if self.display:
            self._draw()

    @property
    def chosen(self) -> AgentRequest | None:
        at = self._list.highlighted
        return self._requests[at] if at is not None and at < len(self._requests) else None

    def action_close(self) -> None:
        self.post_message(self.Closed())

    def action_stop(self) -> None:
        if self.chosen is not None and self.chosen.is_at_work:
            self.post_message(self.Stopped(self.chosen))

    @on(OptionList.OptionSelected)
    def _open(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if self.chosen is not None and self.chosen.conversation_id is not None:
            self.post_message(self.Opened(self.chosen))

    @on(OptionList.OptionHighlighted)
    def _choose(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        self._explain()

    def on_resize(self, event: events.Resize) -> None:
        # The list has its new width only after the layout.
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        width = self._list.scrollable_content_region.width
        before, follows = self.chosen, not self._list.highlighted
        self._requests = self._view.requests
        lines = [request_line(request, width) for request in self._requests]
        if self._numbers() != self._drawn_numbers:
            self._list_anew(lines, None if follows else before)
        else:
            for at, (line, drawn) in enumerate(zip(lines, self._lines, strict=True)):
                if not line.is_same(drawn):
                    self._list.replace_option_prompt_at_index(at, line)
        self._lines = lines
        self._head.update(agents_head(width))
        self.border_title = agents_title(self._requests)
        self._explain()

    def _numbers(self) -> list[int]:
        return [request.number for request in self._requests]

    def _list_anew(self, lines: list[Content], chosen: AgentRequest | None) -> None:
        self._drawn_numbers = numbers = self._numbers()
        at = numbers.index(chosen.number) if chosen and chosen.number in numbers else 0
        with self._list.prevent(OptionList.OptionHighlighted):
            self._list.clear_options()
            self._list.add_options(Option(line) for line in lines)
            self._list.highlighted = at if lines else None

    def _explain(self) -> None:
        request = self.chosen
        if request is None:
            words = NO_REQUEST if self._view.server_url else NO_SERVER
            server = shortcuts_of(self.app).hint("server")
            content = Content.styled(words.format(server=server), QUIET)
        else:
            content = request_detail(request, self._scroll.scrollable_content_region.width)
        if self._explained is None or not content.is_same(self._explained):
            self._explained = content
            self._detail.update(content)
