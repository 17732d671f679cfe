"""What a terminal sends is read whatever it is: pastes whole, odd keys without an error.

Textual's XTermParser (seen in 8.2.8) goes on looking for keys inside a paste: an escape sequence
there, such as the colours of copied terminal output, is typed as keys, ahead of the paste and with
its line ends lost. Here the inside of a paste is held until its end and loses its escape sequences
before XTermParser sees it. It also ends by an error, and with it the input, at a key of kitty's
protocol with an event type or alternates, which a program may have left switched on. Importing this
module puts the parser into Textual's Linux driver.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, cast

from textual import events
from textual._xterm_parser import BRACKETED_PASTE_END, BRACKETED_PASTE_START, XTermParser
from textual.drivers import linux_driver
from textual.keys import Keys
from textual.message import Message

from ds4tui.tui.terminal_text import pasted

# key[:alternates][;modifiers[:event]][;text] and how it ends; see sw.kovidgoyal.net/kitty.
_KEY = re.compile(r"\x1b\[(\d*)(?::[\d:]*)?(?:;(\d*)(?::(\d*))?)?(;[\d:]*)?([u~ABCDEFHPQRS])")
_RELEASED = "3"


class WholePastes(XTermParser):
    """XTermParser for input with pastes. Belongs to the driver's input thread."""

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._is_in_paste = False
        self._inside = ""
        self._tail = ""  # of what went through: may be the beginning of a start mark

    def feed(self, data: str) -> Iterable[Message]:
        # Each part is parsed before the next: what follows a paste must not overtake it.
        yield from super().feed("") if not data else self._parts(data)

    def _sequence_to_key_events(self, sequence: str, alt: bool = False) -> Iterable[events.Key]:
        found = _KEY.fullmatch(sequence)
        if found is None:
            return super()._sequence_to_key_events(sequence, alt)
        code, modifiers, event, text, end = found.groups(default="")
        second = f";{modifiers}" if modifiers or text else ""
        if event != _RELEASED:
            with suppress(ValueError, OverflowError):  # a number that is no character
                plain = f"\x1b[{code}{second}{text}{end}"
                return list(super()._sequence_to_key_events(plain, alt))
        return [events.Key(Keys.Ignore, sequence)]

    def _parts(self, data: str) -> Iterator[Message]:
        while data:
            if self._is_in_paste:
                part, data = self._to_the_end(data)
            else:
                part, data = self._to_a_start(data)
            if part:
                yield from super().feed(part)

    def _to_a_start(self, data: str) -> tuple[str, str]:
        """What stands before a paste, with its start mark, and the rest."""
        seen = self._tail + data
        at = seen.find(BRACKETED_PASTE_START)
        if at < 0:
            self._tail = seen[1 - len(BRACKETED_PASTE_START) :]
            return data, ""
        begin = at + len(BRACKETED_PASTE_START) - len(self._tail)
        self._is_in_paste, self._inside, self._tail = True, "", ""
        return data[:begin], data[begin:]

    def _to_the_end(self, data: str) -> tuple[str, str]:
        """A whole paste with its end mark and the rest; nothing yet if it goes on."""
        looked_at = max(0, len(self._inside) - len(BRACKETED_PASTE_END))
        self._inside += data
        at = self._inside.find(BRACKETED_PASTE_END, looked_at)
        if at < 0:
            return "", ""
        inside, rest = self._inside[:at], self._inside[at + len(BRACKETED_PASTE_END) :]
        self._is_in_paste, self._inside = False, ""
        return pasted(inside) + BRACKETED_PASTE_END, rest


cast(Any, linux_driver).XTermParser = WholePastes
