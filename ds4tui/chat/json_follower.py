"""Follows one JSON object character by character, and says at once when it is none.

RFC 8259, but for two liberties that models take: characters below U+0020 inside strings, and
nothing is said of what follows the object. Knows nothing of tool calls.
"""

import json
import re
from enum import Enum, auto

_BLANKS = " \t\r\n"
_CLOSING = {"{": "}", "[": "]"}
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORDS = frozenset(("true", "false", "null"))
_WORD_CHARACTERS = frozenset("0123456789+-.eEtruefalsn")
_LONGEST_WORD = 400  # of digits that a float or a long integer could need
_DEEPEST = 64


class NotJson(ValueError):
    """Says in words what is wrong."""


class _At(Enum):
    START = auto()
    FIRST_KEY = auto()  # a key or the end of the object
    KEY = auto()
    COLON = auto()
    FIRST_ITEM = auto()  # a value or the end of the array
    VALUE = auto()
    NEXT = auto()  # a comma or the end of what is open
    STRING = auto()
    ESCAPE = auto()
    HEX = auto()
    WORD = auto()
    DONE = auto()


class JsonFollower:
    """`key` is the latest key of the outermost object, as a value; `in_value` says whether the
    character that was fed last belongs to that key's value, `value_ended` whether a value of
    that object has ended with it (or just before it, for numbers and words)."""

    def __init__(self) -> None:
        self.key = ""
        self.in_value = False
        self.value_ended = False
        self._at = _At.START
        self._open: list[str] = []
        self._string_is_key = False
        self._string: list[str] = []  # of a key of the outermost object
        self._word = ""
        self._hex_left = 0

    @property
    def is_done(self) -> bool:
        return self._at is _At.DONE

    @property
    def in_string(self) -> bool:
        return self._at in (_At.STRING, _At.ESCAPE, _At.HEX)

    def feed(self, character: str) -> None:
        """Raises NotJson; after that and after the end it must not be called."""
        self.value_ended = False
        if self._at is _At.NEXT and len(self._open) == 1:
            self.in_value = False
        if self.in_string:
            self._in_string(character)
            return
        if self._at is _At.WORD:
            if character in _WORD_CHARACTERS and len(self._word) < _LONGEST_WORD:
                self._word += character
                return
            self._end_word()
        if character not in _BLANKS:
            self._between(character)

    def _in_string(self, character: str) -> None:
        if self._string_is_key and len(self._open) == 1:
            self._string.append(character)
        if self._at is _At.ESCAPE:
            if character not in '"\\/bfnrtu':
                raise NotJson(f"\\{character} is no escape")
            self._at, self._hex_left = (_At.HEX, 4) if character == "u" else (_At.STRING, 0)
        elif self._at is _At.HEX:
            if character not in "0123456789abcdefABCDEF":
                raise NotJson(f"{character!r} is no hexadecimal digit")
            self._hex_left -= 1
            self._at = _At.HEX if self._hex_left else _At.STRING
        elif character == "\\":
            self._at = _At.ESCAPE
        elif character == '"':
            self._end_string()

    def _end_string(self) -> None:
        if not self._string_is_key:
            self._end_value()
            return
        self._at = _At.COLON
        if len(self._open) == 1:
            self.key = json.loads('"' + "".join(self._string), strict=False)
            self._string.clear()

    def _end_word(self) -> None:
        if self._word not in _WORDS and not _NUMBER.fullmatch(self._word):
            raise NotJson(f"{self._word[:40]!r} is no value")
        self._end_value()
        self.in_value = self.in_value and len(self._open) > 1

    def _end_value(self) -> None:
        self._at = _At.NEXT if self._open else _At.DONE
        self.value_ended = len(self._open) == 1

    def _between(self, character: str) -> None:
        if self._at is _At.COLON:
            self._expect(character == ":", character, "a colon")
            self._at = _At.VALUE
        elif self._at in (_At.KEY, _At.FIRST_KEY) and character == '"':
            self._at, self._string_is_key = _At.STRING, True
        elif self._at is _At.NEXT and character == ",":
            self._at = _At.KEY if self._open[-1] == "{" else _At.VALUE
        elif self._at in (_At.NEXT, _At.FIRST_KEY, _At.FIRST_ITEM) and self._closes(character):
            self._open.pop()
            self._end_value()
        else:
            self._begin_value(character)

    def _closes(self, character: str) -> bool:
        return character == _CLOSING[self._open[-1]]

    def _begin_value(self, character: str) -> None:
        allowed = _At.VALUE, _At.FIRST_ITEM
        self._expect(self._at in allowed or self._at is _At.START, character, "something else")
        self._expect(self._at is not _At.START or character == "{", character, "an object")
        self.in_value = self.in_value or len(self._open) == 1
        if character in _CLOSING:
            self._open.append(character)
            self._at = _At.FIRST_KEY if character == "{" else _At.FIRST_ITEM
            if len(self._open) > _DEEPEST:
                raise NotJson("it is nested too deeply")
        elif character == '"':
            self._at, self._string_is_key = _At.STRING, False
        elif character in _WORD_CHARACTERS:
            self._at, self._word = _At.WORD, character
        else:
            raise NotJson(f"{character!r} begins no value")

    def _expect(self, as_expected: bool, character: str, what: str) -> None:
        if not as_expected:
            raise NotJson(f"{character!r} where {what} must stand")
