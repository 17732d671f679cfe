"""One call's JSON, read while it comes: its name, and its arguments as they are written."""

import json
from collections.abc import Collection

from ds4tui.chat.json_follower import JsonFollower, NotJson
from ds4tui.chat.tools import canonical_arguments

# Until a call has its name nothing of it can be shown; longer than this it is taken for text.
MAX_UNNAMED = 4096
# Blanks before a call are part of the syntax; of longer ones the rest is content.
MAX_BLANKS = 64
_ARGUMENTS = ("arguments", "parameters")  # Llama's word for it is the second
_KEYS = frozenset(("name", *_ARGUMENTS, "id", "type", "function"))
_PARTS = ("name", "arguments", "function", "type")


class CallText:
    """A call that is being read. `position` is up to where its text was.

    With `names` only a call of one of those is one, and it must have arguments: JSON without a
    marker before it may be anything.
    """

    def __init__(self, names: Collection[str] | None = None) -> None:
        self.id = ""  # given when it is told of
        self.name: str | None = None
        self.canonical = ""  # the arguments, once they are complete
        self.position = 0
        self.is_object = False  # its first character was that of an object
        self._names = names
        self._follower = JsonFollower()
        self._values: dict[str, list[str]] = {}  # text of "name" and "arguments"
        self._taken = 0  # pieces of the arguments that were told

    @property
    def is_done(self) -> bool:
        return self._follower.is_done

    @property
    def has_object(self) -> bool:
        """Whether the arguments have begun as an object, and so can be told as they come."""
        return self._values.get("arguments", [""])[0] == "{"

    @property
    def is_known(self) -> bool:
        """Whether it can be told of: it has its name, and arguments that can be shown."""
        return self.name is not None and (self.has_object or bool(self.canonical))

    def read(self, text: str) -> None:
        """`text` is all of the call's, as far as it is known. Raises NotJson."""
        while self.position < len(text) and not self.is_done:
            character = text[self.position]
            if not self.is_object and self.position >= MAX_BLANKS:
                raise NotJson("there are only blanks")
            self._feed(character)
            self.is_object = self.is_object or character == "{"
            self.position += 1
            if self.name is None and self.position > MAX_UNNAMED:
                raise NotJson(f"it has no name in its first {MAX_UNNAMED:,} characters")

    def _feed(self, character: str) -> None:
        follower = self._follower
        known = follower.in_value
        follower.feed(character)
        part = "arguments" if follower.key in _ARGUMENTS else follower.key
        if self._names is not None and follower.key and not self.is_known:
            self._require_key(follower.key)
        if part not in _PARTS:
            return
        if follower.in_value:
            if not known and part in self._values:
                raise NotJson(f"it has two of {part!r}")
            # Control characters, which JSON forbids in strings, as JSON writes them.
            escape = follower.in_string and character < " "
            shown = json.dumps(character)[1:-1] if escape else character
            self._values.setdefault(part, []).append(shown)
        if follower.value_ended and part == "name":
            self.name = self._name()
        elif follower.value_ended and part == "type" and self._names is not None:
            self._require_type()

    def _require_type(self) -> None:
        if "".join(self._values["type"]) != '"function"':
            raise NotJson("its type is no function's")

    def _require_key(self, key: str) -> None:
        if key not in _KEYS:
            raise NotJson(f"{key[:40]!r} is no part of a call")

    def _name(self) -> str:
        name = json.loads("".join(self._values["name"]))
        if not isinstance(name, str) or not name:
            raise NotJson("its name is no text")
        if self._names is not None and name not in self._names:
            raise NotJson(f"no tool {name[:40]!r} was offered")
        return name

    def _take_function(self) -> None:
        """OpenAI's form of a call, which some models write: the call is what is called function,
        or that is its name."""
        function = json.loads("".join(self._values["function"]))
        if isinstance(function, str):
            function = {"name": function}
        if not isinstance(function, dict):
            raise NotJson("its function is none")
        self._values["name"] = [json.dumps(function.get("name"))]
        self.name = self._name()
        for key in _ARGUMENTS:
            if key in function and "arguments" not in self._values:
                self._values["arguments"] = [json.dumps(function[key], ensure_ascii=False)]

    def finish(self, text: str) -> bool:
        """Whether `text`, which nothing follows, is a call although its end is missing."""
        return False

    def take_arguments(self) -> str:
        """What is new of the arguments' text."""
        if not self.has_object:
            return self.canonical
        pieces = self._values.get("arguments", [])
        text, self._taken = "".join(pieces[self._taken :]), len(pieces)
        return text

    def end(self) -> None:
        """Complete the values. Raises NotJson and RequestError."""
        if self.name is None and "function" in self._values:
            self._take_function()
        if self.name is None:
            raise NotJson("it has no name")
        if self._names is not None and "arguments" not in self._values:
            raise NotJson("it has no arguments")
        arguments = json.loads("".join(self._values.get("arguments", ["null"])))
        self.canonical = canonical_arguments(arguments)
