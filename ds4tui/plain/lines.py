"""Lines in and out of the plain mode: a terminal with readline's keys and history, or pipes.

What is written is text and line ends. Nothing that was written is ever changed, so that a screen
reader, a braille line or a log file gets each word once.
"""

import io
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import TextIO

from ds4tui.tui.terminal_text import harmless

try:
    import readline as _readline
except ImportError:  # some builds of Python have none: lines come without history then
    _loaded: ModuleType | None = None
else:
    _loaded = _readline

GOES_ON = "\\"  # at the end of a line: the message goes on with the next one
MORE = "More: "


class Lines:
    """Belongs to the main thread."""

    def __init__(
        self, source: TextIO | None = None, out: TextIO | None = None, editing: bool = True
    ) -> None:
        """Standard input and output unless others are given. `editing`: use readline if this is
        a terminal."""
        if source is None and isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")  # what is piped in may be no UTF-8
        self._source = source or sys.stdin or io.StringIO()  # it may have been closed
        self._out = out or sys.stdout
        self.is_terminal = self._source.isatty() and self._out.isatty()
        self._readline = _loaded if editing and self.is_terminal else None
        self._is_at_start = True
        self.is_gone = False
        """Nobody reads any more; what is written then is dropped."""
        self.on_gone: Callable[[], object] = lambda: None

    @property
    def can_edit(self) -> bool:
        """Whether a text can be put into the next line for a person to change."""
        return self._readline is not None

    # Out

    def say(self, *lines: str) -> None:
        """Whole lines; an unfinished one before them is ended."""
        for line in lines:
            if line:
                self.write(("" if self._is_at_start else "\n") + line.rstrip() + "\n")

    def write(self, text: str) -> None:
        """Text as it comes."""
        text = harmless(text)
        if not text or self.is_gone:
            return
        try:
            self._out.write(text)
            self._out.flush()
        except BrokenPipeError:
            self.is_gone = True
            self.on_gone()
        self._is_at_start = text.endswith("\n")

    def end_line(self) -> None:
        if not self._is_at_start:
            self.write("\n")

    # In

    def message(self, label: str, begun: str = "") -> str | None:
        """What a person says next, of several lines where they end in a backslash; None at the
        end. `begun` stands in the first one, to be changed. Raises KeyboardInterrupt."""
        parts: list[str] = []
        while (line := self.line(MORE if parts else label, "" if parts else begun)) is not None:
            if not line.endswith(GOES_ON):
                return "\n".join([*parts, line])
            parts.append(line.removesuffix(GOES_ON))
        return "\n".join(parts) if parts else None

    def line(self, label: str, begun: str = "") -> str | None:
        """One line without its end; None at the end of what there is to read, and when nobody
        reads what is said."""
        self.end_line()
        if self.is_gone:
            return None
        if not self.is_terminal:
            text = self._source.readline()
            return text.removesuffix("\n").removesuffix("\r") if text else None
        try:
            if self._readline is None or self._source is not sys.stdin:
                self.write(label)
                self._is_at_start = True  # the person's Enter ends it
                text = self._source.readline()
                return text.removesuffix("\n") if text else None
            return self._edited(self._readline, label, begun)
        except EOFError:
            self._out.write("\n")
            return None

    def _edited(self, readline: ModuleType, label: str, begun: str) -> str:
        readline.set_startup_hook(lambda: readline.insert_text(begun) if begun else None)
        try:
            return input(label)
        finally:
            readline.set_startup_hook(None)

    def remember(self, lines: Iterable[str]) -> None:
        """What Up brings back, oldest first, in the place of what it did before."""
        if self._readline is not None:
            self._readline.clear_history()
            for each in lines:
                self._readline.add_history(each)

    def keep_unfinished(self) -> None:
        """Have Up bring back the line that is being written, which is about to be dropped."""
        if self._readline is not None and (begun := self._readline.get_line_buffer()):
            self._readline.add_history(begun)

    def complete_with(self, completions: Callable[[str], list[str]]) -> None:
        """Have Tab complete what stands before the cursor."""
        readline = self._readline
        if readline is None:
            return

        def complete(text: str, place: int) -> str | None:
            found = completions(readline.get_line_buffer())
            return found[place] if place < len(found) else None

        readline.set_completer_delims("")
        readline.set_completer(complete)
        is_libedit = "libedit" in (readline.__doc__ or "")
        readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
