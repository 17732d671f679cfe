"""Calls whose arguments stand between tags, read while they come.

    <function=read> <parameter=path>a.txt</parameter> </function>                   Qwen3-Coder
    read <arg_key>path</arg_key> <arg_value>a.txt</arg_value> </tool_call>          GLM 4.5
    <｜DSML｜invoke name="read"> <｜DSML｜parameter name="path" string="true">a.txt ..   DeepSeek V4

Texts stand there as they are, other values as JSON; which it is says the tool's schema, or an
attribute. A text may hold the tag that ends it: it ends where the next argument or the end of the
call follows, or that of the block that calls stand in, where a model forgets the one.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from ds4tui.chat.call_progress import BLANKS, CallInProgress, begun_mark
from ds4tui.chat.call_text import MAX_BLANKS
from ds4tui.chat.json_follower import NotJson
from ds4tui.chat.schemas import is_text, properties
from ds4tui.chat.tools import parsed
from ds4tui.errors import RequestError

_LONGEST_TAG = 400  # names are shorter
_PYTHONS = {"True": True, "False": False, "None": None}  # as models trained on Python say


@dataclass(frozen=True, slots=True)
class Tags:
    """How a family writes calls. `head` is a whole tag that names the tool; without one the name
    stands bare. `parameter` matches up to where its value begins, which `value_begins` ends; it
    has the groups key and perhaps text (whether the value is one). One of `block_ends`, or the
    next call in the block, ends a call that lacks its own end. `line_ends`: values stand on lines
    of their own."""

    head: re.Pattern[str] | None
    parameter_begins: str
    parameter: re.Pattern[str]
    value_begins: str
    value_ends: str
    call_ends: str
    block_ends: tuple[str, ...] = ()
    line_ends: bool = False

    @property
    def follows(self) -> tuple[str, ...]:
        """What may follow a value."""
        return (self.parameter_begins, self.call_ends, *self.block_ends)

    def may_end_with(self, rest: str) -> bool:
        """Whether `rest` may become what ends a call."""
        return any(tag.startswith(rest) for tag in (self.call_ends, *self.block_ends))


QWEN = Tags(
    re.compile(r"<function=(?P<name>[^<>]+)>"),
    "<parameter=",
    re.compile(r"<parameter=(?P<key>[^<>]+)>"),
    ">",
    "</parameter>",
    "</function>",
    ("</tool_call>",),
    line_ends=True,
)
GLM = Tags(
    None,
    "<arg_key>",
    re.compile(r"<arg_key>(?P<key>[^<>]+)</arg_key>\s*<arg_value>"),
    "<arg_value>",
    "</arg_value>",
    "</tool_call>",
)
DSML_MARK = "｜DSML｜"


def dsml_tags(mark: str, block_ends: tuple[str, ...]) -> Tags:
    """DeepSeek's, with `mark` before the names of tags."""
    begins = re.escape(f"<{mark}")
    text = r'(?: string="(?P<text>true|false)")?'
    return Tags(
        re.compile(rf'{begins}invoke name="(?P<name>[^<>"]+)">'),
        f"<{mark}parameter",
        re.compile(rf'{begins}parameter name="(?P<key>[^<>"]+)"{text}>'),
        ">",
        f"</{mark}parameter>",
        f"</{mark}invoke>",
        (*block_ends, f'<{mark}invoke name="'),
    )


class _At(Enum):
    HEAD = auto()
    BETWEEN = auto()
    VALUE = auto()
    DONE = auto()


class TagCall(CallInProgress[_At]):
    """A call that is being read, as call_text.CallText is; `begun` is what of its head stood
    before its text. `schemas` are the JSON Schemas of the tools' parameters, by their names; with
    `names` only a call of one of those is one."""

    def __init__(
        self,
        tags: Tags,
        schemas: Mapping[str, str],
        begun: str = "",
        names: Collection[str] | None = None,
    ) -> None:
        super().__init__(_At.HEAD, _At.DONE, begun, names)
        self._tags, self._schemas = tags, schemas
        self._properties: Mapping[str, Any] = {}
        self._searched = 0  # up to where no end of the value is
        self._is_text = True
        self._keys: set[str] = set()

    def read(self, text: str) -> None:
        """`text` is all of the call's, as far as it is known. Raises NotJson."""
        whole = self._begun + text
        step = {_At.HEAD: self._head, _At.BETWEEN: self._between, _At.VALUE: self._value}
        while self._at is not _At.DONE and step[self._at](whole):
            pass

    def finish(self, text: str) -> bool:
        """Whether `text`, which nothing follows, is a call but for its last tags."""
        whole = self._begun + text
        tags = self._tags
        if self._at is _At.VALUE and (end := whole.rfind(tags.value_ends)) >= self._searched:
            behind = whole[end + len(tags.value_ends) :].strip(BLANKS)
            if end >= 0 and tags.may_end_with(behind):
                self._end_value(whole, end)
        if self._at is not _At.BETWEEN:
            return False
        rest = whole[self._position :].strip(BLANKS)
        if not tags.may_end_with(rest):
            return False
        self._end(len(whole))
        return True

    def _head(self, whole: str) -> bool:
        rest = self._rest(whole)
        head = self._tags.head
        if head is None:
            end = next((at for at, c in enumerate(rest) if c in "<\n"), -1)
            name = rest[: max(end, 0)].strip(BLANKS)
        else:
            _require_tag(rest)
            end = rest.find(">") + 1 or -1
            found = head.fullmatch(rest, 0, max(end, 0))
            name = found["name"].strip(BLANKS) if found else ""
        if not self._is_near(whole, rest, end):
            return False
        if not name or any(c in BLANKS for c in name):
            raise NotJson("it names no tool")
        self.name, self._properties = self._offered(name), properties(self._schemas.get(name, ""))
        return self._go(_At.BETWEEN, len(whole) - len(rest) + end)

    def _between(self, whole: str) -> bool:
        rest, tags = self._rest(whole), self._tags
        _require_tag(rest)
        if rest.startswith(tags.call_ends):
            self._is_near(whole, rest, len(tags.call_ends))
            self._end(len(whole) - len(rest) + len(tags.call_ends))
            return True
        block_end = next(filter(rest.startswith, tags.block_ends), None)
        if block_end is not None:
            self._is_near(whole, rest, len(block_end))
            self._end(len(whole) - len(rest))
            return True
        found_at = -1 if tags.may_end_with(rest) else rest.find(tags.value_begins)
        end = found_at + len(tags.value_begins) if found_at >= 0 else -1
        if not self._is_near(whole, rest, end):
            return False
        found = tags.parameter.fullmatch(rest, 0, end)
        if found is None:
            raise NotJson("something else stands between its arguments")
        self._begin_value(found)
        return self._go(_At.VALUE, len(whole) - len(rest) + end)

    def _begin_value(self, found: re.Match[str]) -> None:
        key = found["key"].strip(BLANKS)
        if key in self._keys:
            raise NotJson(f"it has two of {key[:40]!r}")
        told = found.groupdict().get("text")
        self._is_text = told == "true" if told else is_text(self._properties.get(key))
        self._json.append(("{" if not self._keys else ", ") + json.dumps(key, ensure_ascii=False))
        self._json.append(': "' if self._is_text else ": ")
        self._keys.add(key)
        self._searched = -1  # where the value begins is not known yet

    def _value(self, whole: str) -> bool:
        if self._searched < 0 and not self._skip_line_end(whole):
            return False
        tags = self._tags
        while (end := whole.find(tags.value_ends, self._searched)) >= 0:
            behind = whole[end + len(tags.value_ends) :]
            rest = behind.lstrip(BLANKS)
            is_short = len(behind) - len(rest) <= MAX_BLANKS
            if is_short and rest.startswith(tags.follows):
                self._end_value(whole, end)
                return True
            if is_short and any(tag.startswith(rest) for tag in tags.follows):
                self._tell(whole, end)
                return False
            self._searched = end + len(tags.value_ends)
        self._searched = max(self._searched, len(whole) - len(tags.value_ends) + 1)
        self._tell(whole, len(whole) - begun_mark(whole[self._position :], tags.value_ends))
        return False

    def _skip_line_end(self, whole: str) -> bool:
        if self._tags.line_ends and self._position == len(whole):
            return False
        if self._tags.line_ends and whole[self._position] == "\n":
            self._position += 1
        self._searched = self._position
        return True

    def _tell(self, whole: str, end: int) -> None:
        """Of a text all before `end`, but for a line end that may be the tags'."""
        if self._tags.line_ends and whole[self._position : end].endswith("\n"):
            end -= 1
        if self._is_text and end > self._position:
            self._json.append(_spelt(whole[self._position : end]))
            self._position = end

    def _end_value(self, whole: str, end: int) -> None:
        if self._searched < 0:
            self._skip_line_end(whole)
        self._tell(whole, end)
        if self._is_text:
            self._json.append('"')
        else:
            self._json.append(_json_of(whole[self._position : end].strip(BLANKS)))
        self._go(_At.BETWEEN, end + len(self._tags.value_ends))

    def _end(self, position: int) -> None:
        self._json.append("}" if self._keys else "{}")
        self._go(_At.DONE, position)

    def _rest(self, whole: str) -> str:
        return whole[self._position :].lstrip(BLANKS)

    def _is_near(self, whole: str, rest: str, end: int) -> bool:
        """Whether the tag is there that ends at `end` of the rest (-1: it is not). Raises NotJson
        for one that is too far away."""
        reached = len(whole) if end < 0 else len(whole) - len(rest) + end
        if reached - self._position > _LONGEST_TAG:
            raise NotJson("no tag stands where one must")
        return end >= 0


def _require_tag(rest: str) -> None:
    if rest and not rest.startswith("<"):
        raise NotJson("something else stands where a tag must")


def _json_of(text: str) -> str:
    """The JSON of a value that is no text; what is no JSON is a text after all."""
    if text in _PYTHONS:
        return json.dumps(_PYTHONS[text])
    try:
        parsed(text, None)
    except RequestError:
        return json.dumps(text, ensure_ascii=False)
    return text


def _spelt(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
