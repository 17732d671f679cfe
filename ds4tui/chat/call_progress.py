"""What readers of a family's calls have in common: how far they are, and the arguments so far."""

from collections.abc import Collection
from enum import Enum
from typing import Generic, TypeVar

from ds4tui.chat.json_follower import NotJson
from ds4tui.chat.tools import canonical_arguments

S = TypeVar("S", bound=Enum)

BLANKS = " \t\r\n"


class CallInProgress(Generic[S]):
    """The part of a syntaxes.CallReader that does not depend on the family. It goes from the state
    `head` to `done`; `begun` is what of the call stood before its text, and with `names` only a
    call of one of those is one."""

    def __init__(
        self, head: S, done: S, begun: str = "", names: Collection[str] | None = None
    ) -> None:
        self.id = ""
        self.name: str | None = None
        self.canonical = ""
        self._begun, self._names = begun, names
        self._at, self._first, self._last = head, head, done
        self._position = 0  # in what begun and text are together; of a value what was told
        self._json: list[str] = []  # of the arguments
        self._taken = 0  # pieces of it that were told

    @property
    def is_done(self) -> bool:
        return self._at is self._last

    @property
    def is_object(self) -> bool:
        return self._at is not self._first

    @property
    def is_known(self) -> bool:
        return bool(self._json)

    @property
    def position(self) -> int:
        return max(0, self._position - len(self._begun))

    def take_arguments(self) -> str:
        pieces, self._taken = self._json[self._taken :], len(self._json)
        return "".join(pieces)

    def end(self) -> None:
        self.canonical = canonical_arguments("".join(self._json))

    def _offered(self, name: str) -> str:
        """`name`. Raises NotJson where it is none of a tool that was offered."""
        if self._names is not None and name not in self._names:
            raise NotJson(f"no tool {name[:40]!r} was offered")
        return name

    def _go(self, at: S, position: int) -> bool:
        self._at, self._position = at, position
        return True


def begun_mark(text: str, mark: str) -> int:
    """How long the longest end of `text` is with which `mark` begins."""
    longest = min(len(text), len(mark) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(mark[:n])), 0)
