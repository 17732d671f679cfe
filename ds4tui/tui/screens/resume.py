"""The list of all conversations, newest first, narrowed by typing. Dismissed with an id."""

import time
from collections.abc import Sequence
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from ds4tui.chat.store import ConversationSummary
from ds4tui.tui.terminal_text import one_line
from ds4tui.tui.words import QUIET, counted


class ResumeScreen(ModalScreen[int | None]):
    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss(None)", "Close")]

    def __init__(self, conversations: Sequence[ConversationSummary]) -> None:
        super().__init__()
        self._all = conversations
        self._now_s = time.time()

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog wide") as dialog:
            dialog.border_title = counted(len(self._all), "conversation")
            dialog.border_subtitle = "Enter opens, Esc closes"
            yield Input(placeholder="Type to find a title")
            yield OptionList()

    def on_mount(self) -> None:
        self._list("")

    @on(Input.Changed)
    def narrow(self, event: Input.Changed) -> None:
        self._list(event.value)

    @on(Input.Submitted)
    def open_highlighted(self) -> None:
        self.query_one(OptionList).action_select()

    @on(OptionList.OptionSelected)
    def open_chosen(self, event: OptionList.OptionSelected) -> None:
        if event.option.id is not None:
            self.dismiss(int(event.option.id))

    def on_key(self, event: events.Key) -> None:
        options = self.query_one(OptionList)
        if event.key in ("up", "down") and not options.has_focus:
            event.stop()
            options.action_cursor_up() if event.key == "up" else options.action_cursor_down()

    def _list(self, wanted: str) -> None:
        options = self.query_one(OptionList)
        options.clear_options()
        found = [c for c in self._all if wanted.lower() in c.title.lower()]
        options.add_options(Option(_line(c, self._now_s), id=str(c.id)) for c in found)
        options.highlighted = 0 if found else None


def _line(summary: ConversationSummary, now_s: float) -> Content:
    about = f"{age_words(now_s - summary.updated_at)} · {counted(summary.messages, 'message')}"
    if summary.client:
        by = "by an agent" if summary.origin == "agent" else "with an agent"
        about += f" · {by}: {one_line(summary.client)}"
    if summary.model:
        about += f" · {one_line(summary.model)}"
    return Content("\n").join(
        [Content(one_line(summary.title) or "(no title)"), Content.styled(about, QUIET)]
    )


def age_words(seconds: float) -> str:
    """`just now`, `5 minutes ago`, `3 hours ago`, `2 days ago`."""
    for size, unit in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        count = int(seconds // size)
        if count >= 1:
            return f"{counted(count, unit)} ago"
    return "just now"
