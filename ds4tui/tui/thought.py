"""What a model thought before it answered: a line with its length, unfolded by a click."""

from textual.content import Content
from textual.widgets import Static

from ds4tui.tui.terminal_text import harmless
from ds4tui.tui.words import QUIET, counted


class Thought(Static):
    """Folded it is one line, however long it is. `tokens` is 0 where nobody counted them."""

    def __init__(self, text: str, tokens: int, *, is_open: bool) -> None:
        self.text, self.tokens = text, tokens
        self._is_open = is_open
        super().__init__(thought_content(text, tokens, is_open=is_open), classes="thought")

    def add(self, text: str, tokens: int) -> None:
        """More of it was sampled."""
        self.text += text
        self.tokens += tokens
        self._draw()

    def unfold(self, is_open: bool) -> None:
        if is_open != self._is_open:
            self._is_open = is_open
            self._draw()

    def on_click(self) -> None:
        if not self.screen.get_selected_text():
            self.unfold(not self._is_open)

    def _draw(self) -> None:
        # Folded it stays one line: only what is unfolded moves what is below it.
        content = thought_content(self.text, self.tokens, is_open=self._is_open)
        self.update(content, layout=self._is_open or self.size.height != 1)


def thought_content(text: str, tokens: int, *, is_open: bool) -> Content:
    """`▸ thought: 212 tokens`, and below it all of it if `is_open`."""
    length = counted(tokens, "token") if tokens else counted(len(text), "character")
    head = Content.styled(f"{'▾' if is_open else '▸'} thought: {length}", QUIET)
    if not is_open:
        return head
    return Content("\n").join([head, Content.styled(harmless(text.strip()), QUIET)])
