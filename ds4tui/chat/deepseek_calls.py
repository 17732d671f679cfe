"""Calls as DeepSeek V3, R1 and V3.1 write them, read while they come.

    <｜tool▁call▁begin｜>function<｜tool▁sep｜>read        V3 and R1
    ```json
    {"path": "a.txt"}
    ```<｜tool▁call▁end｜>
    <｜tool▁call▁begin｜>read<｜tool▁sep｜>{"path": "a.txt"}<｜tool▁call▁end｜>        V3.1

Several stand between `<｜tool▁calls▁begin｜>` and `<｜tool▁calls▁end｜>`. Models mix the two, leave
out fences and ends; a call is over when its arguments are.
"""

import json
import re
from collections.abc import Collection, Mapping
from enum import Enum, auto

from ds4tui.chat.call_progress import BLANKS, CallInProgress
from ds4tui.chat.call_text import MAX_BLANKS
from ds4tui.chat.json_follower import JsonFollower, NotJson

BEGIN, SEPARATOR, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"

_LONGEST_HEAD = 400  # names are shorter
_KIND = "function"
_FENCE = "```"
# What may stand between a name on a line of its own and the arguments.
_BEFORE_ARGUMENTS = re.compile(r"[ \t\r\n]*(?:```(?:json)?[ \t\r\n]*)?")
_MAYBE_BEFORE = re.compile(r"[ \t\r\n]*(?:`{1,2}|```(?:j|js|jso|json)?[ \t\r\n]*)?")


class _At(Enum):
    HEAD = auto()
    NAME = auto()  # behind the separator
    FENCE = auto()  # behind a name on a line of its own
    ARGUMENTS = auto()
    TAIL = auto()
    DONE = auto()


class DeepSeekCall(CallInProgress[_At]):
    """As syntaxes.CallReader says. `schemas` say nothing here: arguments are JSON."""

    def __init__(
        self, schemas: Mapping[str, str], begun: str = "", names: Collection[str] | None = None
    ) -> None:
        super().__init__(_At.HEAD, _At.DONE, begun, names)
        self._head = ""
        self._follower = JsonFollower()

    def read(self, text: str) -> None:
        whole = self._begun + text
        steps = {
            _At.HEAD: self._read_head,
            _At.NAME: self._read_name,
            _At.FENCE: self._read_fence,
            _At.ARGUMENTS: self._read_arguments,
            _At.TAIL: self._read_tail,
        }
        while self._at is not _At.DONE and steps[self._at](whole):
            pass

    def finish(self, text: str) -> bool:
        if self._at is _At.TAIL:
            self._at, self._position = _At.DONE, len(self._begun + text)
        return self._at is _At.DONE

    def _read_head(self, whole: str) -> bool:
        rest = self._near(whole).removeprefix(BEGIN)
        end = _within(rest, rest.find(SEPARATOR), len(SEPARATOR))
        if end < 0:
            return False
        self._head = rest[:end].strip(BLANKS)
        return self._go(_At.NAME, len(whole) - len(rest) + end + len(SEPARATOR))

    def _read_name(self, whole: str) -> bool:
        rest = self._near(whole)
        begin = len(whole) - len(rest)
        if END.startswith(rest) and rest != END:
            return False
        if rest.startswith(("{", END)):
            self._call(self._head)
            return self._go(_At.ARGUMENTS if rest[0] == "{" else _At.TAIL, begin)
        found = re.search(r"[\n`{]", rest)
        end = _within(rest, found.start() if found else -1, 1)
        if end < 0:
            return False
        if self._head != _KIND:
            raise NotJson("something else stands where its arguments must")
        self._call(rest[:end].strip(BLANKS))
        return self._go(_At.FENCE, begin + end)

    def _near(self, whole: str) -> str:
        rest = whole[self._position :].lstrip(BLANKS)
        if len(whole) - len(rest) - self._position > MAX_BLANKS:
            raise NotJson("there are only blanks")
        return rest

    def _call(self, name: str) -> None:
        if not name or any(c in BLANKS + "<>" for c in name):
            raise NotJson("it names no tool")
        self.name = self._offered(name)

    def _read_fence(self, whole: str) -> bool:
        rest = whole[self._position :]
        found = _BEFORE_ARGUMENTS.match(rest)
        end = found.end() if found else 0
        if rest[end : end + 1] == "{" and end < MAX_BLANKS:
            return self._go(_At.ARGUMENTS, self._position + end)
        if not _MAYBE_BEFORE.fullmatch(rest) or len(rest) >= MAX_BLANKS:
            raise NotJson("something else stands where its arguments must")
        return False

    def _read_arguments(self, whole: str) -> bool:
        while self._position < len(whole) and not self._follower.is_done:
            character = whole[self._position]
            self._follower.feed(character)
            escape = self._follower.in_string and character < " "
            self._json.append(json.dumps(character)[1:-1] if escape else character)
            self._position += 1
        return self._follower.is_done and self._go(_At.TAIL, self._position)

    def _read_tail(self, whole: str) -> bool:
        if not self._json:
            self._json.append("{}")
        rest = whole[self._position :].lstrip(BLANKS)
        has_fence = rest.startswith(_FENCE)
        rest = rest.removeprefix(_FENCE).lstrip(BLANKS)
        begin = len(whole) - len(rest)
        if begin - self._position > MAX_BLANKS:
            return self._go(_At.DONE, self._position)
        if rest.startswith(END):
            return self._go(_At.DONE, begin + len(END))
        if END.startswith(rest) or (not has_fence and _FENCE.startswith(rest)):
            return False
        # Its end is missing; a fence belongs to it.
        return self._go(_At.DONE, begin if has_fence else self._position)


def _within(text: str, at: int, length: int) -> int:
    """`at`, where a mark of that length is in the text, -1 if it is not there yet. Raises NotJson
    where it is too far away."""
    if (at + length if at >= 0 else len(text)) > _LONGEST_HEAD:
        raise NotJson("no tag stands where one must")
    return at
