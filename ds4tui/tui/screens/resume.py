"""The list of all conversations, newest first, narrowed by typing: words of titles at once, words
of messages as soon as they are found. Dismissed with an id."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Protocol

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from ds4tui.chat.store import ConversationSummary
from ds4tui.errors import StoreError
from ds4tui.tui.screens.narrowed import ArrowsScreen
from ds4tui.tui.terminal_text import one_line
from ds4tui.tui.words import QUIET, counted

# Texts are looked through when nobody has typed for so long.
TYPED_S = 0.1
KEYS = "Enter opens · F2 renames · Ctrl+D deletes · Ctrl+Z brings back · Esc closes"
AGENTS_KEYS = {False: "F3 shows agents' too", True: "F3 hides agents'"}


class Kept(Protocol):
    """The stored conversations. All raise StoreError."""

    async def listed(self, with_agents: bool) -> Sequence[ConversationSummary]: ...
    async def find(self, words: str) -> dict[int, str]: ...
    async def drafts(self) -> Mapping[int, str]: ...
    async def cost(self, conversation_id: int) -> str: ...
    async def rename(self, conversation_id: int, title: str) -> None: ...
    async def delete(self, conversation_id: int) -> None: ...
    async def restore(self, conversation_id: int) -> None: ...


class ResumeScreen(ArrowsScreen[int | None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Close", priority=True),
        Binding("f2", "rename", "Rename", priority=True),
        Binding("f3", "agents", "Agents", priority=True),
        Binding("ctrl+d", "delete", "Delete", priority=True),
        Binding("ctrl+z", "undo", "Undo", priority=True),
    ]

    def __init__(
        self,
        conversations: Sequence[ConversationSummary],
        kept: Kept,
        hides_agents: bool = False,
    ) -> None:
        """With `hides_agents` these are those in which a person wrote; a key shows the others."""
        super().__init__()
        self._hides_agents = hides_agents
        self._shows_agents = not hides_agents
        self._all = list(conversations)
        self._kept = kept
        self._found: Mapping[int, str] = {}  # text around what was found in messages
        self._drafts: Mapping[int, str] = {}
        self._costs: dict[int, str] = {}  # of the next question in each that was looked at
        self._deleted: list[tuple[int, ConversationSummary]] = []  # with their places
        self._renamed: int | None = None  # whose title is typed
        self._now_s = time.time()

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog wide") as dialog:
            dialog.border_title = counted(len(self._all), "conversation")
            dialog.border_subtitle = self._keys()
            yield Input(placeholder="Type to find words in titles and messages")
            yield Static(id="cost", markup=False)  # above the list: in sight however long that is
            yield OptionList()

    def on_mount(self) -> None:
        self._list("")
        self.run_worker(self._show_drafts())

    async def _show_drafts(self) -> None:
        try:
            self._drafts = await self._kept.drafts()
        except StoreError as exc:
            self._tell(exc)
            return
        options = self.query_one(OptionList)
        listed = {option.id for option in options.options}
        for conversation in self._all:  # in place: what is highlighted stays so
            if conversation.id in self._drafts and str(conversation.id) in listed:
                options.replace_option_prompt(str(conversation.id), self._line(conversation))

    @on(Input.Changed)
    def narrow(self, event: Input.Changed) -> None:
        if self._renamed is None:
            self._found = {}
            self._list(event.value)
            self.run_worker(self._search(event.value), group="search", exclusive=True)

    async def _search(self, wanted: str) -> None:
        await asyncio.sleep(TYPED_S)
        try:
            found = await self._kept.find(wanted)
        except StoreError as exc:
            self._tell(exc)
            return
        is_wanted = self.is_current and self.query_one(Input).value == wanted
        if self._renamed is None and is_wanted:
            self._found = found
            self._list(wanted)

    @on(OptionList.OptionHighlighted)
    def look_at(self, event: OptionList.OptionHighlighted) -> None:
        if event.option.id is not None:
            self.run_worker(self._tell_cost(int(event.option.id)), group="cost", exclusive=True)

    async def _tell_cost(self, conversation_id: int) -> None:
        """Say above the list what going on with it takes; told once nobody moves on."""
        shown = self.query_one("#cost", Static)
        if conversation_id not in self._costs:
            shown.update("")
            await asyncio.sleep(TYPED_S)
            try:
                self._costs[conversation_id] = await self._kept.cost(conversation_id)
            except StoreError as exc:
                self._tell(exc)
                return
        cost = self._costs[conversation_id]
        shown.update(f"The next question {cost.rstrip('.')}." if cost else "")

    @on(Input.Submitted)
    async def open_highlighted(self, event: Input.Submitted) -> None:
        if self._renamed is None:
            self.query_one(OptionList).action_select()
        else:
            await self._rename(self._renamed, event.value)

    # Renaming, deleting

    def action_leave(self) -> None:
        if self._renamed is None:
            self.dismiss(None)
        else:
            self._end_renaming()

    def action_rename(self) -> None:
        chosen = self._highlighted()
        if chosen is not None and self._renamed is None:
            self._renamed = chosen.id
            self._words("Another title", "Enter renames · Esc leaves it as it was")
            given = self.query_one(Input)
            given.value = chosen.title
            given.focus()

    async def _rename(self, conversation_id: int, title: str) -> None:
        title = " ".join(title.split())
        if title:
            try:
                await self._kept.rename(conversation_id, title)
            except StoreError as exc:
                self._tell(exc)
                return
            self._all = [
                replace(c, title=title) if c.id == conversation_id else c for c in self._all
            ]
        self._end_renaming()

    def _end_renaming(self) -> None:
        self.query_one(Input).value = ""
        self._renamed = None
        self._words(counted(len(self._all), "conversation"), self._keys())
        self._list("")

    async def action_agents(self) -> None:
        if not self._hides_agents or self._renamed is not None:
            return
        shows = not self._shows_agents
        try:
            listed = await self._kept.listed(with_agents=shows)
        except StoreError as exc:
            self._tell(exc)
            return
        self._all, self._shows_agents = list(listed), shows
        self._changed()

    def _keys(self) -> str:
        return f"{AGENTS_KEYS[self._shows_agents]} · {KEYS}" if self._hides_agents else KEYS

    async def action_delete(self) -> None:
        chosen = self._highlighted()
        if chosen is None or self._renamed is not None:
            return
        try:
            await self._kept.delete(chosen.id)
        except StoreError as exc:
            self._tell(exc)
            return
        place = self._all.index(chosen)
        self._deleted.append((place, self._all.pop(place)))
        self._changed()
        self.notify("Deleted for good in 30 days. Ctrl+Z brings it back.")

    async def action_undo(self) -> None:
        if not self._deleted or self._renamed is not None:
            return
        place, chosen = self._deleted[-1]
        try:
            await self._kept.restore(chosen.id)
        except StoreError as exc:
            self._tell(exc)
            return
        self._deleted.pop()
        self._all.insert(place, chosen)
        self._changed()

    def _changed(self) -> None:
        self._words(counted(len(self._all), "conversation"), self._keys())
        self._list(self.query_one(Input).value)

    def _highlighted(self) -> ConversationSummary | None:
        options = self.query_one(OptionList)
        option = options.highlighted_option
        return next((c for c in self._all if option and str(c.id) == option.id), None)

    def _words(self, title: str, keys: str) -> None:
        dialog = self.query_one(".dialog")
        dialog.border_title, dialog.border_subtitle = title, keys

    def _tell(self, error: StoreError) -> None:
        self.notify(f"{error.message} {error.hint}", severity="error")

    @on(OptionList.OptionSelected)
    def open_chosen(self, event: OptionList.OptionSelected) -> None:
        if event.option.id is not None:
            self.dismiss(int(event.option.id))

    def _list(self, wanted: str) -> None:
        if not self.is_current:  # it was left while a key still waited
            return
        options = self.query_one(OptionList)
        options.clear_options()
        words = wanted.casefold()
        found = [c for c in self._all if words in c.title.casefold() or c.id in self._found]
        options.add_options(Option(self._line(c), id=str(c.id)) for c in found)
        options.highlighted = 0 if found else None

    def _line(self, of: ConversationSummary) -> Content:
        draft = self._drafts.get(of.id, "")
        return _line(of, self._now_s, self._found.get(of.id, ""), draft)


def _line(summary: ConversationSummary, now_s: float, found: str = "", draft: str = "") -> Content:
    about = f"{age_words(now_s - summary.updated_at)} · {counted(summary.messages, 'message')}"
    if summary.client:
        by = "by an agent" if summary.origin == "agent" else "with an agent"
        about += f" · {by}: {one_line(summary.client)}"
    if summary.model:
        about += f" · {one_line(summary.model)}"
    lines = [Content(one_line(summary.title) or "(no title)"), Content.styled(about, QUIET)]
    if found:
        lines.append(Content(f"  {one_line(found)}"))
    if draft:
        lines.append(Content.styled(f"  draft: {one_line(draft)}", "$text-accent"))
    return Content("\n").join(lines)


def age_words(seconds: float) -> str:
    """`just now`, `5 minutes ago`, `3 hours ago`, `2 days ago`."""
    for size, unit in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        count = int(seconds // size)
        if count >= 1:
            return f"{counted(count, unit)} ago"
    return "just now"
