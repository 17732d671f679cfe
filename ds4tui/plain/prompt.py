"""What stands in the next line of the plain mode before a person writes it."""

from collections.abc import Callable

from ds4tui.plain.lines import Lines
from ds4tui.tui.attaching import Held


class NextLine(Held):
    """Pictures that came in, and a question that came back. It has what attaching.py and
    branches.py use of the app's prompt."""

    def __init__(self, lines: Lines) -> None:
        super().__init__("")
        self._lines = lines
        self.find_labels: Callable[[str], list[tuple[int, int]]] = lambda text: []
        self.folded: Callable[[str], str] = str  # a line shows what is pasted as it is
        self.unfolded: Callable[[str], str] = str

    def put(self, text: str) -> None:
        """A text to be changed; where no line can be edited it is told, and written anew."""
        self.text = text if self._lines.can_edit else ""
        if text and not self._lines.can_edit:
            self._lines.say(f"It was: {text}", "Write it anew in the next line.")

    def put_label(self, label: str) -> None:
        super().put_label(label)
        self._lines.say(f"{label} goes with your next message.")

    def focus(self) -> None:
        """The next line has it always."""

    def taken(self, read: str) -> str:
        """The message, whose line was `read`: pictures that could not stand in it come first."""
        before, self.text = self.text, ""
        return read if self._lines.can_edit else before + read
