"""The conversation on the screen: everything is known, only the end of it is mounted.

Textual pays for every mounted widget on every layout: a hundred Markdown answers make the loop
lag by 200 ms, and the engine wants that core. So the newest RICH_MESSAGES are Markdown, those
before them plain text, and what is older than MOUNTED_MESSAGES waits as a value until somebody
scrolls up to it.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Static

from ds4tui.chat.messages import Image, ToolCall
from ds4tui.chat.messages import Message as ChatMessage
from ds4tui.chat.store import StoredMessage
from ds4tui.library.screens import SAMPLE_NAME
from ds4tui.tui.graphics import Way
from ds4tui.tui.messages import Answer, Notice, PictureQuestion, Question
from ds4tui.tui.panels import stored_usage_words
from ds4tui.tui.shelf import TokensOf
from ds4tui.tui.shortcuts import Shortcuts, shortcuts_of
from ds4tui.tui.terminal_text import one_line
from ds4tui.tui.thought import Thought
from ds4tui.tui.words import HEADING, QUIET, cut

RICH_MESSAGES = 12
LOADED_MESSAGES = 20  # of a conversation that is opened
MOUNTED_MESSAGES = 60
EARLIER_MESSAGES = 20
CALL_CHARS = 400  # of a call's arguments
PREVIEWED_QUESTIONS = 6  # whose pictures are drawn; older ones are captions


@dataclass
class Entry:
    """One message of the transcript, whether it is mounted (`view`) or not."""

    kind: Literal["question", "answer", "notice"]
    text: str = ""
    footer: str = ""
    is_aside: bool = False
    images: tuple[Image, ...] = ()
    by: str = ""  # the program that sent it; "": a person
    mark: str = ""  # which it is of several at its place
    thought: str = ""  # before the answer
    thought_tokens: int = 0
    view: Widget | None = None

    @classmethod
    def of_stored(cls, stored: StoredMessage) -> "Entry":
        if stored.message.role == "assistant":
            footer = stored_usage_words(stored.stats, stored.status)
            entry = cls("answer", answer_text(stored.message), footer)
            entry.thought = stored.message.reasoning
            entry.thought_tokens = (stored.stats or {}).get("thought_tokens", 0)
            return entry
        message = stored.message
        return cls("question", message.text, images=message.images, by=sender_words(stored))

    def answer(self, *, is_rich: bool, shows_thoughts: bool) -> Answer:
        thought = None
        if self.thought:
            thought = Thought(self.thought, self.thought_tokens, is_open=shows_thoughts)
        return Answer(self.text, self.footer, is_rich=is_rich, thought=thought)

    def make_view(self, tokens_of: TokensOf, *, shows_thoughts: bool = False) -> Widget:
        """A cheap widget of it (notices are made where their words are known)."""
        match self.kind:
            case "answer":
                self.view = self.answer(is_rich=False, shows_thoughts=shows_thoughts)
            case "question":
                question = _question(self.text, self.images, tokens_of, self.by)
                if self.is_aside:
                    question.set_aside()
                self.view = question
            case "notice":
                self.view = Notice(self.text)
        self.show_mark(self.mark)
        return self.view

    def show_mark(self, mark: str) -> None:
        self.mark = mark
        if isinstance(self.view, Question | PictureQuestion | Answer):
            self.view.show_mark(mark)


def _question(
    text: str, images: tuple[Image, ...], tokens_of: TokensOf, by: str
) -> Question | PictureQuestion:
    return PictureQuestion(text, images, tokens_of, by) if images else Question(text, by)


def sender_words(stored: StoredMessage) -> str:
    """Who sent a message that is no reply; "" for a person."""
    message = stored.message
    if message.role == "user":
        return one_line(stored.client)
    named = f" of {message.name}" if message.name else ""
    what = {"tool": f"result{named}", "system": "instructions"}.get(message.role, message.role)
    return " · ".join(filter(None, (one_line(stored.client), one_line(what))))


def answer_text(message: ChatMessage) -> str:
    """A reply as it is shown: its words, then its calls."""
    calls = [f"`{_call_words(call)}`" for call in message.tool_calls]
    return "\n\n".join(filter(None, (message.text.strip() if calls else message.text, *calls)))


def _call_words(call: ToolCall) -> str:
    arguments = cut(call.arguments, CALL_CHARS).replace("`", "'")
    return one_line(f"{call.name}({arguments})")


class Earlier(Static):
    """Stands for the messages before the first mounted one."""

    def on_click(self) -> None:
        self.post_message(Transcript.EarlierWanted())


class Transcript(VerticalScroll):
    """Follows its end until somebody scrolls up, and again once they are back at the end."""

    class EarlierWanted(Message):
        """Older messages are to be mounted."""

    class Followed(Message):
        """Whether the end is in view has changed."""

        def __init__(self, is_at_end: bool) -> None:
            super().__init__()
            self.is_at_end = is_at_end

    class Typed(Message):
        """Somebody typed while the transcript had the focus."""

        def __init__(self, character: str) -> None:
            super().__init__()
            self.character = character

    def __init__(self, id: str, way: Way = Way.TEXT) -> None:
        super().__init__(id=id)
        self._tokens_of: TokensOf = lambda size: None
        self._way = way
        self._welcome = Static("", id="welcome")
        self._entries: list[Entry] = []
        self._first = 0  # index of the first mounted entry
        self._earlier = Earlier(id="earlier")
        # As high as the view at least: Textual hangs an anchored, shorter content from the end.
        self._messages = Vertical(id="messages")
        self._is_at_end = True
        self._shows_thoughts = False

    def compose(self) -> ComposeResult:
        with self._messages:
            yield self._welcome
            yield self._earlier

    def on_mount(self) -> None:
        self.offer_sample(False)
        self._show_earlier()
        self.anchor()

    # What the app calls

    def count_by(self, tokens_of: TokensOf) -> None:
        """What pictures cost from now on, by the model that is open; their captions say it."""
        self._tokens_of = tokens_of
        for question in self._with_pictures():
            question.previews.count_by(tokens_of)

    def show_thoughts(self, is_shown: bool) -> None:
        """Unfold what the model thinks, from now on and in what is mounted; or fold it."""
        self._shows_thoughts = is_shown
        for entry in self._entries[self._first :]:
            if isinstance(entry.view, Answer):
                entry.view.show_thought(is_shown)

    @property
    def shows_thoughts(self) -> bool:
        return self._shows_thoughts

    def offer_sample(self, is_offered: bool) -> None:
        """Whether an empty chat tells how to try a picture."""
        self._welcome.update(welcome_content(shortcuts_of(self.app), is_offered))

    async def show(self, stored: list[StoredMessage]) -> None:
        """Replace everything by a loaded conversation, its end at once and plain; `enrich`
        makes Markdown of it."""
        await self.clear()
        self._entries = [Entry.of_stored(message) for message in stored]
        self._first = max(0, len(self._entries) - LOADED_MESSAGES)
        await self._messages.mount_all(self._view_of(e) for e in self._entries[self._first :])
        self._show_earlier()
        self.anchor()

    async def enrich(self) -> None:
        """Make Markdown of the newest answers and show the newest pictures, last one first,
        between other work."""
        for entry in reversed(self._entries[-RICH_MESSAGES:]):
            if isinstance(entry.view, Answer) and entry.view.is_attached:
                await entry.view.make_rich()
                await asyncio.sleep(0)
        for view in self._with_pictures()[-PREVIEWED_QUESTIONS:][::-1]:
            await view.previews.show(self._way)

    async def clear(self) -> None:
        views = [e.view for e in self._entries if e.view is not None]
        self._entries, self._first = [], 0
        self._show_earlier()
        await self._messages.remove_children(views)

    async def cut(self, kept: int) -> None:
        """Take away what stands behind the first `kept` messages of the conversation."""
        of_path = self._of_path()
        if kept >= len(of_path):
            return
        end = next(at for at, entry in enumerate(self._entries) if entry is of_path[kept])
        gone = [e.view for e in self._entries[end:] if e.view is not None]
        del self._entries[end:]
        await self._messages.remove_children(gone)
        if self._first >= end:  # nothing of what stays is mounted
            self._first = max(0, end - EARLIER_MESSAGES)
            await self._messages.mount_all(self._view_of(e) for e in self._entries[self._first :])
        self._show_earlier()
        self.anchor()

    def mark(self, marks: Sequence[str]) -> None:
        """Show beside each message of the conversation which it is of several at its place."""
        for entry, mark in zip(self._of_path(), marks, strict=False):
            entry.show_mark(mark)

    async def add_question(self, text: str, images: tuple[Image, ...] = ()) -> None:
        entry = Entry("question", text, images=images)
        self._view_of(entry)
        await self._add(entry)
        self.anchor()
        if images:
            self.run_worker(self._show_new_pictures(), group="previews")

    async def add_answer(self) -> Answer:
        answer = Answer(shows_thoughts=self._shows_thoughts)
        await self._add(Entry("answer", view=answer))
        return answer

    async def add_stored(self, stored: Sequence[StoredMessage]) -> None:
        """Messages that others wrote, at the end; their answers are Markdown."""
        for message in stored:
            if not self.is_attached:
                return  # the app is closed
            entry = Entry.of_stored(message)
            self._view_of(entry)
            if entry.kind == "answer":
                entry.view = entry.answer(is_rich=True, shows_thoughts=self._shows_thoughts)
            await self._add(entry)
        await self._age()

    async def end_stored(self, answer: Answer, whole: StoredMessage, footer: str) -> None:
        """An answer that others had written is whole: show what it is in the store."""
        text = answer_text(whole.message)
        if text.startswith(answer.text):
            await answer.add_text(text[len(answer.text) :])
        await self.end_turn(answer, footer, is_aside=False)

    async def add_notice(self, notice: Notice, text: str) -> None:
        await self._add(Entry("notice", text, view=notice))

    async def end_turn(self, answer: Answer, footer: str, *, is_aside: bool) -> None:
        """The newest answer is whole; `is_aside`: its turn is no part of the conversation."""
        await answer.settle(footer)
        for entry in self._entries[-2:]:
            if entry.view is answer:
                entry.text, entry.footer = answer.text, footer
                if answer.thought is not None:
                    entry.thought = answer.thought.text
                    entry.thought_tokens = answer.thought.tokens
            entry.is_aside = is_aside
            if is_aside and isinstance(entry.view, Question | PictureQuestion):
                entry.view.set_aside()
            elif is_aside and entry.view is not None:
                entry.view.add_class("aside")
        await self._age()

    async def take_back(self, answer: Answer) -> None:
        """The newest turn did not come about: nothing of it stays."""
        gone = [e for e in self._entries[-2:] if e.view is not None]
        if gone and gone[-1].view is answer:
            del self._entries[-2:]
            await self._messages.remove_children([e.view for e in gone if e.view is not None])

    async def show_earlier(self) -> None:
        """Mount the messages before the first mounted one; what is in view stays in view."""
        if not self._first:
            return
        begin = max(0, self._first - EARLIER_MESSAGES)
        added = [self._view_of(e) for e in self._entries[begin : self._first]]
        first_view = self._entries[self._first].view
        self._first = begin
        self._show_earlier()
        self.release_anchor()
        await self._messages.mount_all(added, after=self._earlier)
        if first_view is not None:
            self.call_after_refresh(
                self.scroll_to_widget, first_view, animate=False, top=True, force=True
            )

    @property
    def is_at_end(self) -> bool:
        """Whether the end is in view (and new text will be)."""
        return self._is_at_end

    async def scroll_towards(self, direction: str) -> None:
        """page_up, page_down, up, down, home or end."""
        if direction in ("page_up", "home") and self.scroll_y <= 0 and self._first:
            await self.show_earlier()
        elif direction == "end":
            self.anchor()
        elif self.max_scroll_y > 0:  # else Textual would let go of the end and never follow again
            getattr(self, f"scroll_{direction}")(animate=False)

    def on_key(self, event: events.Key) -> None:
        if event.character is not None and event.is_printable:
            event.stop()
            self.post_message(self.Typed(event.character))

    # Inside

    def _view_of(self, entry: Entry) -> Widget:
        return entry.make_view(self._tokens_of, shows_thoughts=self._shows_thoughts)

    async def _add(self, entry: Entry) -> None:
        self._entries.append(entry)
        self._welcome.display = False
        assert entry.view is not None
        if self._messages.is_attached:  # an app on its way out has nobody to show it to
            await self._messages.mount(entry.view)

    def _of_path(self) -> list[Entry]:
        """The messages that belong to the conversation; while a turn is at work, its own, too."""
        return [e for e in self._entries if e.kind != "notice" and not e.is_aside]

    def _with_pictures(self) -> list[PictureQuestion]:
        """The mounted questions with pictures, oldest first."""
        views = (entry.view for entry in self._entries[self._first :])
        return [v for v in views if isinstance(v, PictureQuestion) and v.is_attached]

    async def _show_new_pictures(self) -> None:
        views = self._with_pictures()
        for view in views[:-PREVIEWED_QUESTIONS]:
            await view.previews.hide()
        if views:
            await views[-1].previews.show(self._way)

    async def _age(self) -> None:
        """Make old Markdown plain and unmount what is older still."""
        for entry in self._entries[self._first : -RICH_MESSAGES]:
            if isinstance(entry.view, Answer):
                await entry.view.make_plain()
        surplus = len(self._entries) - MOUNTED_MESSAGES - self._first
        if surplus > 0 and self._is_at_end:
            gone = self._entries[self._first : self._first + surplus]
            self._first += surplus
            await self._messages.remove_children([e.view for e in gone if e.view is not None])
            for entry in gone:
                entry.view = None
            self._show_earlier()

    def _show_earlier(self) -> None:
        self._welcome.display = not self._entries
        self._earlier.display = self._first > 0
        self._earlier.update(f"▲ {self._first:,} earlier messages: click, or PageUp at the top")

    # The position itself says nothing: it lags behind what is added, and behind a resize.

    def release_anchor(self) -> None:
        super().release_anchor()
        self._set_at_end(False)

    def anchor(self, anchor: bool = True) -> None:
        super().anchor(anchor)
        self._set_at_end(True)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if new_value >= self.max_scroll_y:
            self._set_at_end(True)

    def _set_at_end(self, is_at_end: bool) -> None:
        if is_at_end != self._is_at_end:
            self._is_at_end = is_at_end
            self.post_message(self.Followed(is_at_end))


def welcome_content(shortcuts: Shortcuts, has_sample: bool = False) -> Content:
    """What an empty chat shows; `has_sample`: the model that is open sees pictures."""
    tips = (
        ("Enter", "sends"),
        (shortcuts.hint("stop"), "stops an answer, also while the prompt is read"),
        ("/", "lists the commands"),
        (shortcuts.hint("panel"), "shows what the KV cache holds"),
        (shortcuts.hint("decisions"), "tells why each prompt cost what it did"),
        (shortcuts.hint("server"), "serves this model to other programs"),
    )
    lines = [
        Content.styled("ds4tui", HEADING),
        Content.styled("never computes a token twice without saying why", QUIET),
        Content(""),
    ]
    cells = max(6, *(len(key) for key, _ in tips))
    lines += [Content.assemble((key.rjust(cells), "bold"), f"  {words}") for key, words in tips]
    if has_sample:
        sample = (f"/image {SAMPLE_NAME}", "bold")
        lines += [
            Content(""),
            Content.assemble("Try ", sample, ": a screenshot, and a question about it"),
        ]
    return Content("\n").join(lines)
