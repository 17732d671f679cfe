"""The parts of a transcript: a question, an answer with its footer, a notice.

Each is cheap once it is old: a question or notice is one widget, an answer two (its text as it
was written, without Markdown, and its footer).
"""

import logging
from collections.abc import Sequence
from typing import ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from ds4tui.chat.messages import Image
from ds4tui.events import Event, ReasoningText
from ds4tui.tui.markdown import AnswerMarkdown
from ds4tui.tui.markdown import LinkChosen as LinkChosen
from ds4tui.tui.previews import Previews
from ds4tui.tui.shelf import TokensOf
from ds4tui.tui.terminal_text import harmless
from ds4tui.tui.thought import Thought
from ds4tui.tui.words import QUIET

log = logging.getLogger(__name__)

# A pasted file as a question is folded: it was read before it was sent.
FOLD_LINES, FOLD_CHARS = 24, 4000
FOLDED_LINES, FOLDED_CHARS = 12, 1000


class Question(Static):
    """What a person asked, or what a program (`by`) sent. A long one is folded; a click unfolds
    it."""

    def __init__(self, text: str, by: str = "") -> None:
        self._text = harmless(text)
        self._by = Content.styled(f"{harmless(by)}\n", QUIET) if by else Content("")
        self._is_folded = self._text.count("\n") >= FOLD_LINES or len(self._text) > FOLD_CHARS
        self._mark = ""
        super().__init__(self._content(), classes="question")

    def show_mark(self, mark: str) -> None:
        """Which of several questions at its place it is; "" where it is the only one."""
        if mark != self._mark:
            self._mark = mark
            self._show()

    def _show(self) -> None:
        mark = [Content.styled(self._mark, QUIET)] if self._mark else []
        self.update(Content("\n").join([self._content(), *mark]))

    def _content(self) -> Content:
        if not self._is_folded:
            return self._by + self._text
        begin = "\n".join(self._text.split("\n")[:FOLDED_LINES])[:FOLDED_CHARS]
        more = f"… {len(self._text) - len(begin):,} more characters, click to show"
        return Content("\n").join([self._by + begin, Content.styled(more, QUIET)])

    def on_click(self) -> None:
        if self._is_folded:
            self._is_folded = False
            self._show()

    def set_aside(self) -> None:
        """Show that the question is no part of the conversation."""
        self.add_class("aside")


class PictureQuestion(Vertical):
    """A question with pictures: its words over them."""

    def __init__(
        self, text: str, images: Sequence[Image], tokens_of: TokensOf, by: str = ""
    ) -> None:
        super().__init__(classes="pictures-asked")
        self._question = Question(text, by)
        self._question.display = bool(text.strip())
        self.previews = Previews(images, tokens_of)

    def compose(self) -> ComposeResult:
        yield self._question
        yield self.previews

    def show_mark(self, mark: str) -> None:
        self._question.show_mark(mark)

    def set_aside(self) -> None:
        self.add_class("aside")
        self._question.set_aside()


NoticeKind = Literal["information", "warning", "error"]


class Notice(Static):
    """What the app itself has to say: an error with its hint, a warning, the system prompt."""

    def __init__(self, message: str, hint: str = "", kind: NoticeKind = "information") -> None:
        label = "" if kind == "information" else f"{kind}  "  # told without colour, too
        parts = [Content.assemble((label, f"bold $text-{kind}"), harmless(message))]
        if hint:
            parts.append(Content.styled(harmless(hint), QUIET))
        super().__init__(Content("\n").join(parts), classes=f"notice {kind}")


class Warned(Notice, can_focus=True):
    """A warning that can be put away, by a click or a key while it has the focus."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,escape,delete", "put_away", "Put away", show=False)
    ]

    def __init__(self, message: str, hint: str) -> None:
        how = "A click puts this away, so does Enter on it."
        super().__init__(message, f"{hint}\n{how}", "warning")

    def action_put_away(self) -> None:
        self.display = False

    def on_click(self) -> None:
        if not self.screen.get_selected_text():
            self.action_put_away()


class Answer(Vertical):
    """What the model answered: its text (Markdown, or plain once it is old) and a footer.

    Satisfies turn.AnswerView. Adding text never fails: if Markdown cannot show it, the answer
    goes on as plain text.
    """

    def __init__(
        self,
        text: str = "",
        footer: str = "",
        *,
        is_rich: bool = True,
        thought: Thought | None = None,
        shows_thoughts: bool = False,
    ) -> None:
        super().__init__(classes="answer")
        self.text = text
        self.thought = thought
        self._shows_thoughts = shows_thoughts
        self._words, self._mark = footer, ""
        self._footer = Static(footer, classes="footer", markup=False)
        self._body: Widget = AnswerMarkdown(text) if is_rich else _plain(text)

    def compose(self) -> ComposeResult:
        if self.thought is not None:
            yield self.thought
        yield self._body
        yield self._footer

    def hear(self, event: Event) -> None:
        """What the model thinks is shown, or at least its length."""
        if not isinstance(event, ReasoningText):
            return
        if self.thought is not None:
            self.thought.add(event.text, len(event.token_ids))
        elif self.is_attached:
            shows = self._shows_thoughts
            self.thought = Thought(event.text, len(event.token_ids), is_open=shows)
            self.mount(self.thought, before=self._body)

    def show_thought(self, is_shown: bool) -> None:
        self._shows_thoughts = is_shown
        if self.thought is not None:
            self.thought.unfold(is_shown)

    @property
    def is_rich(self) -> bool:
        return isinstance(self._body, AnswerMarkdown)

    async def add_text(self, text: str) -> None:
        self.text += text
        if isinstance(self._body, AnswerMarkdown):
            try:
                self._body.add(text)
            except Exception:  # Textual's renderer against arbitrary text: the text must survive
                log.exception("Markdown could not show an answer; it is shown as plain text")
                await self.make_plain()
        elif isinstance(self._body, Static):
            self._body.update(harmless(self.text))

    def show_progress(self, words: str) -> None:
        self._words = words
        self._footer.update(" ".join(filter(None, (self._mark, words))))

    def show_mark(self, mark: str) -> None:
        """Which of several answers to its question it is; "" where it is the only one."""
        if mark != self._mark:
            self._mark = mark
            self.show_progress(self._words)

    async def settle(self, footer: str) -> None:
        """The answer is whole (or as whole as it gets)."""
        self.show_progress(footer)
        if isinstance(self._body, AnswerMarkdown):
            self._body.settle()

    async def make_plain(self) -> None:
        if self.is_rich:
            await self._show_as(_plain(self.text))

    async def make_rich(self) -> None:
        if not self.is_rich:
            await self._show_as(AnswerMarkdown(self.text))

    async def _show_as(self, body: Widget) -> None:
        old, self._body = self._body, body
        with self.app.batch_update():
            await self.mount(body, before=old)
            await old.remove()


def _plain(text: str) -> Static:
    return Static(harmless(text), classes="plain", markup=False)
