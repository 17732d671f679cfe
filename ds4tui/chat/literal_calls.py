"""Calls whose arguments are literals of another kind than JSON, read while they come.

    call:read{path:<|"|>a.txt<|"|>,lines:[1,2],where:{all:true}}        Gemma 4
    read(path="a.txt", lines=[1, 2], where={"all": True})               Python, as Gemma 3 has it

What comes is told as JSON. Models write quotes of JSON and of Python in either, and Gemma leaves
them away: a word that is no literal is a text.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from ds4tui.chat.call_progress import BLANKS, CallInProgress, begun_mark
from ds4tui.chat.call_text import MAX_BLANKS
from ds4tui.chat.json_follower import NotJson
from ds4tui.chat.schemas import properties

_LONGEST_NAME = 400
_LONGEST_WORD = 4096
_DEEPEST = 64
_CLOSING = {"{": "}", "[": "]", "(": ")"}
_PYTHONS = {"True": "true", "False": "false", "None": "null"}
_LITERAL = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_NAME = re.compile(r"[^\s,{}\[\]()<>\"'`=]+")
_KEY_ENDS = re.compile(r"[\s:=,{}\[\]()<>\"'`]")
_WORD_ENDS = re.compile(r"[,\n}\])]")
# What follows a backslash; any other character is itself.
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\n": ""}
_HEX = {"x": 2, "u": 4, "U": 8}


@dataclass(frozen=True, slots=True)
class Literals:
    """`head` is what may stand before the name, `opens` what stands behind it, `assigns` what
    stands between a name and its value; `raw` quotes texts in which nothing is escaped, and
    `bare` says whether texts may lack quotes."""

    head: str
    opens: str
    assigns: str
    quotes: tuple[str, ...]
    raw: str = ""
    bare: bool = False


GEMMA = Literals("call:", "{", ":", ('<|"|>', '"', "'"), '<|"|>', bare=True)
PYTHON = Literals("", "(", "=", ('"""', "'''", '"', "'"))


class _At(Enum):
    HEAD = auto()
    FIRST = auto()  # an item, or the end of what is open
    ASSIGNS = auto()
    VALUE = auto()
    NEXT = auto()  # a comma, or the end of what is open
    DONE = auto()


class LiteralCall(CallInProgress[_At]):
    """As syntaxes.CallReader says; raises NotJson at the first thing that no such call has."""

    def __init__(
        self,
        literals: Literals,
        schemas: Mapping[str, str],
        begun: str = "",
        names: Collection[str] | None = None,
    ) -> None:
        super().__init__(_At.HEAD, _At.DONE, begun, names)
        self._literals, self._schemas = literals, schemas
        self._open: list[str] = []
        self._quote = ""  # of the text that is being read
        self._key: list[str] | None = None  # that is being read as a text
        self._keys: list[str] = []  # of the arguments
        self._separator = ""  # before what is told next

    def read(self, text: str) -> None:
        whole = self._begun + text
        while not self.is_done and (self._text(whole) if self._quote else self._step(whole)):
            pass

    def finish(self, text: str) -> bool:
        return False

    def _step(self, whole: str) -> bool:
        rest = whole[self._position :].lstrip(BLANKS)
        begin = len(whole) - len(rest)
        if begin - self._position > MAX_BLANKS:
            raise NotJson("there are only blanks")
        if not rest:
            return False
        if self._at is _At.HEAD:
            return self._head(rest, begin)
        if self._at in (_At.FIRST, _At.NEXT) and rest[0] == _CLOSING[self._open[-1]]:
            return self._close(begin + 1)
        if self._at is _At.NEXT:
            self._require(rest[0] == ",", rest[0])
            self._separator = ", "
            return self._go(_At.FIRST, begin + 1)  # the last comma may be one too many
        if self._at is _At.ASSIGNS:
            self._require(rest[0] in (self._literals.assigns, ":"), rest[0])
            return self._go(_At.VALUE, begin + 1)
        is_key = self._at is not _At.VALUE and self._open[-1] != "["
        return self._item(rest, begin, is_key)

    def _require(self, as_expected: bool, character: str) -> None:
        if not as_expected:
            raise NotJson(f"{character!r} where something else must stand")

    def _head(self, rest: str, begin: int) -> bool:
        literals = self._literals
        end = rest.find(literals.opens)
        if (len(rest) if end < 0 else end + 1) > _LONGEST_NAME:
            raise NotJson("it names no tool")
        if end < 0:
            return False
        self.name = self._named(rest[:end].strip(BLANKS).removeprefix(literals.head))
        self._open.append(literals.opens)
        self._put("{")
        return self._go(_At.FIRST, begin + end + 1)

    def _named(self, name: str) -> str:
        short = name.rpartition(":")[2]
        if name not in self._schemas and short in self._schemas:
            name = short  # Gemma may say whose it is, too
        if not _NAME.fullmatch(name):
            raise NotJson("it names no tool")
        return self._offered(name)

    def _close(self, position: int) -> bool:
        opened = self._open.pop()
        self._separator = ""
        self._put("]" if opened == "[" else "}")
        return self._go(_At.NEXT if self._open else _At.DONE, position)

    def _item(self, rest: str, begin: int, is_key: bool) -> bool:
        quotes = self._literals.quotes
        if any(each.startswith(rest) and each != rest for each in quotes):
            return False
        quote = next((each for each in quotes if rest.startswith(each)), "")
        if quote:
            self._quote, self._key = quote, [] if is_key else None
            if not is_key:
                self._put('"')
            self._position = begin + len(quote)
            return True
        if rest[0] in "{[" and not is_key:
            if len(self._open) == _DEEPEST:
                raise NotJson("it is nested too deeply")
            self._open.append(rest[0])
            self._put(rest[0])
            return self._go(_At.FIRST, begin + 1)
        return self._word(rest, begin, is_key)

    def _word(self, rest: str, begin: int, is_key: bool) -> bool:
        found = (_KEY_ENDS if is_key else _WORD_ENDS).search(rest)
        end = found.start() if found else -1
        if (len(rest) if end < 0 else end + 1) > _LONGEST_WORD:
            raise NotJson("a word in it does not end")
        if end < 0:
            return False
        word = rest[:end].strip(BLANKS)
        if is_key:
            self._require(bool(word), rest[0])
            self._end_key(word)
            return self._go(_At.ASSIGNS, begin + end)
        self._put(self._value_of(word))
        return self._go(_At.NEXT, begin + end)

    def _value_of(self, word: str) -> str:
        word = _PYTHONS.get(word, word)
        is_literal = _LITERAL.fullmatch(word)
        if is_literal and not (word[0] in "-0123456789" and self._must_be_text()):
            return word
        if not word or not (is_literal or self._literals.bare):
            raise NotJson(f"{word[:40]!r} is no value")
        return json.dumps(word, ensure_ascii=False)

    def _must_be_text(self) -> bool:
        if len(self._open) > 1 or not self._keys:
            return False
        schema = properties(self._schemas.get(self.name or "", "")).get(self._keys[-1])
        return isinstance(schema, dict) and schema.get("type") == "string"

    def _end_key(self, key: str) -> None:
        if len(self._open) == 1:
            if key in self._keys:
                raise NotJson(f"it has two of {key[:40]!r}")
            self._keys.append(key)
        self._put(json.dumps(key, ensure_ascii=False) + ": ")

    def _text(self, whole: str) -> bool:
        """More of a text in quotes."""
        quote, rest = self._quote, whole[self._position :]
        is_raw = quote == self._literals.raw
        stop = re.search(re.escape(quote) if is_raw else rf"\\|{re.escape(quote)}", rest)
        end = stop.start() if stop else len(rest) - begun_mark(rest, quote)
        self._tell(rest[:end])
        self._position += end
        if stop is None:
            return False
        if stop[0] == "\\":
            return self._escape(rest[end + 1 :])
        self._quote, self._position = "", self._position + len(quote)
        if self._key is not None:
            self._end_key("".join(self._key))
            return self._go(_At.ASSIGNS, self._position)
        self._put('"')
        return self._go(_At.NEXT, self._position)

    def _escape(self, behind: str) -> bool:
        if not behind:
            return False
        digits = _HEX.get(behind[0], 0)
        code = behind[1 : 1 + digits]
        if digits and re.fullmatch("[0-9a-fA-F]*", code) and len(code) < digits:
            if len(behind) < 1 + digits:
                return False
            digits = 0
        if digits and re.fullmatch("[0-9a-fA-F]+", code) and int(code, 16) <= 0x10FFFF:
            self._tell(chr(int(code, 16)))
            self._position += 2 + digits
        else:
            self._tell(_ESCAPES.get(behind[0], behind[0]))
            self._position += 2
        return True

    def _tell(self, text: str) -> None:
        if self._key is not None:
            self._key.append(text)
        elif text:
            # Halves of characters stay escapes: the other one may come later.
            is_half = "\ud800" <= text[0] <= "\udfff"
            self._put(json.dumps(text, ensure_ascii=is_half)[1:-1])

    def _put(self, text: str) -> None:
        self._json.append(self._separator + text)
        self._separator = ""
