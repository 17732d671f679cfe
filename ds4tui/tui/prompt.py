"""The prompt: a text area that sends on Enter and never loses what was typed.

It knows no command and no engine. It posts what a person wants (send, scroll, complete), and
the app decides. Enter takes the text out at once, so that keys typed ahead never mix with it;
the app gives it back if it is not to be used now.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

from rich.style import Style
from rich.text import Text
from textual import events
from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual.document._document import EditResult, Selection
from textual.document._edit import Edit
from textual.message import Message
from textual.widgets import TextArea

from ds4tui.pictures.paths import may_be_a_drop
from ds4tui.tui import whole_pastes  # noqa: F401  (pastes come whole once it is loaded)
from ds4tui.tui.labels import FindLabels, Mention, beside, mention_before, no_labels, widened
from ds4tui.tui.terminal_text import pasted

NEWLINE_KEYS = ("shift+enter", "alt+enter", "ctrl+j")
# How Textual names them as some terminals send them (xterm's modifyOtherKeys), and one more.
OTHER_NEWLINE_KEYS = (
    "\r", "shift+\r", "alt+\r", "ctrl+\r", "ctrl+shift+\r",
    "ctrl+enter", "alt+shift+enter", "ctrl+shift+enter",
)  # fmt: skip
UNFOLD_KEY = "ctrl+o"
# Keys that move in the transcript although the prompt has the focus.
SCROLL_KEYS = {
    "pageup": "page_up",
    "pagedown": "page_down",
    "ctrl+up": "up",
    "ctrl+down": "down",
    "ctrl+home": "home",
    "ctrl+end": "end",
}


# Told without colour, too: every theme and NO_COLOR show it.
LABEL_STYLE = Style(bold=True, reverse=True)


class _LegacyKeys(Enum):
    ALT_ENTER = "alt+enter"


# Terminals without the kitty protocol send Alt+Enter as ESC CR, which Textual reads as Enter, some
# with an own setting for it ESC LF, which Textual reads as ^ and a line end.
for _sent in ("\x1b\r", "\x1b\n"):
    cast(dict[str, Any], ANSI_SEQUENCES_KEYS).setdefault(_sent, (_LegacyKeys.ALT_ENTER,))


class Prompt(TextArea):
    """A multi-line prompt, up to eight lines high."""

    @dataclass
    class Submitted(Message):
        """Enter was pressed. `text` stood in the prompt and is out of it: what is typed from now
        on is a new draft. Who does not use it gives it back."""

        text: str

    @dataclass
    class Scroll(Message):
        """The transcript is to be scrolled: page_up, page_down, up, down, home or end."""

        direction: str

    @dataclass
    class Choose(Message):
        """A key for the list of completions: up, down, tab, enter or escape. With enter, `text`
        is taken as by Submitted, unless a path is completed."""

        key: str
        text: str = ""

    @dataclass
    class CopyWanted(Message):
        text: str

    class Rewritten(Message):
        """Text was taken out, or given back, without Changed."""

    class Escaped(Message):
        """Escape was pressed, and no list of completions was open."""

    class PasteWanted(Message):
        """Ctrl+V: what is on the clipboard is to come in. `is_asked` is False for a paste of
        nothing, which is what some terminals make of a picture there."""

        def __init__(self, is_asked: bool) -> None:
            super().__init__()
            self.is_asked = is_asked

    @dataclass
    class Dropped(Message):
        """`text` stands in the prompt and looks like paths of dropped files; it was pasted as
        `raw`, in which control characters of their names are what they are."""

        text: str
        raw: str

    find_labels: FindLabels = staticmethod(no_labels)
    """Where the labels of pictures lie in a line; each is one unit for every key."""
    folded: Callable[[str], str] = staticmethod(str)
    """What a paste becomes in the prompt; `unfolded` is the other way round."""
    unfolded: Callable[[str], str] = staticmethod(str)

    def __init__(self, id: str) -> None:
        super().__init__(
            id=id, soft_wrap=True, show_line_numbers=False, highlight_cursor_line=False
        )
        self.cursor_blink = False  # nothing moves while idle
        self.is_completing = False
        """Set by the app while completions are shown: some keys go to them."""
        self.is_completing_path = False
        """Whether they are of a path: Enter takes one, and sends nothing."""
        self._sent: Sequence[str] = ()
        self._recalled: int | None = None

    def take(self) -> str:
        """Empty the prompt and return what was in it. No Changed is posted."""
        text = self.text
        self._set_silently("")
        self._recalled = None
        return text

    def give_back(self, text: str) -> None:
        """Put what was taken in front of what was typed since, on lines of their own. No Changed
        is posted."""
        gap = "\n" if text.strip() and self.text.strip() and not text.endswith("\n") else ""
        self._set_silently(f"{text}{gap}{self.text}")
        self.move_cursor(self.document.end)

    def drop_front(self, text: str) -> None:
        """Take `text` away where it stands in front of the rest. No Changed is posted."""
        if text and self.text.startswith(text):
            self._set_silently(self.text[len(text) :].removeprefix("\n"))
            self.move_cursor(self.document.end)
            self._recalled = None

    def _set_silently(self, text: str) -> None:
        with self.prevent(TextArea.Changed):
            self.text = text
        self.post_message(self.Rewritten())

    def put(self, text: str) -> None:
        """Show `text` with the cursor at its end."""
        self.text = text
        self.move_cursor(self.document.end)

    @property
    def mention(self) -> Mention | None:
        """The @path that is typed, the cursor at its end."""
        if not self.selection.is_empty:
            return None
        row, column = self.cursor_location
        return mention_before(self.document.get_line(row)[:column])

    def put_mention(self, mention: Mention, text: str) -> None:
        """Put `text` in the place of `mention`, which ends at the cursor."""
        row, column = self.cursor_location
        self.replace(text, (row, column - mention.length), (row, column))
        self.move_cursor((row, column - mention.length + len(text)))

    def put_label(self, label: str) -> None:
        """Put the label of a picture at the cursor, with a space behind it, as one change."""
        row, column = self.cursor_location
        before = self.document.get_line(row)[:column]
        gap = "" if not before or before[-1].isspace() else " "
        # Labels that stand here are kept: what is selected is what goes.
        if result := self._replace_via_keyboard(f"{gap}{label} ", *self.selection):
            self.move_cursor(result.end_location)

    def exchange(self, old: str, new: str) -> bool:
        """Put `new` in the place of the last `old`, as one change; whether there was one."""
        before, found, _ = self.text.rpartition(old)
        if found:
            self.replace(new, _end_of(before), _end_of(before + found))
        return bool(found)

    def edit(self, edit: Edit) -> EditResult:
        """Every change comes through here: a label is never torn."""
        lines = self.document.lines
        edit.from_location, edit.to_location = widened(
            lines, edit.top, edit.bottom, self.find_labels
        )
        return super().edit(edit)

    def validate_selection(self, selection: Selection) -> Selection:
        lines, before = self.document.lines, self.selection.end
        return Selection(*(beside(lines, place, before, self.find_labels) for place in selection))

    def get_line(self, line_index: int) -> Text:
        line = super().get_line(line_index)
        for start, end in self.find_labels(line.plain):
            line.stylize(LABEL_STYLE, start, len(line.plain[:end].rstrip(" ")))
        return line

    def remember(self, sent: Sequence[str]) -> None:
        """The texts that Up brings back into an empty prompt, oldest first."""
        self._sent = sent

    async def _on_key(self, event: events.Key) -> None:
        key = event.key
        if key in NEWLINE_KEYS or key in OTHER_NEWLINE_KEYS:
            self._replace_via_keyboard("\n", *self.selection)
        elif key in SCROLL_KEYS:
            self.post_message(self.Scroll(SCROLL_KEYS[key]))
        elif self.is_completing and key in ("up", "down", "tab", "enter", "escape"):
            is_sent = key == "enter" and not self.is_completing_path
            self.post_message(self.Choose(key, self.take() if is_sent else ""))
        elif key == "enter":
            self.post_message(self.Submitted(self.take()))
        elif key == "escape":
            self.post_message(self.Escaped())
        elif key == UNFOLD_KEY:
            self._unfold()
        elif key not in ("up", "down") or not self._recall(-1 if key == "up" else 1):
            await super()._on_key(event)
            return
        event.stop()
        event.prevent_default()

    async def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default()  # of TextArea's own handler
        event.stop()
        text = pasted(event.text)
        if not text:
            self.post_message(self.PasteWanted(is_asked=False))
        elif may_be_a_drop(text):
            self.paste_copied(text)
            self.post_message(self.Dropped(text, event.text))
        else:
            self.paste_copied(self.folded(text))

    def action_paste(self) -> None:
        self.post_message(self.PasteWanted(is_asked=True))

    def paste_copied(self, text: str) -> None:
        """Paste what was copied or cut in this app."""
        if result := self._replace_via_keyboard(text, *self.selection):
            self.move_cursor(result.end_location)

    def _unfold(self) -> None:
        """Put a folded paste in the place of its label: of the cursor's line, else the first."""
        row, _ = self.cursor_location
        for at in (row, *range(self.document.line_count)):
            line = self.document.get_line(at)
            for start, end in self.find_labels(line):
                label = line[start:end]
                if (text := self.unfolded(label)) != label:
                    result = self.replace(text, (at, start), (at, end))
                    self.move_cursor(result.end_location)
                    return

    def _recall(self, step: int) -> bool:
        """Step through what was sent; only from an empty prompt or a recalled, unchanged text."""
        at = len(self._sent) if self._recalled is None else self._recalled
        expected = self._sent[at] if at < len(self._sent) else ""
        place = at + step
        if self.text != expected or place < 0 or (self._recalled is None and step > 0):
            return False
        self._recalled = place if place < len(self._sent) else None
        self.put(self._sent[place] if self._recalled is not None else "")
        return True

    def action_cut(self) -> None:
        if self.selected_text:
            self.post_message(self.CopyWanted(self.selected_text))
            self._delete_via_keyboard(*self.selection)


def _end_of(text: str) -> tuple[int, int]:
    """(row, column) behind `text`, as a document has it."""
    rows = text.split("\n")
    return len(rows) - 1, len(rows[-1])
